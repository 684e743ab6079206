"""The extender in this process before a simulated API server, and those around it as puppets.

kube-scheduler, kubelet, the daemons and other schedulers are played; what is asked of the extender
goes through its real endpoints, what they write goes straight into the API server's store.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from hami_node.config.sources import ConfigSources
from hami_node.engine.usage import collapse
from hami_node.errors import NotLeading
from hami_node.extender.service import Extender
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.extender.state.pod_book import reservation_marks
from hami_node.model import ContainerKind, Device, Node, Pod, Uuid
from hami_node.setting_types import Role
from hami_node.simulate.kube_scheduler import bind_arguments, filter_arguments
from hami_node.simulate.store import ApiRefusal, Json
from hami_node.vendors.holding import holding_of
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.codec import encode_csv9, encode_json
from hami_node.vendors.registry import SETTINGS_BLOCKS, VENDORS
from hami_node.wire import names
from hami_node.wire.lock import decode_lock
from hami_node.wire.objects import decode_node, decode_pod
from hami_node.wire.values import parse_whole_quantity
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.clock import RealClock
from tests.fakes.pods import Box
from tests.fakes.settings import load
from tests.fakes.waiting import eventually

SCHEDULER: Final = "hami-scheduler"
CARDS: Final = 8
SLOTS: Final = 5
MEMORY_MIB: Final = 16_000
LIMIT_S: Final = 20.0


class ShiftedClock(RealClock):
    """The machine's time; `shift` moves it on, as if nothing had happened for a while."""

    def __init__(self) -> None:
        self._shift_s = 0.0

    def now(self) -> float:
        return super().now() + self._shift_s

    def monotonic(self) -> float:
        return super().monotonic() + self._shift_s

    def shift(self, seconds: float) -> None:
        self._shift_s += seconds


def cards_of(node: str, sick: Iterable[int] = ()) -> tuple[Device, ...]:
    """What every node of the rig has."""
    ill = set(sick)
    return tuple(
        Device(
            uuid=Uuid(f"GPU-{node}-{index}"),
            index=index,
            vendor=NVIDIA,
            model="NVIDIA H100",
            numa=0,
            healthy=index not in ill,
            slots=SLOTS,
            memory_mib=MEMORY_MIB,
        )
        for index in range(CARDS)
    )


def pod_manifest(name: str, boxes: Sequence[Box], annotations: Mapping[str, str]) -> Json:
    """A pod as its user creates it."""
    return {
        "metadata": {"name": name, "namespace": "default", "annotations": dict(annotations)},
        "spec": {
            "schedulerName": SCHEDULER,
            "initContainers": [b.manifest() for b in boxes if b.kind is not ContainerKind.APP],
            "containers": [b.manifest() for b in boxes if b.kind is ContainerKind.APP],
        },
        "status": {"phase": "Pending"},
    }


