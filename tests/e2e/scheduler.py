"""Play HAMi's scheduler: write a reservation as one of its generations does, then bind."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.e2e.api import Api, Json
from tests.e2e.parts import NODE
from tests.e2e.pods import Pods
from tests.fakes.pods import Generation

NODE_PATH = f"/api/v1/nodes/{NODE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part of one card."""

    uuid: str
    memory_mib: int
    cores: int = 0
    instance: tuple[str, int, int] | None = None
    """A MIG instance in the form of 2.10: profile, start and size of its placement."""


Reservation = Mapping[str, tuple[Slice, ...]]
"""Slices by container name."""


class Scheduler:
    """Reserves and binds; chooses nothing: the test says which card."""

    def __init__(self, api: Api, generation: Generation = Generation.V2_10) -> None:
        self._api, self.generation = api, generation

    def place(self, pod: Json, reservation: Reservation, *, is_locked: bool = False) -> None:
        """All that a scheduler does with one pod, in its order of writes."""
        self.reserve(pod, reservation)
        self.bind(pod, is_locked=is_locked)

    def reserve(self, pod: Json, reservation: Reservation) -> None:
        """Write the chosen slices onto the pod."""
        text = self.encode(pod, reservation)
        annotations = {
            names.POD_NODE: NODE,
            names.POD_TIME: str(int(time.time())),
            nvidia_names.POD_TO_ALLOCATE: text,
            nvidia_names.POD_ALLOCATED: text,
        }
        rows = self._rows(pod["spec"], reservation)
        if rows:
            annotations[nvidia_names.POD_MIG_ALLOCATIONS] = json.dumps(rows, separators=(",", ":"))
        self._annotate(pod, annotations)

    def bind(self, pod: Json, *, is_locked: bool = False) -> None:
        """Lock the node if wanted, set the phase, bind."""
        if is_locked:
            self.lock(pod)
        phase = {
            names.POD_BIND_PHASE: names.PHASE_ALLOCATING,
            names.POD_BIND_TIME: str(int(time.time())),
        }
        self._annotate(pod, phase)
        name = pod["metadata"]["name"]
        self._api.create(
            f"{Pods.path}/{name}/binding",
            {
                "metadata": {"name": name},
                "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
            },
        )

    def lock(self, pod: Json) -> None:
        """Take the node's lock in that pod's name."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        value = f"{moment},{pod['metadata']['namespace']},{pod['metadata']['name']}"
        self._api.patch(NODE_PATH, {"metadata": {"annotations": {names.NODE_LOCK: value}}})

    def lock_owner(self) -> str:
        """What stands in the node's lock; empty when it is free."""
        node = self._api.read(NODE_PATH)
        return str(node["metadata"]["annotations"].get(names.NODE_LOCK, ""))

    def encode(self, pod: Json, reservation: Reservation) -> str:
        """The annotation's text in this generation's layout."""
        return "".join(
            "".join(f"{s.uuid},NVIDIA,{s.memory_mib},{s.cores}:" for s in slices) + ";"
            for slices in self._slots(pod["spec"], reservation)
        )

    def _slots(self, spec: Json, reservation: Reservation) -> list[tuple[Slice, ...]]:
        inits = [c["name"] for c in spec.get("initContainers", [])]
        apps = [c["name"] for c in spec["containers"]]
        has_inits = self.generation in (Generation.V2_10, Generation.V2_10_COMPACT)
        has_empties = self.generation in (Generation.V2_7, Generation.V2_10)
        slots = [reservation.get(name, ()) for name in ([*inits, *apps] if has_inits else apps)]
        return [s for s in slots if s or has_empties]

    def _rows(self, spec: Json, reservation: Reservation) -> list[Json]:
        """The rows of 2.10 for instances, in the order of containers and grants."""
        containers = [*spec.get("initContainers", []), *spec["containers"]]
        return [
            {
                "containerIndex": i,
                "deviceIndex": k,
                "gpuUUID": each.uuid,
                "profile": each.instance[0],
                "placement": {"start": each.instance[1], "size": each.instance[2]},
            }
            for i, container in enumerate(containers)
            for k, each in enumerate(reservation.get(container["name"], ()))
            if each.instance is not None
        ]

    def _annotate(self, pod: Json, annotations: Mapping[str, str]) -> None:
        path = f"{Pods.path}/{pod['metadata']['name']}"
        self._api.patch(path, {"metadata": {"annotations": dict(annotations)}})
