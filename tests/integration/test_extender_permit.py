"""A pod that waits between /filter and /bind, in Permit or for its volumes, keeps its cards.

kube-scheduler does not tell an extender that a pod waits; it writes a condition when it gives the
pod up, unless that very condition stands there.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hami_node.simulate.store import Json
from hami_node.wire import names
from tests.fakes.pods import Box
from tests.fakes.waiting import eventually
from tests.integration.extender_rig import CARDS, LIMIT_S, MEMORY_MIB, ExtenderRig, pod_manifest
from tests.reliability import shows

pytestmark = pytest.mark.timeout(120)
LONGEST_WAIT_S = 25 * 60.0


@pytest.fixture
def rig() -> Iterator[ExtenderRig]:
    """A node, the pod `gang` that asks for all of it, and another one that does so too."""
    rig = ExtenderRig()
    rig.write_node("n0", has_identity=True)
    rig.start()
    for name in ("gang", "other"):
        box = Box(cards=CARDS, memory_mib=MEMORY_MIB)
        rig.api.create("pods", pod_manifest(name, (box,), {}))
    rig.settle()
    yield rig
    rig.close()


def placed(rig: ExtenderRig, name: str) -> bool:
    return bool(rig.filter(rig.api.read("pods", name, "default"), ["n0"])["NodeNames"])


def given_up(rig: ExtenderRig, why: str) -> None:
    """What kube-scheduler writes when the pod could not be bound."""

    def change(body: Json) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        body["status"]["conditions"] = [condition | {"message": why}]

    rig.edit("gang", change)
    rig.settle()


def waits(rig: ExtenderRig, seconds: float) -> None:
    rig.pass_time(seconds)
    rig.sweep()
    rig.extender.parts.releaser.look()


@shows(
    "E5",
    fault="a pod waits in a Permit plugin for minutes, after a failure that is not told twice",
    happens="it keeps its cards: until a new condition, its next /filter, deletion or 25 minutes",
)
def test_pod_that_waits_in_permit_keeps_its_cards_until_it_is_given_up(rig: ExtenderRig) -> None:
    assert placed(rig, "gang")
    given_up(rig, "rejected by gang-permit: 1 of 3 pods")
    eventually(lambda: rig.state.charges() == {}, LIMIT_S)
    assert placed(rig, "gang")
    waits(rig, 60.0)
    assert not placed(rig, "other")
    waits(rig, LONGEST_WAIT_S - 120.0)
    assert not placed(rig, "other")
    given_up(rig, "rejected by gang-permit: 2 of 3 pods")
    eventually(lambda: placed(rig, "other"), LIMIT_S)
    rig.settle()
    assert rig.wrongs() == []


@shows(
    "E5",
    fault="kube-scheduler gives a pod up and tries one that waits before the cards are free",
    happens="one write to the node lets it try the waiting one again as soon as they are",
)
def test_pod_that_came_too_early_is_taken_up_once_the_cards_are_free(rig: ExtenderRig) -> None:
    def labels() -> Json:
        return dict(rig.api.read("nodes", "n0")["metadata"].get("labels", {}))

    assert placed(rig, "gang")
    given_up(rig, "rejected by gang-permit: 1 of 3 pods")
    eventually(lambda: rig.state.charges() == {}, LIMIT_S)
    waits(rig, 1.0)
    assert names.OPENED_NODE not in labels(), "nobody waits"
    assert placed(rig, "gang")
    assert not placed(rig, "other")
    given_up(rig, "rejected by gang-permit: 2 of 3 pods")
    eventually(lambda: names.OPENED_NODE in labels(), LIMIT_S)
    assert placed(rig, "other")


def test_pod_that_waits_longer_than_any_permit_loses_its_cards(rig: ExtenderRig) -> None:
    assert placed(rig, "gang")
    waits(rig, LONGEST_WAIT_S + 1.0)
    assert placed(rig, "other")


@shows(
    "E5",
    fault="a pod names a group of Kueue, Volcano or coscheduling, whose other pods never come",
    happens="it gets its cards like any other: whoever made the group holds its pods back",
)
@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({"kueue.x-k8s.io/pod-group-total-count": "3"}, id="kueue"),
        pytest.param({"scheduling.k8s.io/group-name": "g"}, id="volcano"),
        pytest.param({"hami-node.io/pod-group-min": "3"}, id="a minimum of ours"),
    ],
)
def test_pod_of_a_group_is_placed_for_itself(rig: ExtenderRig, annotations: dict[str, str]) -> None:
    pod = pod_manifest("member", (Box(memory_mib=1000),), annotations)
    pod["metadata"]["labels"] = {
        "kueue.x-k8s.io/pod-group-name": "g",
        "scheduling.x-k8s.io/pod-group": "g",
    }
    rig.api.create("pods", pod)
    rig.settle()
    assert placed(rig, "member")
