"""NUMA nodes for kubelet: shown only while no reserved pod can be rejected for them.

The rules of kubelet's topology manager are in `tests/fakes/topology_manager`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from hami_node.model import Device, Uuid
from hami_node.node.cards.inventory import kubelet_list
from hami_node.node.cards.numa_hints import SURE_S, NumaHints, why_hidden
from hami_node.node.cards.preference import CardChoice, choose_ids
from hami_node.record.ledger import Entry
from tests.fakes.cards import card, uuid
from tests.fakes.clock import FakeClock
from tests.fakes.ledgers import an_entry
from tests.fakes.topology_manager import NumaNode, Policy, Slot

GPU = "nvidia.com/gpu"
CPUS = 32
STRICT = (Policy.RESTRICTED, Policy.SINGLE)


@dataclass(kw_only=True)
class Machine:
    """A node with two NUMA nodes, a scheduler that reserves cards, and what the daemon reports.

    `is_naive`: each card's NUMA node is always shown.
    """

    policy: Policy
    cards: tuple[Device, ...]
    is_on: bool = True
    is_naive: bool = False
    clock: FakeClock = field(default_factory=FakeClock)
    entries: dict[str, Entry] = field(default_factory=dict)
    reserved: dict[str, list[Uuid]] = field(default_factory=dict)
    lists: int = 0

    def __post_init__(self) -> None:
        self.hints = NumaHints(self.clock, self.count_list)
        self.kubelet = NumaNode(policy=self.policy, cpus={0: CPUS, 1: CPUS}, slots=self.slots())
        self.update()
        self.clock.advance(SURE_S)

    def count_list(self) -> None:
        self.lists += 1

    def slots(self) -> list[Slot]:
        """What kubelet was sent."""
        shows = self.is_naive or (self.is_on and self.hints.are_shown)
        return [
            Slot(
                id=device.ID,
                is_healthy=device.health == "Healthy",
                nodes=frozenset(node.ID for node in device.topology.nodes),
            )
            for device in kubelet_list(self.cards, shows_numa=shows).devices
        ]

    def update(self) -> None:
        if self.is_on:
            self.hints.update(self.cards, GPU, self.entries.values())
        self.kubelet.slots = self.slots()

    def room(self, count: int, rng: random.Random) -> list[Uuid] | None:
        """A reservation of so many cards, as a scheduler that knows no NUMA nodes makes it."""
        used = Counter(uuid for held in self.reserved.values() for uuid in held)
        open_cards = [c.uuid for c in self.cards if c.healthy and used[c.uuid] < c.slots]
        return rng.sample(open_cards, count) if len(open_cards) >= count else None

    def admit(self, pod: str, cpus: int, reserved: list[Uuid]) -> bool:
        def prefer(available: list[str], size: int) -> list[str]:
            choice = CardChoice(cards=self.cards)
            return choose_ids(available, [], size, reserved=reserved, choice=choice)

        ids = self.kubelet.admit(pod, cpus, len(reserved), prefer)
        if ids is None:
            return False
        self.reserved[pod] = reserved
        is_aligned = self.is_on and self.hints.are_sure()
        self.entries[pod] = an_entry(pod, device_ids=ids, is_aligned=is_aligned)
        self.update()
        self.clock.advance(SURE_S)
        return True

    def end(self, pod: str) -> None:
        self.kubelet.end(pod)
        del self.entries[pod], self.reserved[pod]
        self.update()

    def fits(self, cpus: int) -> bool:
        """The CPUs are free on a NUMA node that has a card."""
        numas = {c.numa for c in self.cards if c.healthy}
        return any(free >= cpus for node, free in self.kubelet.free_cpus.items() if node in numas)


def lives(machine: Machine, seed: int) -> Iterator[tuple[str, bool, bool]]:
    """Pods come and go: (its name, whether its CPUs fit at a card, whether it was admitted)."""
    rng = random.Random(seed)
    for turn in range(150):
        if machine.reserved and rng.random() < (0.2 if turn < 100 else 0.7):
            machine.end(rng.choice(sorted(machine.reserved)))
            continue
        cpus, count = rng.choice((0, 0, 1, 2, 4, 8)), rng.choice((1, 1, 1, 2, 3, 4, 5, 6, 7, 8))
        reserved = machine.room(count, rng)
        if reserved is not None:
            fits = not cpus or machine.fits(cpus)
            yield f"p{turn}", fits, machine.admit(f"p{turn}", cpus, reserved)


def two_sockets(**changes: object) -> tuple[Device, ...]:
    return tuple(card(i, numa=i // 4, slots=6, **changes) for i in range(8))


LAYOUTS = {
    "four-and-four": two_sockets(),
    "all-on-one": tuple(card(i, numa=0, slots=6) for i in range(8)),
    "seven-and-one": tuple(card(i, numa=int(i == 7), slots=6) for i in range(8)),
    "one-unknown": tuple(card(i, numa=None if i == 3 else i // 4, slots=6) for i in range(8)),
    "one-sick": tuple(card(i, numa=i // 4, slots=6, healthy=i != 2) for i in range(8)),
    "not-shared": tuple(card(i, numa=i // 4, slots=1) for i in range(8)),
}


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("cards", LAYOUTS.values(), ids=LAYOUTS)
def test_with_hints_whoever_fits_beside_a_card_is_admitted_and_survives_kubelets_restart(
    policy: Policy, cards: tuple[Device, ...]
) -> None:
    for seed in range(8):
        machine = Machine(policy=policy, cards=cards)
        for pod, fits, is_admitted in lives(machine, seed):
            assert is_admitted or not fits, (seed, pod, machine.kubelet)
            assert not machine.kubelet.killed_by_restart(), (seed, pod)


@pytest.mark.parametrize("policy", STRICT)
@pytest.mark.parametrize("layout", ["four-and-four", "seven-and-one", "one-unknown", "not-shared"])
def test_hints_without_this_care_would_have_pods_rejected(policy: Policy, layout: str) -> None:
    """The model shows the fault that the rules above keep out."""
    rejected = 0
    for seed in range(8):
        machine = Machine(policy=policy, cards=LAYOUTS[layout], is_on=False, is_naive=True)
        rejected += sum(fits and not is_in for _, fits, is_in in lives(machine, seed))
    assert rejected


def test_hints_go_before_a_numa_node_runs_out_and_return_when_the_last_unaligned_has_ended() -> (
    None
):
    machine = Machine(policy=Policy.SINGLE, cards=LAYOUTS["four-and-four"])
    pods = [f"p{i}" for i in range(10)]
    for pod in pods:
        machine.admit(pod, 1, [uuid(int(pod[1:]) % 4)])
    assert not machine.hints.are_shown, "15 free of 24, and 16 have to be"
    assert [pod for pod in pods if not machine.entries[pod].is_aligned] == ["p9"]
    machine.end("p0")
    machine.end("p1")
    assert not machine.hints.are_shown, "p9 may have its CPUs elsewhere"
    machine.end("p9")
    assert machine.hints.are_shown


@pytest.mark.parametrize(
    ("cards", "entries", "why"),
    [
        (LAYOUTS["one-unknown"], [], "the NUMA node of card 3 is unknown"),
        (two_sockets(), [an_entry("p")], "default/p/main was admitted without NUMA nodes"),
        (two_sockets(), [an_entry("p", resource="other")], ""),
        (LAYOUTS["not-shared"], [], "NUMA node 0 has 4 free device IDs, and 16 have to be"),
        (tuple(card(i, numa=i // 4, healthy=i < 4) for i in range(8)), [], ""),
        ((), [], ""),
    ],
    ids=["unknown", "unaligned", "other-resource", "few-slots", "node-out-of-order", "no-cards"],
)
def test_reason_is_said(cards: tuple[Device, ...], entries: list[Entry], why: str) -> None:
    said = why_hidden(cards, GPU, entries)
    assert said.startswith(why)
    assert bool(said) == bool(why)


def test_container_counts_as_aligned_only_when_hints_were_there_for_a_while() -> None:
    clock = FakeClock()
    hints = NumaHints(clock, lambda: None)
    assert not hints.are_sure()
    hints.update(two_sockets(), GPU, [])
    assert not hints.are_sure()
    clock.advance(SURE_S)
    assert hints.are_sure()
    hints.hide()
    assert not hints.are_sure()


def test_every_free_id_of_a_card_counts_once() -> None:
    cards = tuple(card(i, numa=0, slots=5) for i in range(2))
    ids = tuple(cards[0].device_ids)
    entries = [an_entry("p", name, device_ids=ids, is_aligned=True) for name in ("init", "main")]
    assert why_hidden(cards, GPU, entries) == ""
    more = an_entry("q", device_ids=(f"{uuid(1)}-0", f"{uuid(1)}-1"), is_aligned=True)
    assert why_hidden(cards, GPU, [*entries, more]).startswith("NUMA node 0 has 3 free")
