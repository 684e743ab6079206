"""Whose node lock it is, by its whole name."""

from __future__ import annotations

import pytest

from hami_node.wire import names
from tests.fakes.pods import NODE, Box, Part, pod_body
from tests.fakes.waiting import eventually
from tests.integration.rig import LIMIT_S, Rig
from tests.reliability import shows

BOX = Box(memory_mib=1000)
FUTURE = "2099-01-01T00:00:00Z"


@shows(
    "P3",
    fault="pod abc is served while the node lock is that of abc-123, of another namespace's abc, "
    "or has no owner",
    happens="only a lock of exactly this pod is freed; the others stay for their owners",
)
@pytest.mark.parametrize(
    ("owner", "is_freed"),
    [
        (",default,abc", True),
        (",default,abc-123", False),
        (",default,ab", False),
        (",other,abc", False),
        ("", False),
    ],
    ids=["own", "longer-name", "shorter-name", "other-namespace", "ownerless"],
)
def test_only_the_own_lock_is_freed(rig: Rig, owner: str, is_freed: bool) -> None:
    for card, name in enumerate(("abc", "abc-123", "ab")):
        rig.place_one(name, card)
    elsewhere = pod_body("abc", [Box()])  # waits for its devices, so its lock is needed
    elsewhere["metadata"] |= {"namespace": "other", "uid": "uid-other-abc"}
    rig.api.create("pods", elsewhere)
    lock = f"{FUTURE}{owner}"
    rig.api.annotate("nodes", NODE, {names.NODE_LOCK: lock})
    rig.wait_node_seen()
    assert rig.admit("abc").is_admitted
    if is_freed:
        eventually(lambda: not rig.lock_text, LIMIT_S)
    else:
        rig.serve_one("after", 3)
        assert rig.lock_text == lock


@shows(
    "P3",
    fault="a pod is refused, and the API server fails the first attempt to free its lock",
    happens="the lock is freed as soon as the API server answers, and the next pod is served",
)
@pytest.mark.parametrize("outcome", [500, "reset"], ids=str)
def test_lock_of_a_refused_pod_is_freed_when_the_api_server_answers(
    rig: Rig, outcome: int | str
) -> None:
    rig.place("big", [BOX], {"main": [Part(uuid="GPU-elsewhere", memory_mib=1000)]}, is_locked=True)
    rig.wait_node_seen()
    rig.api.fail_next("patch", "nodes", outcome)
    assert "GPU-elsewhere" in rig.admit("big").refusal
    eventually(lambda: not rig.lock_text, LIMIT_S)
    rig.serve_one("next", 1)