class ExtenderRig:
    """One replica without election, nodes `n0`, `n1`, ..., and the levers of a test."""

    def __init__(self, *, lock_wait_s: float = 0.3, **flags: str) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="hx-"))
        self.clock = ShiftedClock()
        self.api = FaultyApiServer(bookmark_interval_s=1.0).start()
        kubeconfig = self.api.write_kubeconfig(self.root / "kubeconfig")
        sources = ConfigSources(
            blocks=SETTINGS_BLOCKS,
            flags={
                "http_bind": "127.0.0.1:0",
                "metrics_address": "off",
                "kubeconfig": str(kubeconfig),
                "lock_wait_s": str(lock_wait_s),
                "scheduler_name": SCHEDULER,
                **flags,
            },
            role=Role.EXTENDER,
        )
        self.extender = Extender(load(sources), sources, VENDORS, clock=self.clock)
        self.state: ClusterState = self.extender.parts.state
        self._runner = threading.Thread(target=self.extender.wait, name="extender", daemon=True)

    def start(self) -> ExtenderRig:
        self.extender.start()
        self._runner.start()
        eventually(self.extender.parts.readiness.is_leading, LIMIT_S)
        return self

    def close(self) -> None:
        self.api.faults.clear()
        self.extender.stop.set()
        self._runner.join(30.0)
        self.api.stop()
        shutil.rmtree(self.root)
        assert not self._runner.is_alive()

    # -- kube-scheduler ----------------------------------------------------------------------------
    def filter(self, pod: Json, nodes: Sequence[str]) -> Json:
        """The answer to one call; one that nobody leads to answer is an error like others."""
        body = json.dumps(filter_arguments(pod, nodes)).encode()
        try:
            answer = self.extender.parts.endpoints.filter(body)
        except NotLeading as e:
            return {"NodeNames": None, "Error": str(e)}
        return dict(json.loads(answer))

    def bind(self, pod: Json, node: str, uid: str = "") -> str:
        """The error of one call; "" for success."""
        args = bind_arguments(pod, node)
        args["PodUID"] = uid or args["PodUID"]
        try:
            answer = self.extender.parts.endpoints.bind(json.dumps(args).encode())
        except NotLeading as e:
            return str(e)
        return str(json.loads(answer)["Error"])

    # -- nodes and daemons -------------------------------------------------------------------------
    def write_node(
        self,
        name: str,
        *,
        has_identity: bool,
        is_old: bool = False,
        sick: Iterable[int] = (),
        is_served: bool = True,
        is_cordoned: bool = False,
    ) -> None:
        """Create the node, or let its daemon report again; a lock on it stays."""
        cards = cards_of(name, sick)
        notes = {
            nvidia_names.NODE_REGISTER: encode_csv9(cards) if is_old else encode_json(cards),
            names.NODE_IDENTITY: names.IDENTITY_POD_RESOURCES if has_identity else None,
        }
        allocatable = {nvidia_names.RESOURCE_GPU: str(CARDS * SLOTS if is_served else 0)}
        body: Json = {"metadata": {"name": name}, "spec": {}, "status": {}}
        try:
            self.api.create("nodes", body)
        except ApiRefusal:
            body = {}

        def change(node: Json) -> None:
            said = node["metadata"].setdefault("annotations", {})
            said.update({key: text for key, text in notes.items() if text is not None})
            for key, text in notes.items():
                if text is None:
                    said.pop(key, None)
            node.setdefault("spec", {})["unschedulable"] = is_cordoned
            node.setdefault("status", {})["allocatable"] = allocatable

        self.api.edit("nodes", name, change)

    def nodes(self) -> list[str]:
        return [str(node["metadata"]["name"]) for node in self.api.list("nodes")]

    def lock_of(self, node: str) -> str:
        """The lock's text; "" when it is free or the node is gone."""
        try:
            said = self.api.read("nodes", node)["metadata"].get("annotations") or {}
        except ApiRefusal:
            return ""
        return str(said.get(names.NODE_LOCK, ""))

    def unlock(self, node: str, pod: str) -> None:
        """The daemon frees a lock of this pod."""
        text = self.lock_of(node)
        if text and decode_lock(text).is_pod("default", pod):
            self.api.annotate("nodes", node, {names.NODE_LOCK: None})

    def serve(self, name: str) -> None:
        """Allocate: the pod's slots are emptied, its phase is success, the lock is freed."""
        pod = self.find(name)
        if pod is None or not pod["spec"].get("nodeName"):
            return

        def change(body: Json) -> None:
            said = body["metadata"].setdefault("annotations", {})
            said[nvidia_names.POD_TO_ALLOCATE] = ";" * said.get(
                nvidia_names.POD_TO_ALLOCATE, ""
            ).count(";")
            said[names.POD_BIND_PHASE] = names.PHASE_SUCCESS
            body["status"]["phase"] = "Running"

        if is_over(pod):
            return
        self.edit(name, change)
        self.unlock(pod["spec"]["nodeName"], name)

    # -- pods --------------------------------------------------------------------------------------
    def find(self, name: str) -> Json | None:
        try:
            return self.api.read("pods", name, "default")
        except ApiRefusal:
            return None

    def edit(self, name: str, change: Any) -> None:
        """Change a pod that may have been deleted."""
        try:
            self.api.edit("pods", name, change, "default")
        except ApiRefusal:
            return

    def delete(self, name: str) -> None:
        try:
            self.api.delete("pods", name, "default")
        except ApiRefusal:
            return

    def pods(self) -> list[Pod]:
        """As the API server has them, in one moment."""
        return [decode_pod(pod) for pod in self.api.list("pods")]

    # -- truths ------------------------------------------------------------------------------------
    def wrongs(self) -> list[str]:
        """What must never be, by the API server's objects alone."""
        return overcommitted(self.pods(), self.state) + unreserved(self.pods(), self.state)

    def settle(self) -> None:
        """Wait until the watches show what the API server has."""
        view = self.extender.parts.view

        def is_seen() -> bool:
            pods = {(p.uid, p.resource_version) for p in view.pods()}
            nodes = {(n.uid, n.resource_version) for n in view.nodes()}
            return (
                pods == {_version(pod) for pod in self.api.list("pods")}
                and nodes == {_version(node) for node in self.api.list("nodes")}
                and self.extender.parts.readiness.is_leading()
            )

        eventually(is_seen, LIMIT_S)

    def pass_time(self, seconds: float) -> None:
        """Let time pass in a moment when no call is running; the watches receive an event then."""
        self.clock.shift(seconds)
        stamp = {"test/shifted": str(self.clock.now())}
        self.api.create("pods", pod_manifest("shifted", (Box(cards=0),), stamp))
        self.api.delete("pods", "shifted", "default")
        for node in self.nodes():
            self.api.annotate("nodes", node, stamp)
        eventually(lambda: self.extender.parts.readiness.why_not_synced() == "", LIMIT_S)

    def sweep(self) -> None:
        """As the sweeper does every 15 s."""
        self.extender.parts.sweeper.sweep()

    def rebuilt(self) -> ClusterState:
        """A new state from the API server's objects, with our reservations as if bound."""
        fresh = ClusterState(self.state.rules, self.clock)
        for node in self._nodes():
            fresh.node_changed(None, node)
        for pod in self.pods():
            held_on = pod.node_name or self.state.reservation_of(pod.uid)
            shown = {**pod.annotations, **self.carried(pod)}
            fresh.pod_changed(None, replace(pod, node_name=held_on, annotations=shown))
        return fresh

    def carried(self, pod: Pod) -> Mapping[str, str]:
        """The reservation of an unbound pod that stands in memory alone."""
        held_on = "" if pod.node_name else self.state.reservation_of(pod.uid)
        found = self.state.carried(pod.uid, held_on) if held_on else None
        return {} if found is None else found.annotations

    def _nodes(self) -> list[Node]:
        return [decode_node(node) for node in self.api.list("nodes")]

    def drift(self) -> list[str]:
        """Where the state differs from a rebuilt state, and what it charges without a reason."""
        fresh, found = self.rebuilt(), []
        ours, theirs = self.state.charges(), fresh.charges()
        live = {pod.uid: pod for pod in self.pods()}
        for uid in sorted(ours.keys() | theirs.keys()):
            if ours.get(uid) != theirs.get(uid):
                said = live[uid].annotations if uid in live else None
                latest = self.state.latest(uid)
                found.append(
                    f"{uid}: {ours.get(uid)} is charged, {theirs.get(uid)} by a rebuild; it says "
                    f"{said}, the state knows {latest}"
                )
        usage = {name: dict(cards) for name, cards in self.state.usage().items() if cards}
        if usage != {name: dict(cards) for name, cards in fresh.usage().items() if cards}:
            found.append("the cards' usage differs from a rebuild")
        for uid in ours:
            latest, pod = self.state.latest(uid), live.get(uid)
            vendors = self.state.rules.vendors
            if (
                latest is None
                or pod is None
                or reservation_marks(latest, vendors) != reservation_marks(pod, vendors)
            ):
                found.append(f"{uid} is charged for a reservation that does not stand")
        return found


