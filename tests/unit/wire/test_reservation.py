from __future__ import annotations

from collections.abc import Mapping

import pytest

from hami_node.model import Container
from hami_node.wire.reservation import count_of

GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({}, 0),
        ({GPU: "2"}, 2),
        ({GPU: "1k"}, 1000),
        ({GPU: "-1"}, 0),
        ({GPU: "1.5"}, 0),
        ({GPU: "many"}, 0),
        ({"amd.com/gpu": "2"}, 0),
    ],
    ids=["none", "two", "suffix", "negative", "fraction", "words", "other-resource"],
)
def test_count_of_a_container_nonsense_is_none(limits: Mapping[str, str], count: int) -> None:
    assert count_of(Container(name="c", limits=limits), GPU) == count
