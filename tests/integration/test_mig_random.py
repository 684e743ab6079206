"""Pods with MIG instances come and go at random, and so does the daemon: what is left agrees."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial

import pytest

from tests.integration.mig_rig import BY_ROWS, BY_TEMPLATE, SPARE, MigRig, Row, Slot
from tests.seeds import seeds

STEPS = 30
SIZES = {"1g.5gb": 1, "2g.10gb": 2, "3g.20gb": 4}
STARTS = {"1g.5gb": range(7), "2g.10gb": (0, 2, 4), "3g.20gb": (0, 4)}


@pytest.fixture
def rig(bare_mig: MigRig) -> MigRig:
    """A node in MIG mode that serves."""
    bare_mig.launch()
    return bare_mig


@dataclass
class Scheduler:
    """What is reserved, and by whom; a place is free once its pod has left."""

    chance: random.Random
    held: dict[str, Row | Slot] = field(default_factory=dict)
    count: int = 0

    def choose(self) -> Row | Slot | None:
        card = self.chance.choice((BY_ROWS, BY_TEMPLATE, SPARE))
        if card == BY_TEMPLATE:
            taken = {it.slot for it in self.held.values() if isinstance(it, Slot)}
            slots = sorted(set(range(4)) - taken)
            return Slot(self.chance.choice(slots)) if slots else None
        rows = [it for it in self.held.values() if isinstance(it, Row) and it.card == card]
        used = {at for it in rows for at in range(it.start, it.start + SIZES[it.profile])}
        free = [
            Row(profile, start, card)
            for profile, starts in STARTS.items()
            for start in starts
            if not used & set(range(start, start + SIZES[profile]))
        ]
        return self.chance.choice(free) if free else None

    def name(self) -> str:
        self.count += 1
        return f"p{self.count}"


def step(rig: MigRig, scheduler: Scheduler) -> None:
    """Something happens on the node."""
    chance = scheduler.chance
    what = chance.choices(("come", "go", "kill", "kill in a call"), (6, 5, 1, 2))[0]
    if what == "go" and scheduler.held:
        name = chance.choice(sorted(scheduler.held))
        del scheduler.held[name]
        if chance.random() < 0.5:
            rig.end(name)
        rig.delete(name)
    elif what == "kill":
        rig.kill()
        rig.launch()
    elif what in ("come", "kill in a call"):
        grant = scheduler.choose()
        if grant is None:
            return
        name = scheduler.name()
        rig.divide(name, {"main": [grant]}, is_locked=True)
        if what == "kill in a call":
            moment = chance.choice(("before", "after"))
            rig.show(f"nth {name} changes * {chance.choice((1, 2))} {moment} kill")
        answer = rig.admit(name)
        if answer.is_admitted:
            scheduler.held[name] = grant
        else:
            assert what != "come", f"{answer.refusal}: {rig.log}"
            rig.delete(name)
        rig.show()
        if what == "kill in a call" and rig.is_dead():
            rig.wait_dead()
            rig.launch()


def _holds(rig: MigRig, card: int, profiles: list[str]) -> bool:
    return sorted(it.profile for it in rig.instances(card)) == profiles


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_instances_record_and_annotations_agree_after_all(rig: MigRig, seed: int) -> None:
    scheduler = Scheduler(random.Random(seed))
    for _ in range(STEPS):
        step(rig, scheduler)
    wanted: dict[int, list[str]] = {card: [] for card in (BY_ROWS, BY_TEMPLATE, SPARE)}
    for grant in scheduler.held.values():
        if isinstance(grant, Row):
            wanted[grant.card].append(grant.profile)
        else:
            wanted[BY_TEMPLATE].append("2g.10gb" if grant.slot else "1g.5gb")
    for card, profiles in wanted.items():
        rig.wait(partial(_holds, rig, card, sorted(profiles)))
    for name, grant in scheduler.held.items():
        if isinstance(grant, Row):
            instance = rig.at(grant.start, grant.card)
            assert (instance.profile, instance.uuid) == (
                grant.profile,
                rig.rows(name)[0]["migUUID"],
            )
    everything = [it.uuid for card in wanted for it in rig.instances(card)]
    assert len(set(everything)) == len(everything)
    assert all(everything)
    record = rig.on_record()
    assert all(uuid in record for uuid in everything)
    rig.wait(lambda: not rig.lock_text)
