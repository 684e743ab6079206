"""Whatever a response names exists when Allocate returns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from tests.fakes.cards import uuid
from tests.fakes.pods import Box, Part
from tests.integration.rig import Rig, inside
from tests.reliability import shows

BOX = Box(memory_mib=1000, cards=2)


@shows(
    "P13",
    fault="cards are passed to the runtime by environment or by CDI names, over a restart",
    happens="each path of a response exists, CDI names have their kind, the cards are the same",
)
@pytest.mark.parametrize("strategy", ["envvar", "cdi-cri"])
def test_every_path_of_a_response_exists(node: Rig, strategy: str) -> None:
    specs = node.root / "cdi"
    node.start(device_list_strategy=strategy, cdi_spec_dir=str(specs))
    cards = [uuid(0), uuid(3)]
    for life in range(2):
        name = f"p{life}"
        node.place(name, [BOX], {"main": [Part(uuid=card, memory_mib=1000) for card in cards]})
        answer = node.admit(name)
        assert answer.is_admitted, answer.refusal
        response = answer.responses["main"]
        for mount in response.mounts:
            assert Path(mount.host_path).exists(), mount.host_path
            assert Path(mount.container_path).is_absolute()
        named = [device.name for device in response.cdi_devices]
        if strategy == "cdi-cri":
            assert named == [f"hami-node.io/gpu={card}" for card in cards]
            spec = json.loads((specs / "hami-node.io-gpu.json").read_bytes())
            assert {f"{spec['kind']}={device['name']}" for device in spec["devices"]} >= set(named)
            # neither an image's own `all` nor the runtime may add cards
            assert inside(answer)[nvidia_names.ENV_VISIBLE_DEVICES] == "void"
        else:
            assert named == []
            assert inside(answer)[nvidia_names.ENV_VISIBLE_DEVICES] == ",".join(cards)
        node.restart(device_list_strategy=strategy, cdi_spec_dir=str(specs))
