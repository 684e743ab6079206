"""Devices that vanish while containers hold them: one Event for each, once it is sure."""

from __future__ import annotations

from hami_node.node.holdings.vanished import SURE_S, Vanished
from hami_node.ports import EventNote
from tests.fakes.clock import FakeClock
from tests.fakes.ledgers import an_entry

RESOURCE = "nvidia.com/mig-1g.5gb"
HELD = an_entry("p", resource=RESOURCE, device_ids=("MIG-1", "MIG-2"))
LOST = {RESOURCE: frozenset({"MIG-1"})}


class Bench:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.notes: list[EventNote] = []
        self.vanished = Vanished(self.clock, self.notes.append)


def test_people_are_told_once_after_a_while() -> None:
    bench = Bench()
    bench.vanished.look([HELD], LOST)
    assert bench.notes == []
    for _ in range(3):
        bench.clock.advance(SURE_S)
        bench.vanished.look([HELD], LOST)
    (note,) = bench.notes
    assert (note.kind, note.name, note.uid, note.reason) == (
        "Pod",
        "p",
        "uid-p",
        "DeviceVanished",
    )
    assert "MIG-1 of nvidia.com/mig-1g.5gb" in note.message
    assert "delete the pod" in note.message


def test_driver_that_is_unwell_for_a_moment_is_nobodys_news() -> None:
    bench = Bench()
    bench.vanished.look([HELD], LOST)
    bench.clock.advance(SURE_S - 1)
    bench.vanished.look([HELD], {RESOURCE: frozenset()})
    bench.vanished.look([HELD], LOST)
    bench.clock.advance(1)
    bench.vanished.look([HELD], LOST)
    assert bench.notes == []


def test_same_id_of_another_resource_or_of_nobody_is_not_told() -> None:
    bench = Bench()
    other = an_entry("q", resource="nvidia.com/gpu", device_ids=("MIG-1",))
    for entries in ([other], []):
        bench.vanished.look(entries, LOST)
        bench.clock.advance(SURE_S)
        bench.vanished.look(entries, LOST)
    assert bench.notes == []
