"""Modes, instances and whoever else works on the cards, as one."""

from __future__ import annotations

from hami_node.clock import Deadline
from hami_node.model import Container, Device, Node
from hami_node.vendors.divided import PartState, PartView
from hami_node.vendors.nvidia.mig.details import DriverCard
from hami_node.vendors.nvidia.node.mig.modes import NOT_SWITCHED, ModeKeeper
from hami_node.vendors.nvidia.node.mig.node_mig import HANDS_OFF, NodeMig
from hami_node.vendors.nvidia.node.mig.outside import QUIET_S, Outside
from hami_node.vendors.nvidia.node.sharing import offered_cards
from hami_node.vendors.on_node.answer import Slice
from hami_node.vendors.on_node.parts import PartNote, PartsKept, PartsSituation, PartsState
from tests.fakes.cards import card, uuid
from tests.fakes.clock import FakeClock
from tests.fakes.mig_cards import MIG, divided, instance
from tests.fakes.parts import FakeParts
from tests.unit.vendors.nvidia.node.mig.test_modes import FakeModes

AT_WORK = Node(name="n1", labels={"nvidia.com/mig.config.state": "pending"})
DONE = Node(name="n1", labels={"nvidia.com/mig.config.state": "success"})


class Desk:
    """The parts, of which a test commands driver and instances."""

    def __init__(self, *cards: Device) -> None:
        self.cards, self.clock = cards, FakeClock()
        self.instances, self.driver = FakeParts(), FakeModes()
        self.mig = NodeMig(
            self.instances,
            ModeKeeper(self.driver, lambda: MIG, self.clock),
            Outside(self.clock),
            lambda: self.cards,
        )

    def keep(self, node: Node | None = None) -> PartsKept:
        return self.mig.keep(PartsSituation(node=node, holders=()))

    def offered(self) -> tuple[Device, ...]:
        return offered_cards(self.mig.marked(self.cards), MIG)


def test_pass_has_the_notes_and_the_next_time_of_all() -> None:
    desk = Desk(divided(0, is_enabled=False))
    desk.driver.answers = ["process 4711 uses it"]
    desk.instances.kept = PartsKept(notes=(PartNote(reason="r", message="m"),), next_s=5.0)
    kept = desk.keep(AT_WORK)
    assert [note.reason for note in kept.notes] == [HANDS_OFF, NOT_SWITCHED, "r"]
    assert kept.next_s == 5.0
    assert desk.driver.asked == []
    assert desk.instances.situations[0].node == AT_WORK
    assert [note.reason for note in desk.keep(AT_WORK).notes] == ["r"], "once"
    assert [note.reason for note in desk.keep(DONE).notes] == [NOT_SWITCHED, "r"]
    assert [note.reason for note in desk.keep(AT_WORK).notes] == [HANDS_OFF, "r"], "again"


def test_cards_are_closed_while_somebody_else_works_on_them_and_open_again() -> None:
    desk = Desk(divided(0), card(1, slots=1))
    assert [found.healthy for found in desk.offered()] == [True, False]
    desk.keep(AT_WORK)
    first, second = desk.offered()
    assert "mig.config.state=pending" in first.unhealthy_reason
    assert "has no MIG" in second.unhealthy_reason
    assert desk.mig.state().hands_off
    desk.keep(DONE)
    assert desk.offered()[0].healthy
    desk.cards = (divided(0, instance(3, "2g.10gb", 0), instance(9, "1g.5gb", 6)),)
    assert "GPU instance 3, GPU instance 9 came" in desk.offered()[0].unhealthy_reason
    assert desk.keep(DONE).next_s == QUIET_S
    desk.clock.advance(QUIET_S)
    assert desk.keep(DONE).next_s is None
    assert desk.offered()[0].healthy


def test_marks_are_those_of_the_record_and_of_the_mode() -> None:
    desk = Desk(divided(0, instance(3, "2g.10gb", 0)), divided(1, is_enabled=False))
    part = PartView(
        card=uuid(0), kind="2g.10gb", start=0, size=2, state=PartState.MAKING, numbers=()
    )
    desk.instances.on_record = PartsState(own=(part,), failures={("f", "r"): 1})
    desk.driver.answers = ["process 4711 uses it"]
    desk.keep()
    first, second = desk.mig.marked(desk.cards)
    assert isinstance(first.detail, DriverCard)
    assert first.detail.ours == frozenset({3})
    assert "process 4711" in desk.offered()[1].unhealthy_reason
    state = desk.mig.state()
    assert (state.own, state.failures) == ((part,), {("f", "r"): 1})
    assert state.waits == {uuid(1): "process 4711 uses it"}
    del second


def test_instances_are_made_and_shown_by_whoever_keeps_them() -> None:
    desk = Desk(divided(0, is_enabled=False))
    granted = Slice(pod_uid="u", container=Container(name="c"), grants=())
    assert desk.mig.make(granted, Deadline.after(1, desk.clock.monotonic)) == ()
    seen = []
    desk.driver.during = lambda: seen.append(desk.mig.in_use())
    desk.keep()
    assert seen == [{uuid(0): "its MIG mode is switched on"}]
    assert desk.mig.in_use() == {}
