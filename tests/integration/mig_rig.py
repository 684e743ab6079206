"""A node whose cards are in MIG mode, with the whole daemon on the stand-in for the driver.

Kubelet and API server are played as in `rig.py`; below the daemon is the real chain, down to the C
library. What the hardware holds outlives the daemon, as it does on a node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import yaml

from hami_node.clock import SystemClock
from hami_node.config.sources import ConfigSources
from hami_node.model import Pod
from hami_node.simulate.kubelet import Admission
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.fakes.pods import NODE, Box, Generation, Part, layout, pod_body, reservation
from tests.fakes.waiting import eventually
from tests.integration.rig import LIMIT_S, Rig
from tests.nvml_stub.control import UUIDS, Stub, card
from tests.nvml_stub.mig import Instance, profiles_of

ROWS: Final = nvidia_names.POD_MIG_ALLOCATIONS
PROFILES: Final = profiles_of("A100-40")
CORES: Final = {"1g.5gb": 15, "2g.10gb": 29, "3g.20gb": 43, "7g.40gb": 100}
SLOTS: Final = 3 * 7
BY_ROWS, BY_TEMPLATE, SPARE = 0, 1, 2
"""The cards: two for 2.10's protocol, and one for that of 2.5 to 2.9."""
TEMPLATE_MODEL: Final = "NVIDIA A100-PCIE-40GB"
GEOMETRY: Final = (
    {"name": "1g.5gb", "memory": 5120, "core": 14, "count": 1},
    {"name": "2g.10gb", "memory": 10240, "core": 28, "count": 3},
)
ALLOWED: Final = ("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb")


@dataclass(frozen=True, slots=True)
class Row:
    """A grant of 2.10: an instance at a place of a card."""

    profile: str = "1g.5gb"
    start: int = 6
    card: int = BY_ROWS

    @property
    def part(self) -> Part:
        """What the device annotations say of it."""
        memory_mib = PROFILES[self.profile].memory_mib
        return Part(uuid=UUIDS[self.card], memory_mib=memory_mib, cores=CORES[self.profile])

    def json(self, container: int, position: int) -> dict[str, Any]:
        """The row in the pod's annotation."""
        return {
            "containerIndex": container,
            "deviceIndex": position,
            "gpuUUID": UUIDS[self.card],
            "profile": self.profile,
            "placement": {"start": self.start, "size": PROFILES[self.profile].size},
        }


@dataclass(frozen=True, slots=True)
class Slot:
    """A grant of 2.5 to 2.9: a position in the geometry."""

    slot: int

    @property
    def part(self) -> Part:
        """What the device annotations say of it."""
        entry = GEOMETRY[0] if self.slot == 0 else GEOMETRY[1]
        memory_mib, cores = int(str(entry["memory"])), int(str(entry["core"]))
        uuid = f"{UUIDS[BY_TEMPLATE]}[0-{self.slot}]"
        return Part(uuid=uuid, memory_mib=memory_mib, cores=cores)


Grants = Mapping[str, Sequence[Row | Slot]]
"""By container, init containers first."""


