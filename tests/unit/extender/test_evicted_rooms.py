"""The room for which others were evicted is kept although kube-scheduler forgets its nomination."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

import pytest

from hami_node.errors import KubeError, NotLeading
from hami_node.extender.filter import Outlets
from hami_node.extender.preemption.kept_rooms import KEPT_S, LEFT_S
from hami_node.extender.preemption.preempt import PodPreemption, Protection
from hami_node.simulate.store import Json
from hami_node.wire import names
from tests.reliability import shows
from tests.unit.extender.desk import MEMORY_MIB, SCHEDULER, Desk

HIGH: Final = 100
PREEMPTED: Final = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "PreemptionByScheduler",
}


class NoBudgets:
    def list_disruption_budgets(self) -> tuple[Mapping[str, object], ...]:
        return ()


class Scheduling(Desk):
    """A desk that answers /preempt too, with a card of `n0` that the pod `low` has."""

    def __init__(self, beside: Desk | None = None) -> None:
        super().__init__(*(() if beside else ("n0",)), beside=beside)
        self.preemption = PodPreemption(
            self.state,
            self.writer,
            Outlets(
                notify=self.notes.append, on_result=self.results.append, require_lead=self.fence
            ),
            Protection(NoBudgets(), self.clock),
            self.clock,
            lambda: None,
        )
        if beside is None:
            self.start("low", 0)
            self.create("high", HIGH)

    def create(
        self, name: str, priority: int, annotations: Mapping[str, str] | None = None
    ) -> None:
        self.add_pod(name, memory_mib=MEMORY_MIB, annotations=annotations)
        self.edit_pod(name, spec={"priority": priority})
        self.sync()

    def start(self, name: str, priority: int) -> None:
        self.create(name, priority)
        assert self.bind(name, self.choose(name)) == ""
        self.sync()

    def preempt(self, pod: Json | str, *victims: str) -> Sequence[str]:
        """The victims on `n0` that are left of these."""
        given = self.kube.store.read("pods", "default", pod) if isinstance(pod, str) else pod
        proposed = {"Pods": [{"UID": f"uid-{victim}"} for victim in victims]}
        body = {
            "Pod": given,
            "NodeNameToMetaVictims": {"n0": proposed},
        }
        answer = json.loads(self.preemption.answer(json.dumps(body).encode()))
        found = answer["NodeNameToMetaVictims"].get("n0", {"Pods": []})["Pods"]
        return [pod["UID"].removeprefix("uid-") for pod in found]

    def nominate(self, name: str, node: str) -> None:
        self.edit_pod(name, status={"nominatedNodeName": node})

    def evict(self, name: str) -> None:
        """As kube-scheduler does: the pod has time to end."""
        self.edit_pod(name, status={"conditions": [PREEMPTED]})
        self.begin_deletion(name)

    def evict_for(self, name: str, victim: str) -> None:
        """A preemption, up to the nomination."""
        assert self.choose(name) == ""
        assert self.preempt(name, victim) == [victim]
        self.evict(victim)
        self.nominate(name, "n0")

    def end(self, name: str) -> None:
        self.delete_pod(name)


def both(*desks: Desk) -> None:
    """All watches catch up."""
    for desk in desks:
        desk.sync()


@shows(
    "E5",
    fault="while leaders change a call fails, and kube-scheduler clears the nomination of a pod",
    happens="the room for which others are evicted stays the pod's, and nobody else is evicted",
)
@pytest.mark.parametrize("is_same", [True, False], ids=["same leader", "another leader"])
def test_room_outlasts_a_nomination_that_is_cleared(*, is_same: bool) -> None:
    desk = Scheduling()
    other = desk if is_same else Scheduling(beside=desk)
    desk.evict_for("high", "low")
    both(desk, other)
    desk.is_leading = False
    with pytest.raises(NotLeading):
        desk.ask("high")
    desk.nominate("high", "")
    both(desk, other)
    other.is_leading = True
    other.state.begin_term(SCHEDULER)
    other.create("rival", 0)
    assert other.choose("high") == ""
    assert other.preempt("high", "low") == ["low"], "it is nominated again"
    other.clock.advance(2 * KEPT_S)
    assert other.choose("rival") == ""
    other.end("low")
    both(desk, other)
    other.clock.advance(LEFT_S - 1)
    assert other.choose("rival") == ""
    assert other.choose("high") == "n0"
    assert other.bind("high", "n0") == ""
    both(desk, other)
    assert names.POD_VICTIMS not in other.notes_of("high")


def test_nobody_else_is_evicted_for_a_pod_whose_victims_still_end() -> None:
    desk = Scheduling()
    desk.evict_for("high", "low")
    desk.sync()
    desk.nominate("high", "")
    desk.sync()
    desk.clock.advance(LEFT_S + 1)
    for proposed in (("other",), ("low", "other")):
        assert desk.preempt("high", *proposed) == []
    assert desk.results[-2:] == ["awaited", "awaited"]


@pytest.mark.parametrize("cleared_first", [True, False])
def test_room_is_free_10_s_after_the_last_victim_has_ended(*, cleared_first: bool) -> None:
    desk = Scheduling()
    desk.evict_for("high", "low")
    desk.sync()
    for is_clearing in (cleared_first, not cleared_first):
        desk.clock.advance(LEFT_S + 1)
        if is_clearing:
            desk.nominate("high", "")
        else:
            desk.end("low")
        desk.sync()
    desk.create("rival", 0)
    for number in range(3):  # whatever its owner writes into the pod
        desk.clock.advance(LEFT_S / 3 - 0.01)
        desk.edit_pod("high", annotations={"any": str(number)})
        desk.sync()
        assert desk.choose("rival") == ""
    desk.clock.advance(1.0)
    assert desk.choose("rival") == "n0"


def test_nomination_is_noted_in_one_patch_where_victims_are_named_only() -> None:
    desk = Scheduling()
    desk.kube.calls.clear()
    desk.create("meek", 0)
    assert desk.preempt("meek", "low") == []
    assert desk.kube.calls == []
    assert desk.preempt("high", "low") == ["low"]
    assert desk.kube.calls == ["patch_pod_exactly"]
    assert json.loads(desk.notes_of("high")[names.POD_VICTIMS]) == {"n0": ["uid-low"]}
    desk.sync()
    assert desk.preempt("high", "low") == ["low"]
    assert desk.kube.calls == ["patch_pod_exactly"], "it is written once"


def test_pods_are_evicted_although_the_note_can_t_be_written() -> None:
    desk = Scheduling()
    desk.kube.fail("patch_pod_exactly", KubeError("no", 500))
    assert desk.preempt("high", "low") == ["low"]
    desk.evict("low")
    desk.end("low")
    desk.create("rival", 0)
    assert desk.choose("rival") == ""


@pytest.mark.parametrize("end", ["deleted", "bound"])
def test_nobody_is_evicted_for_a_pod_that_is_not_to_be_placed_any_more(end: str) -> None:
    desk = Scheduling()
    body = desk.kube.store.read("pods", "default", "high")
    if end == "bound":
        desk.edit_pod("high", spec={"nodeName": "n7"})
    else:
        desk.delete_pod("high")
    assert desk.preempt(body, "low") == []
    assert desk.results[-1] == "gone"


# -- notes that nobody of us wrote -----------------------------------------------------------------


def forged(node: str = "n0", uid: str = "uid-low") -> dict[str, str]:
    return {names.POD_VICTIMS: json.dumps({node: [uid]})}


@shows(
    "E5",
    fault="a tenant notes on its own pod that others are evicted for it, where no policy denies it",
    happens="nothing is kept: only a nomination and evictions that kube-scheduler wrote count",
)
@pytest.mark.parametrize("is_new", [False, True], ids=["the leader", "a new leader"])
@pytest.mark.parametrize(
    "note",
    [forged(), forged(uid="uid-nobody"), forged("n7"), {names.POD_VICTIMS: "[{"}],
    ids=["victim", "unknown victim", "unknown node", "bad"],
)
@pytest.mark.parametrize("victim", ["runs", "deleted by its owner", "ended"])
def test_forged_note_keeps_nothing(note: Mapping[str, str], victim: str, *, is_new: bool) -> None:
    desk = Scheduling()
    desk.create("forger", HIGH, note)
    if victim == "deleted by its owner":
        desk.begin_deletion("low")
    elif victim == "ended":
        desk.delete_pod("low")
    desk.sync()
    judge = Scheduling(beside=desk) if is_new else desk
    judge.sync()
    judge.state.begin_term(SCHEDULER)
    if victim != "ended":
        desk.delete_pod("low")
    judge.create("rival", 0)
    assert judge.choose("rival") == "n0"


def test_forged_victims_do_not_keep_the_room_of_a_real_nomination() -> None:
    """By CPU, say; its owner lets a pod of its own end for hours."""
    desk = Scheduling()
    desk.create("forger", HIGH, forged())
    desk.begin_deletion("low")
    desk.nominate("forger", "n0")
    desk.sync()
    desk.nominate("forger", "")
    desk.sync()
    desk.clock.advance(LEFT_S + 1)
    desk.end("low")
    desk.sync()
    desk.create("rival", 0)
    assert desk.choose("rival", "n0") == "n0"


@pytest.mark.parametrize("priority", [0, HIGH])
def test_room_is_kept_against_no_higher_priority(priority: int) -> None:
    desk = Scheduling()
    desk.evict_for("high", "low")
    desk.sync()
    desk.nominate("high", "")
    desk.sync()
    desk.end("low")
    desk.sync()
    desk.create("rival", priority + 1)
    assert desk.choose("rival") == ("n0" if priority == HIGH else "")
