from __future__ import annotations

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.wire.objects import decode_pod
from tests.fakes.cards import uuid
from tests.fakes.pods import Box, pod_body


@pytest.mark.parametrize(
    ("notes", "words"),
    [
        ({}, "did not come through the scheduler"),
        ({nvidia_names.POD_ALLOCATED: "x,y;"}, "can't be read"),
        ({nvidia_names.POD_ALLOCATED: ";"}, "0 containers have a reservation, 1 ask for cards"),
        (
            {
                nvidia_names.POD_ALLOCATED: f"{uuid(0)},NVIDIA,1,1:;",
                nvidia_names.POD_TO_ALLOCATE: "x,y;",
            },
            "can't be read",
        ),
    ],
    ids=["none", "unreadable", "empty", "rest-unreadable"],
)
def test_reservation_that_is_no_use_is_a_problem_in_words(
    notes: dict[str, str], words: str
) -> None:
    found = nvidia_protocol().held_by(decode_pod(pod_body("p", [Box()], notes)))
    assert found.slot_map is None
    assert words in found.problem
