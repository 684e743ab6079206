"""kubelet, scheduler and container name the same card."""

from __future__ import annotations

import random

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from tests.fakes.cards import uuid
from tests.fakes.pods import Box, Part
from tests.integration.rig import Rig, inside
from tests.reliability import shows
from tests.seeds import seeds


@shows(
    "P11",
    fault="pods with one to three cards come at random, while kubelet has its slots on other cards "
    "partly taken",
    happens="the IDs that kubelet counts, the annotation and the container name the same cards",
)
@pytest.mark.parametrize("seed", seeds(1, 3))
def test_ids_annotation_and_container_agree(rig: Rig, seed: int) -> None:
    dice = random.Random(seed)
    alive = ["first"]
    rig.place_one("first", 0, 1)
    assert rig.admit("first").is_admitted, "until it serves, the daemon has no preference"
    for number in range(10):
        if len(alive) > 4:
            rig.end(alive.pop(dice.randrange(len(alive))))
        chosen = sorted(dice.sample(range(4), dice.randint(1, 3)))
        box = Box(memory_mib=1000, cards=len(chosen))
        name = f"p{number}"
        shuffled = dice.sample(chosen, len(chosen))
        parts = [Part(uuid=uuid(card), memory_mib=1000) for card in shuffled]
        pod = rig.place(name, [box], {"main": parts})
        answer = rig.admit(name)
        assert answer.is_admitted, answer.refusal
        alive.append(name)
        counted = {device_id.rsplit("-", 1)[0] for device_id in answer.device_ids["main"]}
        env = inside(answer)
        seen = env[nvidia_names.ENV_VISIBLE_DEVICES].split(",")
        assert counted == set(seen) == {uuid(card) for card in chosen}
        assert seen == [uuid(card) for card in chosen], "in the order of the cards' numbers"
        assert all(card in pod.annotations[nvidia_names.POD_ALLOCATED] for card in seen)
