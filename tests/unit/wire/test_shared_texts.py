from __future__ import annotations

from typing import Any

import pytest

from hami_node.errors import WireError
from hami_node.wire import names
from hami_node.wire.objects import decode_pod
from hami_node.wire.shared_texts import _remembered
from hami_node.wire.values.scalars import _number_in, parse_whole

GRANTS = "GPU-1,NVIDIA,3000,30:;"


def _pod(**annotations: str) -> dict[str, Any]:
    when = "".join(("2026-11-21T", "00:35:16Z"))
    notes = {key.replace("__", "/"): value for key, value in annotations.items()}
    return {"metadata": {"name": "a", "creationTimestamp": when, "annotations": notes}}


def test_equal_annotations_of_a_pod_are_one_text() -> None:
    pod = decode_pod(_pod(allocated=GRANTS, left="".join((GRANTS[:9], GRANTS[9:])), other="x"))

    assert pod.annotations["allocated"] is pod.annotations["left"]
    assert pod.annotations == {"allocated": GRANTS, "left": GRANTS, "other": "x"}


def test_pods_made_in_the_same_moment_share_its_text() -> None:
    first, second = decode_pod(_pod()), decode_pod(_pod())

    assert first.creation_time is second.creation_time
    assert first.creation_time == "2026-11-21T00:35:16Z"


def test_pods_bound_in_the_same_moment_share_its_text() -> None:
    texts = [
        decode_pod(_pod(**{names.POD_TIME: "".join(("17800", "00000"))})).annotations[
            names.POD_TIME
        ]
        for _ in range(2)
    ]

    assert texts[0] is texts[1]
    assert texts[0] == "1780000000"


def test_what_a_tenant_writes_at_length_does_not_outlive_its_pod() -> None:
    before = _remembered.cache_info().currsize, _number_in.cache_info().currsize
    for number in range(3):
        long = f"{number}" * 200_000
        assert decode_pod(_pod(**{names.POD_TIME: long})).annotations[names.POD_TIME] == long
        with pytest.raises(WireError):
            parse_whole(long, "key")
    after = _remembered.cache_info().currsize, _number_in.cache_info().currsize

    assert after[1] == before[1]
    assert after[0] <= before[0] + 1  # the time of creation
