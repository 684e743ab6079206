"""Fixed shares, whatever comes: pods, restarts, other sizes or modes, lost records, sick cards.

After each step: no card holds more than it has, by what containers were really given; and every
container that was admitted was given exactly what its device IDs are.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest

from hami_node.model import ContainerKind, Uuid
from hami_node.node.resource import NodeResource
from hami_node.simulate.kubelet import Admission
from hami_node.vendors.nvidia.shares import share_of, share_resource, shares_in
from tests.fakes.cards import card, uuid
from tests.fakes.pods import Box, Part
from tests.fakes.waiting import eventually
from tests.integration.rig import GPU, LIMIT_S
from tests.integration.share_rig import ShareRig, Shares, cards_of
from tests.seeds import seeds

CARDS, STEPS = 3, 60
MEMORY_MIB = 16383  # no multiple of any number of shares
LAYOUTS = ("4", "3", "1", "0=2,*=7", "0=1,1=4", "0=100,*=5", "*=2")
WHOLE = {uuid(i): card(i, memory_mib=MEMORY_MIB) for i in range(CARDS)}


@pytest.fixture
def bare() -> Iterator[ShareRig]:
    """A node whose daemon is not started yet."""
    rig = ShareRig(cards=CARDS)
    try:
        yield rig
    finally:
        rig.close()


class Node:
    """What a random history does to a node, and what containers were given by it."""

    def __init__(self, rig: ShareRig, seed: int) -> None:
        self.rig, self.random = rig, random.Random(seed)
        self.held: dict[str, Counter[str]] = {}
        self.steady: dict[str, Counter[str]] = {}  # once the init containers have ended
        self.count = 0
        self.layout, self.is_shared = "4", False
        self.switch(self.layout)

    # -- steps -------------------------------------------------------------------------------------
    def step(self) -> None:
        steps = {self.admit: 10, self.admit_at_once: 6, self.end: 6, self.slice: 3}
        steps |= {self.relayout: 2, self.restart: 1, self.lose: 1}
        steps |= {self.restart_kubelet: 1, self.sicken: 1}
        self.random.choices(list(steps), list(steps.values()))[0]()
        self.check()

    def admit(self) -> None:
        """A pod of one to three containers; any may be refused."""
        served = [] if self.is_shared else [each.name for each in self.resources()]
        if not served:
            return
        resource = self.random.choice(served)
        kinds = self.random.choices(list(ContainerKind), (1, 1, 4), k=self.random.randint(1, 3))
        boxes = [
            Shares(name=f"c{i}", resource=resource, count=self.random.randint(1, 3), kind=kind)
            for i, kind in enumerate(sorted(kinds, key=lambda kind: kind is ContainerKind.APP))
        ]
        name = self.next_name()
        answer = self.rig.run(name, *boxes)
        if answer.is_admitted:
            self.held[name], self.steady[name] = peak(boxes, answer)
            for box in boxes:
                assert dict(cards_of(answer, box.name)) == wanted(box, answer)

    def admit_at_once(self) -> None:
        """kubelet takes any share that it has not given, as before it knows which are closed."""
        if self.is_shared or not self.resources():
            return
        resource = self.random.choice(self.resources()).name
        given = {
            device_id
            for held in self.rig.kubelet.List(None, None).pod_resources  # type: ignore[arg-type]  # not used
            for container in held.containers
            for devices in container.devices
            if devices.resource_name == resource
            for device_id in devices.device_ids
        }
        free = sorted(self.rig.kubelet.devices(resource).keys() - given)
        count = self.random.randint(1, 3)
        if len(free) < count:
            return
        box, name = Shares(resource=resource, count=count), self.next_name()
        with self.rig.kubelet.choosing(self.random.sample(free, count)):
            answer = self.rig.run(name, box)
        if answer.is_admitted:
            self.held[name], self.steady[name] = peak([box], answer)
            assert dict(cards_of(answer)) == wanted(box, answer)

    def slice(self) -> None:
        """A slice that a scheduler placed, in the other mode; it may be refused."""
        if not self.is_shared:
            return
        name, memory = self.next_name(), self.random.randint(1, MEMORY_MIB)
        part = Part(uuid=uuid(self.random.randrange(CARDS)), memory_mib=memory)
        self.rig.place(name, [Box(memory_mib=memory)], {"main": [part]})
        if self.rig.admit(name).is_admitted:
            self.held[name] = Counter({part.uuid: memory})

    def end(self) -> None:
        if self.held:
            name = self.random.choice(sorted(self.held))
            del self.held[name]
            self.rig.end(name)

    def restart(self) -> None:
        self.rig.stop()
        self.switch(self.layout)

    def relayout(self) -> None:
        """Other sizes, or the other mode."""
        self.rig.stop()
        self.is_shared = self.random.random() < 0.3
        self.layout = self.random.choice(LAYOUTS)
        self.switch(self.layout)

    def lose(self) -> None:
        """The record is gone while the daemon is down; what init containers had is nowhere else."""
        self.held = {name: self.steady.get(name, held) for name, held in self.held.items()}
        self.rig.stop()
        for path in self.rig.record.glob("grants*"):
            path.unlink()
        self.switch(self.layout)

    def restart_kubelet(self) -> None:
        self.rig.kubelet.restart()
        self.wait_offered()

    def sicken(self) -> None:
        self.rig.write_cards(lost=[self.random.randrange(CARDS)], memory_mib=MEMORY_MIB)

    # -- parts -------------------------------------------------------------------------------------
    def switch(self, layout: str) -> None:
        """Start the daemon in the wanted mode, with all cards well."""
        self.rig.write_cards(memory_mib=MEMORY_MIB)
        if self.is_shared:
            self.rig.start(scan_interval_s="0.05")
        else:
            self.rig.start_shares(layout, scan_interval_s="0.05")
        self.wait_offered()

    def wait_offered(self) -> None:
        for each in self.resources():
            eventually(partial(self.rig.kubelet.devices, each.name), LIMIT_S)

    def resources(self) -> list[NodeResource]:
        assert self.rig.daemon is not None
        return [each for each in self.rig.daemon.resources if each.inventory.cards]

    def next_name(self) -> str:
        self.count += 1
        return f"p{self.count}"

    def everything_is_free_again(self) -> None:
        """Once all pods have ended every share of every card is served."""
        for name in sorted(self.held):
            self.rig.end(name)
        self.rig.stop()
        self.is_shared = False
        self.switch("4")
        eventually(lambda: self.rig.offered() == 4 * CARDS, LIMIT_S)
        for _ in range(4 * CARDS):
            answer = self.rig.run(self.next_name())
            assert answer.is_admitted, answer.refusal

    def check(self) -> None:
        """No card holds more than it has."""
        total: Counter[str] = Counter()
        for held in self.held.values():
            total.update(held)
        assert all(memory <= MEMORY_MIB for memory in total.values()), total


def peak(boxes: list[Shares], answer: Admission) -> tuple[Counter[str], Counter[str]]:
    """What a pod takes of each card, in MiB: at its peak, and once its init containers ended."""
    beside, most = Counter[str](), Counter[str]()
    for box in boxes:
        own = Counter(
            {uuid: int(limit.removesuffix("m")) for uuid, limit in cards_of(answer, box.name)}
        )
        if box.kind is ContainerKind.INIT:
            most |= beside + own
        else:
            beside += own
    return most | beside, beside


def wanted(box: Shares, answer: Admission) -> dict[str, str]:
    """What the IDs of a container mean."""
    shares = shares_in(box.resource, GPU)
    assert share_resource(GPU, shares) == box.resource
    counts = Counter(name.rpartition("-")[0] for name in answer.device_ids[box.name])
    return {key: f"{share_of(WHOLE[Uuid(key)], n, shares)[0]}m" for key, n in counts.items()}


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_random_history_no_card_is_ever_over_committed(bare: ShareRig, seed: int) -> None:
    node = Node(bare, seed)
    for _ in range(STEPS):
        node.step()
    node.everything_is_free_again()
