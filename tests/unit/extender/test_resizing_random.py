"""Requests, nodes, tenants, lost answers in any order: no pod counts for less than it has."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field

import pytest

from hami_node.errors import KubeError
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from hami_node.wire.resize import Word, encode_words
from tests.fakes.pods import Box
from tests.unit.extender.desk import MEMORY_MIB, SCHEDULER, Desk
from tests.unit.extender.test_resizing import run, tell

CARD = "GPU-n1-0"
PODS = ("a", "b", "c")


@dataclass
class PlayedNode:
    """What the node's ledger has: amounts by pod, and those of a resize under way."""

    held: dict[str, int] = field(default_factory=dict)
    under_way: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    words: dict[str, tuple[str, int]] = field(default_factory=dict)
    over: dict[str, str] = field(default_factory=dict)


def text_of(memory_mib: int) -> str:
    return f"{CARD},NVIDIA,{memory_mib},0:;"


def mib_of(text: str) -> int:
    return int(text.split(",")[2]) if text.count(",") > 2 else 0


class World:
    """The desk's API server, one node and a tenant."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.desk, self.node = dice, Desk("n1"), PlayedNode()
        tell(self.desk, {})
        for name in PODS:
            run(self.desk, name, Box(memory_mib=2000))
            self.node.held[name] = 2000

    def ask(self, name: str) -> None:
        text = json.dumps({"main": {"gpumem": self.dice.choice((500, 1000, 3000, 5000, 9000))}})
        self.desk.edit_pod(name, annotations={names.POD_RESIZE: text})

    def decide(self, name: str) -> None:
        del name
        if self.dice.random() < 0.3:
            lost = KubeError("lost", self.dice.choice((0, 409, 503)))
            self.desk.kube.fail("patch_pod_exactly", lost, is_served=self.dice.random() < 0.5)
        self.desk.resizer.decide_all()

    def begin(self, name: str) -> None:
        """The node notes the larger amounts, if the reservation has them and the card, too."""
        notes = self.desk.notes_of(name)
        if names.POD_RESIZE_APPROVED not in notes or name in self.node.under_way:
            return
        approval = json.loads(notes[names.POD_RESIZE_APPROVED])
        new, old = mib_of(approval["grants"]["main"]), self.node.held[name]
        is_settled = self.node.over.get(name) == approval["id"]
        if is_settled or mib_of(notes.get(nvidia_names.POD_ALLOCATED, "")) < new:
            return
        larger = max(new, old)
        if sum(self.node.held.values()) - old + larger > MEMORY_MIB:
            return
        self.node.held[name] = larger
        self.node.under_way[name] = (approval["id"], old, new)

    def end(self, name: str) -> None:
        """The node has it done, or refuses it; its word is published later."""
        if name not in self.node.under_way:
            return
        id_, old, new = self.node.under_way.pop(name)
        end = old if self.dice.random() < 0.3 else new
        self.node.held[name], self.node.over[name] = end, id_
        self.node.words[name] = (id_, end)

    def publish(self, name: str) -> None:
        del name
        said = {
            f"uid-{pod}": {"main": Word(id=id_, vendor="NVIDIA", grants=text_of(mib))}
            for pod, (id_, mib) in self.node.words.items()
        }
        self.desk.kube.merge_patch_node("n1", {names.NODE_RESIZED: encode_words(said)})

    def report(self, name: str) -> None:
        if name in self.node.over and name not in self.node.under_way:
            text = text_of(self.node.held[name])
            self.desk.edit_pod(name, annotations={nvidia_names.POD_ALLOCATED: text})

    def edit(self, name: str) -> None:
        """A tenant, where no policy keeps it from that."""
        text = self.dice.choice(("", text_of(1), "nonsense", *[text_of(self.node.held[name])] * 3))
        key = self.dice.choice((nvidia_names.POD_ALLOCATED, names.POD_RESIZE_STATE))
        self.desk.edit_pod(name, annotations={key: text})

    def lead(self, name: str) -> None:
        del name
        self.desk.state.begin_term(SCHEDULER)

    def check(self) -> None:
        held = self.desk.held()
        for name in PODS:
            assert held.get(name, 0) >= self.node.held[name], (name, held, self.node)


def lived(seed: int) -> int:
    """One life of the world; how many requests were approved in it."""
    dice = random.Random(seed)
    world = World(dice)
    acts = (
        *(world.ask, world.decide, world.decide, world.begin, world.begin),
        *(world.end, world.publish, world.report, world.edit, world.lead),
    )
    for _ in range(150):
        dice.choice(acts)(dice.choice(PODS))
        if dice.random() < 0.7:
            world.desk.sync()
        world.check()
    return world.desk.results.count("approved")


@pytest.mark.parametrize("lives", [2, pytest.param(30, marks=pytest.mark.long)])
def test_pod_never_counts_for_less_than_its_node_has_granted(lives: int) -> None:
    approved = [lived(seed) for seed in range(lives)]
    assert sum(approved) > 2 * lives
