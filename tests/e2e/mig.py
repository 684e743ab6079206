"""A node whose cards are divided: its set-up, and what must agree once nothing changes any more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import yaml

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.mig.codec import decode_mig_allocations
from tests.e2e import cards, parts
from tests.e2e.api import Api, Json
from tests.e2e.daemon import CONFIG_MAP, Daemon
from tests.e2e.machine import NODE_DIR
from tests.e2e.pods import Pods
from tests.e2e.waiting import eventually
from tests.nvml_stub.mig import MigHardware

HARDWARE: Final = MigHardware(cards.CONTROL)
OLD_MODEL: Final = "NVIDIA A100-SXM4-40GB"
BY_TEMPLATE: Final = 6
"""A card that the configuration divides by templates, as HAMi 2.5 to 2.9 do."""
FORMERLY_OFF: Final = 5
"""A card that is not in MIG mode when the daemon starts."""
GEOMETRY: Final = [
    {"name": "1g.5gb", "memory": 5120, "count": 1},
    {"name": "2g.10gb", "memory": 10240, "count": 3},
]
MADE: Final[list[str]] = []
"""Instances that somebody else has made."""
SLOTS: Final = 7 * cards.COUNT
"""The most instances that such cards can hold at once."""
HALVES: Final = 2 * (cards.COUNT - 1)
"""So many pods find room in whatever order they come, none asking for more than half a card: no
instance is on both halves. Of more, some may wait: a small instance keeps a large one out of its
half, and is never moved. `BY_TEMPLATE` has no large ones."""


@contextmanager
def divided_node(api: Api, daemon: Daemon) -> Iterator[None]:
    """The node with operatingmode mig; as before after it."""
    before: dict[str, str] = api.read(CONFIG_MAP)["data"]
    HARDWARE.reset()
    cards.Cards().show_divided(models={BY_TEMPLATE: OLD_MODEL}, off=FORMERLY_OFF)
    api.patch(CONFIG_MAP, {"data": {**before, **_files(before)}})
    daemon.run_changed(_writes_hardware)
    yield
    api.patch(CONFIG_MAP, {"data": {"config.json": None, **before}})
    HARDWARE.reset()
    cards.Cards().heal()


def _files(before: dict[str, str]) -> dict[str, str]:
    known = [{"models": [OLD_MODEL], "allowedGeometries": [GEOMETRY]}]
    device: dict[str, Any] = yaml.safe_load(before["device-config.yaml"]) or {}
    device.setdefault("nvidia", {})["knownMigGeometries"] = known
    node = {"name": parts.NODE, "operatingmode": "mig"}
    return {
        "device-config.yaml": yaml.safe_dump(device),
        "config.json": json.dumps({"nodeconfig": [node]}),
    }


def _writes_hardware(pod: Json) -> None:
    """The stand-in keeps what the hardware would: in a file beside its own.

    Modes are switched only by a daemon that sees the host's processes, as with `mig-mode`.

    Most tests play a scheduler of 2.10 that answers no handshake: they say which form it reads.
    """
    pod["hostPID"] = True
    pod["containers"][0]["args"].append("--register-format=json")
    for mount in pod["containers"][0]["volumeMounts"]:
        if mount["name"] == "driver":
            mount["readOnly"] = False


def instances() -> dict[str, tuple[str, str, int]]:
    """What the hardware holds: card, profile and start by the instance's UUID ("" without one)."""
    return {
        each.uuid: (card, each.profile, each.start)
        for card, hardware in HARDWARE.look().items()
        for each in hardware.instances
    }


def clear() -> None:
    """End every process, let the daemon remove what it has made, and then remove the rest."""
    for uuid in filter(None, instances()):
        HARDWARE.end(uuid)
    foreign = set(MADE)
    eventually("what the daemon has made is gone", lambda: set(instances()) <= foreign)
    for card, hardware in HARDWARE.look().items():
        for each in hardware.instances:
            HARDWARE.destroy(card, each.gi)
    MADE.clear()


def make_foreign(card: int, profile: str, start: int) -> str:
    """Somebody else makes an instance; its UUID."""
    made = HARDWARE.make(cards.uuid_of(card), profile, start)
    MADE.append(made.uuid)
    return made.uuid


def _claimed(pods: Pods, there: dict[str, tuple[str, str, int]]) -> dict[str, tuple[str, str, int]]:
    """The same by the annotations of the pods that run; of older generations, by what they see."""
    found: dict[str, tuple[str, str, int]] = {}
    for pod in pods.all():
        if pod["status"]["phase"] != "Running":
            continue
        text = pod["metadata"].get("annotations", {}).get(nvidia_names.POD_MIG_ALLOCATIONS, "")
        for row in decode_mig_allocations(text):
            uuid = row.device.uuid if row.device is not None else f"none for {row.uuid}"
            found[uuid] = row.uuid, row.instance.profile, row.instance.placement.start
        if not text:
            for container in pod["spec"]["containers"]:
                for uuid in pods.inside(pod["metadata"]["name"], container["name"]).cards:
                    found[uuid] = there.get(uuid, ("nowhere", "", 0))
    return found


def _on_record() -> set[str]:
    """The instances that the daemon has made, by its own record."""
    text = (NODE_DIR / "record" / "mig-instances.record").read_text()
    return {row.get("uuid", "") for row in json.loads(text.splitlines()[-1])["instances"]}


def wait_agreed(pods: Pods, *foreign: str) -> None:
    """Wait until hardware, record and pods that run agree, beside these instances of others."""

    def probe() -> bool:
        there = instances()
        wanted = _claimed(pods, there) | {uuid: there[uuid] for uuid in foreign}
        assert there == wanted, f"the hardware has {there}, pods that run have {wanted}"
        made = set(wanted) - set(foreign)
        assert _on_record() == made, f"on record are {_on_record()}, pods that run have {made}"
        return True

    eventually("hardware, record and annotations agree", probe)
