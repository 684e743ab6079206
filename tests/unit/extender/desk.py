"""Filter and Bind on a desk: in-memory API server, a watch that is moved by hand, a fake clock."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from hami_node.cluster.node_lock import NodeLock
from hami_node.config.settings import make_settings
from hami_node.errors import NotLeading
from hami_node.extender.binding.bind import PodBinder
from hami_node.extender.binding.bind_lock import QUIET_S, BindLock
from hami_node.extender.filter import Outlets, PodFilter
from hami_node.extender.placing import PodPlacer
from hami_node.extender.resizing.resizer import Resizer
from hami_node.extender.rules import rules_of
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.extender.state.reservation_writer import ReservationWriter
from hami_node.extender.sweeper import Sweeper
from hami_node.extender.waiting import WaitingPods
from hami_node.model import Device, Node, Pod, Uuid
from hami_node.ports import EventNote, Fence
from hami_node.simulate.store import Json
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.codec import encode_json
from hami_node.vendors.registry import VENDORS
from hami_node.vendors.spec import AnyVendor
from hami_node.wire import names
from hami_node.wire.objects import decode_node, decode_pod
from tests.fakes.clock import FakeClock
from tests.fakes.extender_kube import FakeExtenderKube
from tests.fakes.pods import Box, pod_body

SCHEDULER = "hami-scheduler"
MEMORY_MIB = 10_000


def card(node: str, index: int, **fields: Any) -> Device:
    given: dict[str, Any] = {
        "uuid": Uuid(f"GPU-{node}-{index}"),
        "index": index,
        "vendor": NVIDIA,
        "model": "NVIDIA H100",
        "numa": 0,
        "slots": 10,
        "memory_mib": MEMORY_MIB,
    }
    return Device(**(given | fields))


class Desk:
    """`sync` is the watch: until it is called, the state does not know what others did."""

    def __init__(
        self,
        *nodes: str,
        cards: int = 1,
        lock_wait_s: float = 0.0,
        is_patched: bool = False,
        vendors: Sequence[AnyVendor] = VENDORS,
        values: Mapping[str, object] | None = None,
        beside: Desk | None = None,
        clock: FakeClock | None = None,
    ) -> None:
        """Nodes with `cards` each, under the settings with these values.

        With `is_patched` new pods carry a label that an earlier decision left, so that /filter
        writes the reservation to the pod; else the pod's Binding carries it. `beside` is the desk
        of another replica in the same cluster.
        """
        self._labels = {names.POD_NODE: "earlier"} if is_patched else {}
        self.clock: FakeClock = clock or (FakeClock() if beside is None else beside.clock)
        self.kube: FakeExtenderKube = FakeExtenderKube() if beside is None else beside.kube
        self.results: list[str] = []
        self.notes: list[EventNote] = []
        self.shown_pods: dict[str, Pod] = {}
        self.shown_nodes: dict[str, Node] = {}
        blocks = tuple(vendor.settings for vendor in vendors)
        rules = rules_of(make_settings(values or {}, blocks), vendors)
        self.state = ClusterState(rules, self.clock)
        self.writer = ReservationWriter(self.kube, self.clock, rules.vendors)
        self.is_leading = True
        self.waiting = WaitingPods(self.find_shown, self.clock)
        outlets = Outlets(
            notify=self.notes.append,
            on_result=self.results.append,
            on_wait=self.waiting.note,
            require_lead=self.fence,
        )
        placer = PodPlacer(self.state, self.writer, self.find_shown)
        self.filter = PodFilter(placer, outlets)
        node_lock = NodeLock(self.kube, self.clock, quiet_s=QUIET_S)
        lock = BindLock(
            self.state, self.kube, node_lock, self.clock, threading.Event(), wait_s=lock_wait_s
        )
        self.binder = PodBinder(placer, self.kube, lock, outlets, self.clock, SCHEDULER)
        self.resizer = Resizer(self.state, self.kube, outlets)
        for name in nodes:
            self.add_node(name, cards=cards)
        self.sync()

    # -- the cluster -------------------------------------------------------------------------------
    def add_node(self, name: str, *, cards: int = 1, has_identity: bool = True) -> None:
        notes = {
            nvidia_names.NODE_REGISTER: encode_json(tuple(card(name, at) for at in range(cards)))
        }
        if has_identity:
            notes[names.NODE_IDENTITY] = names.IDENTITY_POD_RESOURCES
        body = {
            "metadata": {"name": name, "annotations": notes},
            "status": {"allocatable": {nvidia_names.RESOURCE_GPU: str(10 * cards)}},
        }
        self.kube.store.create("nodes", "", body)

    def add_pod(
        self,
        name: str,
        *boxes: Box,
        memory_mib: int = 6000,
        annotations: Mapping[str, str] | None = None,
    ) -> Json:
        body = pod_body(name, boxes or (Box(memory_mib=memory_mib),), annotations, node="")
        body["spec"]["schedulerName"] = SCHEDULER
        if self._labels:
            body["metadata"]["labels"] = dict(self._labels)
        return self.kube.store.create("pods", "default", body)

    def edit_pod(self, name: str, **parts: Mapping[str, Any]) -> None:
        """`spec=`, `status=` or `annotations=`, by somebody else."""

        def change(body: Json) -> Json:
            for part, values in parts.items():
                home = body["metadata"] if part == "annotations" else body
                home.setdefault(part, {}).update(values)
            return body

        self.kube.store.change("pods", "default", name, change)

    def delete_pod(self, name: str) -> None:
        self.kube.store.delete("pods", "default", name)

    def begin_deletion(self, name: str) -> None:
        """As a deletion with a grace period does: the pod is there until that is over."""
        when = {"deletionTimestamp": "2026-01-01"}
        self.kube.store.change(
            "pods", "default", name, lambda body: body | {"metadata": body["metadata"] | when}
        )

    def pod(self, name: str) -> Pod:
        return decode_pod(self.kube.store.read("pods", "default", name))

    def notes_of(self, name: str) -> Mapping[str, str]:
        return self.pod(name).annotations

    def lock(self, node: str, text: str | None = None) -> str:
        """Set the lock, or say what it is."""
        if text is not None:
            self.kube.merge_patch_node(node, {names.NODE_LOCK: text})
        read = decode_node(self.kube.store.read("nodes", "", node))
        return read.annotations.get(names.NODE_LOCK, "")

    def require_lead(self) -> None:
        if not self.is_leading:
            raise NotLeading("replica b decides")

    def fence(self) -> Fence:
        """As of a decision that begins now."""
        self.require_lead()
        return self.require_lead

    def lose_lead(self) -> None:
        self.is_leading = False

    # -- the watch ---------------------------------------------------------------------------------
    def find_shown(self, namespace: str, name: str) -> Pod | None:
        return self.shown_pods.get(f"{namespace}/{name}")

    def sync(self) -> None:
        """The watches catch up."""
        pods = {pod.key: pod for pod in self.kube.list_pods()}
        nodes = {node.name: node for node in self.kube.list_nodes()}
        for key, known in list(self.shown_pods.items()):
            if key not in pods or pods[key].uid != known.uid:
                self.state.pod_changed(known, None)
                self.resizer.pod_changed(known, None)
        for key, pod in pods.items():
            if self.shown_pods.get(key) != pod:
                self.state.pod_changed(self.shown_pods.get(key), pod)
                self.resizer.pod_changed(self.shown_pods.get(key), pod)
        for name, node in self.shown_nodes.items():
            if name not in nodes:
                self.state.node_changed(node, None)
        for node in nodes.values():
            self.state.node_changed(self.shown_nodes.get(node.name), node)
        self.shown_pods, self.shown_nodes = pods, nodes

    # -- calls -------------------------------------------------------------------------------------
    def ask(self, pod: Json | str, *nodes: str) -> Json:
        """/filter; a name is read as it stands."""
        given = self.kube.store.read("pods", "default", pod) if isinstance(pod, str) else pod
        body = {"Pod": given, "NodeNames": list(nodes or self.shown_nodes)}
        answer: Json = json.loads(self.filter.answer(json.dumps(body).encode()))
        return answer

    def choose(self, pod: Json | str, *nodes: str) -> str:
        """The node of one call, or ""."""
        return "".join(self.ask(pod, *nodes)["NodeNames"] or ())

    def bind(self, name: str, node: str, uid: str = "") -> str:
        """/bind; the error."""
        args = {
            "PodName": name,
            "PodNamespace": "default",
            "PodUID": uid or f"uid-{name}",
            "Node": node,
        }
        return str(json.loads(self.binder.answer(json.dumps(args).encode()))["Error"])

    def held(self) -> dict[str, int]:
        """MiB charged, by pod."""
        return {
            uid.removeprefix("uid-"): sum(charge.memory_mib for charge in charges)
            for uid, (_, charges) in self.state.charges().items()
        }

    def sweep(self) -> None:
        """What the sweeper drops."""
        version = self.kube.store.version
        self.state.sweep([pod.uid for pod in self.shown_pods.values()], version)

    def clear_leftovers(self) -> None:
        """What the sweeper then writes."""
        absent: Any = None
        sweeper = Sweeper(
            self.state,
            absent,
            self.writer,
            absent,
            absent,
            clock=self.clock,
            scheduler_name=SCHEDULER,
        )
        sweeper._clear_leftovers(self.fence())
