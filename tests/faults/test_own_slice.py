"""No pod ever gets another pod's slice, whatever order, sizes and locks."""

from __future__ import annotations

import random

import pytest

from hami_node.model import ContainerKind
from hami_node.vendors.nvidia import names as nvidia_names
from tests.fakes.cards import uuid
from tests.fakes.pods import Box, Part
from tests.integration.rig import Rig, inside
from tests.reliability import shows
from tests.seeds import seeds

PODS = 5


def boxes_of(kind: str, memory_mib: int) -> list[Box]:
    """A pod whose only container with a card is of that kind."""
    card = Box(name="main", memory_mib=memory_mib)
    if kind == "app":
        return [card]
    role = ContainerKind.INIT if kind == "init" else ContainerKind.SIDECAR
    return [Box(name="main", memory_mib=memory_mib, kind=role), Box(name="app", cards=0)]


@shows(
    "P1",
    fault="pods with cards in init, sidecar and app containers are bound together, the node lock "
    "names a pod at random, and kubelet admits them in any order",
    happens="each container gets its own card and limit, or is refused; never another's",
)
@pytest.mark.parametrize("seed", seeds(2, 6))
def test_every_container_gets_its_own_slice_in_any_order(rig: Rig, seed: int) -> None:
    dice = random.Random(seed)
    wanted = {}
    for number in range(PODS):
        name, memory_mib, card = f"p{number}", 1000 + 10 * number, dice.randrange(4)
        boxes = boxes_of(dice.choice(["app", "app", "init", "sidecar"]), memory_mib)
        rig.place(name, boxes, {"main": [Part(uuid=uuid(card), memory_mib=memory_mib)]})
        wanted[name] = (uuid(card), f"{memory_mib}m")
    order = dice.sample(sorted(wanted), PODS)
    for name in order:
        rig.lock(dice.choice(order))
        answer = rig.admit(name)
        assert answer.is_admitted, f"{name}: {answer.refusal}"
        env = inside(answer)
        found = (
            env[nvidia_names.ENV_VISIBLE_DEVICES],
            env[f"{nvidia_names.ENV_MEMORY_LIMIT}_0"],
        )
        assert found == wanted[name], name