def is_over(pod: Json) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def _version(obj: Json) -> tuple[str, str]:
    return obj["metadata"]["uid"], obj["metadata"]["resourceVersion"]


def overcommitted(pods: Iterable[Pod], state: ClusterState) -> list[str]:
    """Cards whose bound, unfinished pods hold more than the card has."""
    held: dict[tuple[str, str], list[int]] = {}
    for pod in pods:
        holding = holding_of(pod, state.rules.vendors) if pod.node_name else None
        for charge in () if holding is None else collapse(holding.grants):
            sums = held.setdefault((pod.node_name, charge.uuid), [0, 0, 0])
            sums[0] += charge.slots
            sums[1] += charge.memory_mib
            sums[2] += charge.cores
    room = (SLOTS, MEMORY_MIB, 100)
    return [
        f"{uuid} of {node} holds {sums} of {room}"
        for (node, uuid), sums in held.items()
        if any(have > most for have, most in zip(sums, room, strict=True))
    ]


def unreserved(pods: Iterable[Pod], state: ClusterState) -> list[str]:
    """Bound pods that ask for cards and have none on their node."""
    found = []
    for pod in pods:
        asked = sum(
            parse_whole_quantity(
                container.limits[nvidia_names.RESOURCE_GPU], nvidia_names.RESOURCE_GPU
            )
            for container in pod.containers
            if nvidia_names.RESOURCE_GPU in container.limits
        )
        if not asked or not pod.node_name or pod.is_over:
            continue
        holding = holding_of(pod, state.rules.vendors)
        granted = (
            []
            if holding is None
            else [g for container_grants in holding.grants.containers for g in container_grants]
        )
        strangers = [g.uuid for g in granted if not g.uuid.startswith(f"GPU-{pod.node_name}-")]
        if len(granted) != asked or strangers or pod.annotations[names.POD_NODE] != pod.node_name:
            found.append(f"{pod.key} on {pod.node_name} asks for {asked} cards, has {granted}")
    return found
