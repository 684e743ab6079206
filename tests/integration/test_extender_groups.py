"""Groups of pods through the extender's endpoints and its watches."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from hami_node.extender.grouping.gate import HOLD_S
from hami_node.simulate.store import Json
from hami_node.wire import names
from tests.fakes.pods import Box
from tests.fakes.waiting import eventually
from tests.integration.extender_rig import CARDS, LIMIT_S, MEMORY_MIB, ExtenderRig, pod_manifest

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def rig() -> Iterator[ExtenderRig]:
    """One node of eight cards, and two groups that need all of them."""
    rig = ExtenderRig()
    rig.write_node("n0", has_identity=True)
    rig.start()
    for group in ("a", "b"):
        notes = {names.POD_GROUP: group, names.POD_GROUP_MIN: str(CARDS)}
        for number in range(CARDS):
            manifest = pod_manifest(f"{group}{number}", (Box(memory_mib=MEMORY_MIB),), notes)
            rig.api.create("pods", manifest)
    rig.settle()
    yield rig
    rig.close()


def placed(rig: ExtenderRig, name: str) -> bool:
    return bool(rig.filter(rig.api.read("pods", name, "default"), ["n0"])["NodeNames"])


def held(rig: ExtenderRig, group: str) -> int:
    return sum(
        pod.name.startswith(group) and bool(rig.state.reservation_of(pod.uid)) for pod in rig.pods()
    )


def test_two_groups_that_ask_at_once_run_one_after_the_other(rig: ExtenderRig) -> None:
    both = [f"{group}{number}" for number in range(CARDS) for group in ("a", "b")]
    threads = [threading.Thread(target=placed, args=(rig, name)) for name in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = (held(rig, "a"), held(rig, "b"))
    assert sorted(counts) == [0, CARDS]
    first, second = ("a", "b") if counts[0] else ("b", "a")
    for number in range(CARDS):
        name = f"{first}{number}"
        assert rig.bind(rig.api.read("pods", name, "default"), "n0") == ""
        rig.serve(name)
        rig.delete(name)
    rig.settle()
    eventually(lambda: placed(rig, f"{second}0"), LIMIT_S)
    assert all(placed(rig, f"{second}{number}") for number in range(1, CARDS))
    assert held(rig, second) == CARDS
    rig.settle()
    assert rig.wrongs() == []
    assert rig.drift() == []


def test_member_that_fails_makes_room_for_the_other_group(rig: ExtenderRig) -> None:
    def fail(body: Json) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        body["status"]["conditions"] = [condition]

    assert placed(rig, "a0")
    assert placed(rig, "a1")
    assert not placed(rig, "b0")
    rig.edit("a0", fail)
    eventually(lambda: placed(rig, "b0"), LIMIT_S)
    assert all(placed(rig, f"b{number}") for number in range(1, CARDS))
    assert held(rig, "a") == 0


def test_group_that_does_not_come_holds_nothing_for_long(rig: ExtenderRig) -> None:
    assert placed(rig, "a0")
    rig.pass_time(HOLD_S + 1)
    eventually(lambda: rig.state.charges() == {}, LIMIT_S)
    eventually(lambda: names.POD_NODE not in rig.pods()[0].annotations, LIMIT_S)
    rig.settle()
    assert rig.drift() == []
