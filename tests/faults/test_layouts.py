"""Every generation's layout of a reservation means one thing, and a damaged one nothing."""

from __future__ import annotations

import random

import pytest

from hami_node.model import ContainerKind
from hami_node.vendors.nvidia import names as nvidia_names
from tests.fakes.cards import uuid
from tests.fakes.pods import Box, Generation, Part, layout, reservation
from tests.integration.rig import Rig, inside
from tests.reliability import shows

ODD = "0123456789,:;GPU-NVIDIA[]{}\x00é"


@shows(
    "P2",
    fault="pods with up to two init and four app containers, cards anywhere, laid out as HAMi 2.4, "
    "2.7 or 2.10 does",
    happens="each container with cards gets its own slice, those without get nothing",
)
@pytest.mark.parametrize("generation", list(Generation))
def test_cards_come_to_their_container_in_every_layout(rig: Rig, generation: Generation) -> None:
    dice = random.Random(generation)
    for number in range(6):
        boxes = [Box(name=f"init{i}", cards=0, kind=ContainerKind.INIT) for i in range(number % 3)]
        apps = dice.randint(1, 4)
        lucky = set(dice.sample(range(apps), dice.randint(1, apps)))
        boxes += [
            Box(name=f"app{i}", memory_mib=500 + 10 * i, cards=1)
            if i in lucky
            else Box(name=f"app{i}", cards=0)
            for i in range(apps)
        ]
        parts = {
            f"app{i}": [Part(uuid=uuid((number + i) % 4), memory_mib=500 + 10 * i)] for i in lucky
        }
        name = f"p{number}"
        rig.place(name, boxes, parts, generation)
        answer = rig.admit(name)
        assert answer.is_admitted, answer.refusal
        assert set(answer.responses) == set(parts)
        for container, (part,) in parts.items():
            env = inside(answer, container)
            assert env[nvidia_names.ENV_VISIBLE_DEVICES] == part.uuid
            assert env[f"{nvidia_names.ENV_MEMORY_LIMIT}_0"] == f"{part.memory_mib}m"


@shows(
    "P2",
    fault="a few characters of a reservation are changed, lost or added",
    happens="the pod gets at most what it asked for, on a card of this node, or is refused",
)
def test_damaged_reservation_never_gives_more_than_was_asked(rig: Rig) -> None:
    dice = random.Random(7)
    box = Box(memory_mib=1000, cores=5)
    text = layout([box], {"main": [Part(uuid=uuid(1), memory_mib=1000, cores=5)]})
    refused = 0
    for number in range(40):
        letters = list(text)
        for _ in range(dice.randint(1, 3)):
            at = dice.randrange(len(letters))
            letters[at : at + dice.randint(0, 1)] = dice.choice(ODD)
        name = f"p{number}"
        rig.bind(name, [box], reservation("".join(letters)))
        answer = rig.admit(name)
        if answer.is_admitted:
            env = inside(answer)
            assert env[nvidia_names.ENV_VISIBLE_DEVICES] in {uuid(card) for card in range(4)}
            limit = env[f"{nvidia_names.ENV_MEMORY_LIMIT}_0"]
            assert 0 < int(limit.removesuffix("m")) <= 1000
            assert 0 < int(env[nvidia_names.ENV_CORE_LIMIT]) <= 5
            rig.end(name)
        else:
            refused += 1
            assert f"default/{name}/main" in answer.refusal
    assert refused >= 20
    rig.place("well", [box], {"main": [Part(uuid=uuid(1), memory_mib=1000, cores=5)]})
    assert rig.admit("well").is_admitted
