"""Random lives of pods on one node: whatever happens in between, each gets its own slice."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

import pytest

from hami_node.errors import AllocationError, KubeletError
from hami_node.model import ContainerKind
from hami_node.vendors.nvidia import names as nvidia_names
from tests.fakes.cards import uuid
from tests.fakes.pods import Box, Generation, Part
from tests.integration.desk import AllocatingDaemon, World
from tests.reliability import shows
from tests.seeds import seeds

INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP
KINDS: dict[str, list[ContainerKind]] = {
    "plain": [APP],
    "init-only": [INIT],
    "init": [INIT, APP],
    "sidecar": [SIDECAR, APP],
    "two": [APP, APP],
}


@dataclass
class Life:
    """A pod that kubelet knows."""

    name: str
    boxes: list[Box]
    is_running: bool = False
    is_over: bool = False
    is_reported: bool = False
    given: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return self.boxes[0].cards


class Node:
    """A kubelet of one of two ages, its pods, and everything that goes wrong around them."""

    def __init__(self, world: World, seed: int, *, lists_ended_pods: bool) -> None:
        self.world, self.chance = world, random.Random(seed)
        self.lists_ended_pods = lists_ended_pods
        self.pods: list[Life] = []
        self.refused: list[str] = []
        self.desk: AllocatingDaemon = world.desk()
        self.free = [f"{uuid(card)}-{n}" for card in range(4) for n in range(10)]

    def add(self, n: int) -> Life:
        """A pod is reserved and bound; the watch may not show it yet."""
        kinds = KINDS[self.chance.choice(list(KINDS))]
        cards = self.chance.choice([1, 1, 1, 2])
        boxes = [
            Box(name=f"c{i}", kind=kind, cards=cards, memory_mib=50, cores=1)
            for i, kind in enumerate(kinds)
        ]
        if kinds == [INIT]:
            boxes.append(Box(name="idle", cards=0))
        on = self.chance.sample(range(4), cards)
        parts = [Part(uuid=uuid(card), memory_mib=50, cores=1) for card in on]
        reserved = {box.name: parts for box in boxes if box.cards}
        life = Life(name=f"p{n}", boxes=boxes)
        if self.chance.random() < 0.3:
            self.world.hidden.add(life.name)
        generation = self.chance.choice([Generation.V2_10, Generation.V2_7])
        if INIT in kinds and kinds != [INIT]:
            generation = Generation.V2_10 if self.chance.random() < 0.5 else Generation.V2_7
        if kinds == [INIT] or SIDECAR in kinds:
            generation = Generation.V2_10
        self.world.place(life.name, boxes, reserved, generation, is_locked=False)
        self.pods.append(life)
        return life

    def disturb(self) -> None:
        """Something fails, or does not."""
        what = self.chance.randrange(8)
        reads: list[int | str] = [500, "reset"]
        patches: list[int | str] = [503, "reset-after"]
        if what == 0:
            self.world.listed.faults = [KubeletError("not now")] * self.chance.randrange(1, 3)
        elif what == 1:
            self.world.api.fail_next("get", "pods", self.chance.choice(reads), 2)
        elif what == 2:
            self.world.api.fail_next("patch", "pods", self.chance.choice(patches), 1)
        elif what == 3:
            self.desk = self.world.desk()

    def admit(self, life: Life) -> None:
        """kubelet's calls for the containers in order; the first refusal fails the pod."""
        ours: list[str] = []
        for box in (box for box in life.boxes if box.cards):
            self.disturb()
            fresh = [name for name in self.free if name not in ours]
            ids = (ours + self.chance.sample(fresh, box.cards))[: box.cards]
            try:
                answer = self.desk.allocator.allocate([ids], self.desk.deadline())[0]
            except AllocationError as e:
                self.desk.follow_up()
                self.refuse(life, str(e))
                return
            self.desk.follow_up()
            self.check(life, box, dict(answer.envs))
            self.free = [name for name in self.free if name not in ids]
            life.given[box.name] = tuple(ids)
            if box.kind is INIT:
                ours = [*ours, *(name for name in ids if name not in ours)]
            else:
                ours = [name for name in ours if name not in ids]
                self.world.listed.held["default", life.name][box.name] = tuple(ids)
        life.is_running = True

    def check(self, life: Life, box: Box, env: dict[str, str]) -> None:
        """The answer names the container that it is for."""
        assert env[nvidia_names.ENV_CACHE].endswith(f"/uid-{life.name}_{box.name}.cache")

    def refuse(self, life: Life, why: str) -> None:
        """Only who can't be told from another may be refused."""
        others = self.confusable(life)
        named = set(re.findall(r"default/(p\d+)/", why))
        assert "could be meant" in why, why
        assert named - {life.name} <= others, (why, others)
        self.refused.append(life.name)
        self.end(life, "Failed")

    def confusable(self, life: Life) -> set[str]:
        """Pods that kubelet lists without IDs and of whose end or start nothing is known."""
        return {
            other.name
            for other in self.pods
            if other is not life
            and ("default", other.name) in self.world.listed.held
            and not other.is_reported
            and other.count == life.count
        }

    def end(self, life: Life, phase: str) -> None:
        """Its IDs are free; before 1.34 it stays listed, and its phase may come later."""
        life.is_running, life.is_over = False, True
        held = self.world.listed.held
        self.free += sorted({name for ids in life.given.values() for name in ids})
        life.given.clear()
        if self.lists_ended_pods:
            held["default", life.name] = dict.fromkeys(held["default", life.name], ())
        else:
            held.pop(("default", life.name), None)
        if not self.lists_ended_pods or self.chance.random() < 0.8:
            self.report(life, phase)

    def report(self, life: Life, phase: str) -> None:
        """kubelet writes the phase."""
        life.is_reported = True
        self.world.api.edit(
            "pods", life.name, lambda body: body["status"].update(phase=phase), "default"
        )

    def live(self) -> None:
        """Something happens to the pods that are there."""
        for life in self.pods:
            if life.is_over:
                continue
            if life.is_running and not life.is_reported and self.chance.random() < 0.8:
                self.report(life, "Running")
            if life.is_running and self.chance.random() < 0.3:
                self.end(life, "Succeeded")
            elif life.is_running and life.is_reported and self.chance.random() < 0.15:
                self.forget(life)
        self.world.hidden.clear()

    def forget(self, life: Life) -> None:
        """kubelet loses its checkpoint of a pod that runs."""
        held = self.world.listed.held["default", life.name]
        self.free += sorted({name for ids in life.given.values() for name in ids})
        life.given.clear()
        self.world.listed.held["default", life.name] = dict.fromkeys(held, ())


@pytest.mark.parametrize("seed", seeds(1, 20))
@pytest.mark.parametrize("lists_ended_pods", [False, True], ids=["1.34", "before-1.34"])
@shows(
    "N3",
    fault="two to six pods (init-only, with init containers, sidecars, of the same sizes) come, "
    "run and end while lists, reads and patches fail, checkpoints are lost, the watch lags and the "
    "daemon restarts",
    happens="never a foreign slice; refused is only who can't be told from another",
)
def test_random_lives_of_pods_each_gets_its_own_slice(seed: int, *, lists_ended_pods: bool) -> None:
    with World() as world:
        world.budget_s = 6.0
        node = Node(world, seed, lists_ended_pods=lists_ended_pods)
        for n in range(node.chance.randrange(2, 7)):
            node.admit(node.add(n))
            node.live()
        if not lists_ended_pods:
            assert node.refused == []