class MigRig(Rig):
    """Three cards of 40 GB in MIG mode, with nothing on them; the daemon is `launch`ed."""

    def __init__(self, driver: Stub) -> None:
        super().__init__(cards=3)
        self.clock = SystemClock()  # the driver's calls take as long as ever
        self.stub, self.hardware = driver, driver.mig
        self.hardware.reset()
        self.show()
        self.node_config = self.root / "config.json"
        self.write_settings()

    def write_settings(self) -> None:
        """Both protocols, each on the cards that its list names."""
        node = {"name": NODE, "operatingmode": "mig"}
        self.node_config.write_text(json.dumps({"nodeconfig": [node]}))
        nvidia = {
            "knownMigGeometries": [
                {"models": [TEMPLATE_MODEL], "allowedGeometries": [list(GEOMETRY)]}
            ],
            "migProfileAllowlist": [{"models": ["A100-SXM4-40GB"], "profiles": list(ALLOWED)}],
        }
        self.config_path.write_text(yaml.safe_dump({"nvidia": nvidia}))

    # -- the machine -------------------------------------------------------------------------------
    def show(self, *lines: str) -> None:
        """The cards, and what the driver does wrong."""
        self.stub.write(
            card(BY_ROWS, mig="enabled"),
            card(BY_TEMPLATE, mig="enabled", name=f'"{TEMPLATE_MODEL}"'),
            card(SPARE, mig="enabled"),
            *lines,
        )

    # -- the daemon --------------------------------------------------------------------------------
    def launch(self, slots: int = SLOTS, **flags: str) -> None:
        """Start the daemon; it is registered with all slots, and reported."""
        given = {
            "backend": "nvml",
            "scan_interval_s": "0.2",
            "device_list_strategy": "envvar",
            "visible_devices_form": "bare",
        }
        self._start(**given | flags)
        self.wait_registered(slots)
        eventually(lambda: names.NODE_IDENTITY in self.notes, LIMIT_S)

    def _sources(self, flags: Mapping[str, str]) -> ConfigSources:
        return replace(super()._sources(flags), node_config_file=self.node_config)

    def close(self) -> None:
        """End everything; nothing that the driver was told keeps the daemon from its end."""
        self.show()
        super().close()
        self.hardware.reset()

    # -- the cluster -------------------------------------------------------------------------------
    def divide(
        self,
        name: str,
        grants: Grants,
        boxes: Sequence[Box] = (),
        *,
        uid: str = "",
        is_locked: bool = False,
    ) -> Pod:
        """A pod with reserved instances, bound to the node and not admitted yet."""
        boxes = boxes or [Box(name=it, cards=len(of), memory_mib=4000) for it, of in grants.items()]
        reserved = {container: [it.part for it in of] for container, of in grants.items()}
        notes = reservation(layout(boxes, reserved, Generation.V2_10))
        rows = [
            it.json(container, position)
            for container, box in enumerate(boxes)
            for position, it in enumerate(grants.get(box.name, ()))
            if isinstance(it, Row)
        ]
        if rows:
            notes[ROWS] = json.dumps(rows, separators=(",", ":"))
        if uid:
            body = pod_body(name, boxes, notes)
            body["metadata"]["uid"] = uid
            self.api.create("pods", body)
            return self.pod(name)
        return self.bind(name, boxes, notes, is_locked=is_locked)

    def serve(self, name: str, *grants: Row | Slot) -> str:
        """A pod of one container that is served and runs; its visible devices."""
        self.divide(name, {"main": grants})
        answer = self.admit(name)
        assert answer.is_admitted, answer.refusal
        return visible(answer)

    def delete(self, name: str) -> None:
        """The pod is gone from kubelet and from the API server."""
        self.kubelet.remove("default", name)
        self.api.delete("pods", name, "default")

    def delete_in_api(self, name: str) -> None:
        """The API server has the pod no more; kubelet still does."""
        self.api.delete("pods", name, "default")

    def begin_deletion(self, name: str) -> None:
        """The pod is to end, and runs on in its grace period."""

        def mark(body: dict[str, Any]) -> None:
            body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

        self.api.edit("pods", name, mark, "default")

    # -- what there is -----------------------------------------------------------------------------
    def instances(self, number: int = BY_ROWS) -> tuple[Instance, ...]:
        """The instances on a card."""
        return self.hardware.instances(UUIDS[number])

    def places(self, number: int = BY_ROWS) -> list[tuple[str, int]]:
        """Profile and start of each instance on a card."""
        return sorted((it.profile, it.start) for it in self.instances(number))

    def at(self, start: int, number: int = BY_ROWS) -> Instance:
        """The instance at a place."""
        return next(it for it in self.instances(number) if it.start == start)

    def wait_places(self, *wanted: tuple[str, int], number: int = BY_ROWS) -> None:
        """Wait until a card has exactly these instances."""
        eventually(lambda: self.places(number) == sorted(wanted), LIMIT_S)

    def offered(self, number: int = BY_ROWS) -> set[tuple[str, int]]:
        """Profile and start of every instance that schedulers are offered of a card."""
        cards = json.loads(self.register_text)
        found = next(card for card in cards if card["id"] == UUIDS[number])
        return {
            (profile["name"], placement.get("start", 0))
            for profile in found.get("migProfiles", ())
            for placement in profile["placements"]
        }

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The rows of a pod."""
        found: list[dict[str, Any]] = json.loads(self.pod(name).annotations[ROWS])
        return found

    def reason(self, number: int) -> str:
        """Why a card can't be used."""
        return self.cards[number].unhealthy_reason


def visible(answer: Admission, container: str = "main") -> str:
    """What a container is told to see."""
    return dict(answer.responses[container].envs)[nvidia_names.ENV_VISIBLE_DEVICES]
