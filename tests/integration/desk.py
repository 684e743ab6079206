"""Allocate alone, between a real HTTP API and a list that the test writes: for faults and kills."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

from hami_node.cluster.client import KubeClient, connect
from hami_node.cluster.node_lock import NodeLock
from hami_node.cluster.transport.connection import Timeouts
from hami_node.cluster.watching.views import WatchedCluster
from hami_node.engine.compat import COMPATS
from hami_node.model import Node, Pod
from hami_node.node.allocate.allocator import AllocateRules, AllocatorParts, PodAllocator
from hami_node.node.allocate.identity import Identity, IdentitySources
from hami_node.node.allocate.live_use import LiveUse
from hami_node.node.allocate.lock_keeper import LockKeeper
from hami_node.node.allocate.pod_writer import PodWriter
from hami_node.ports import EventNote, HeldContainer
from hami_node.vendors.answer import ContainerResponse
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.node.response import HookFolder, NvidiaResponder
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.wire import names
from hami_node.wire.objects import decode_pod
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.cards import card
from tests.fakes.clock import RealClock
from tests.fakes.pods import NODE, Box, Generation, Reserved, layout, pod_body, reservation
from tests.fakes.waiting import eventually

GPU = nvidia_names.RESOURCE_GPU
SHORT = Timeouts(connect_s=1.0, read_s=0.25, total_s=1.0)


class Killed(BaseException):
    """The process ended here."""


@dataclass(slots=True)
class Fate:
    """Counts calls to collaborators and ends the process before or after one of them."""

    at: int = 0
    is_after: bool = False
    calls: list[str] = field(default_factory=list)

    def mortal(self, target: object) -> Any:
        """The same object, but every method call may be the last."""
        return _Mortal(target, self)

    def call(self, name: str, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        self.calls.append(name)
        is_last = len(self.calls) == self.at
        if is_last and not self.is_after:
            raise Killed
        result = method(*args, **named)
        if is_last:
            raise Killed
        return result


class _Mortal:
    def __init__(self, target: object, fate: Fate) -> None:
        self._target, self._fate = target, fate

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not callable(found):
            return found
        return lambda *args, **named: self._fate.call(name, found, *args, **named)


class Listed:
    """kubelet's list: every container of the pods it knows, with the IDs it gave out."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}

    def list(self) -> tuple[HeldContainer, ...]:
        return tuple(
            HeldContainer(namespace=key[0], pod=key[1], container=container, device_ids={GPU: ids})
            for key, containers in self.held.items()
            for container, ids in containers.items()
        )


class Veiled:
    """A watch that does not show some pods yet."""

    def __init__(self, view: WatchedCluster, hidden: set[str]) -> None:
        self._view, self._hidden = view, hidden

    def pods(self) -> tuple[Pod, ...]:
        return tuple(pod for pod in self._view.pods() if pod.name not in self._hidden)

    def pod(self, namespace: str, name: str) -> Pod | None:
        return None if name in self._hidden else self._view.pod(namespace, name)

    def node(self) -> Node | None:
        return self._view.node()

    def is_synced(self) -> bool:
        return self._view.is_synced()


class AllocatingDaemon:
    """One life of the allocating part of a daemon on a node that outlives it."""

    def __init__(self, world: World, fate: Fate | None = None) -> None:
        self.world, self.stop = world, threading.Event()
        fate = fate or Fate()
        clock, no_waits = RealClock(), threading.Event()
        no_waits.set()
        self.kube: KubeClient = connect(
            world.kubeconfig, component="test", clock=clock, timeouts=SHORT
        )
        self.view = WatchedCluster.of_node(self.kube, NODE, clock)
        hook, vendor = HookFolder(world.hook, world.root / "lock"), nvidia_protocol()
        watched = Veiled(self.view, world.hidden)
        self.live = LiveUse(
            watched=watched,
            vendors=[vendor],
            has_served=lambda _, folder_name: hook.has_served(folder_name),
            clock=clock,
        )
        kube = fate.mortal(self.kube)
        self.keeper = LockKeeper(
            lock=NodeLock(kube, clock), kube=kube, watched=watched, live=self.live, vendors=[vendor]
        )
        cards = tuple(card(i) for i in range(4))
        rules = AllocateRules(vendor=vendor, vendors=(vendor,), compat=COMPATS["2.8"])
        identity = Identity(
            vendor=vendor,
            resource=GPU,
            served_resources=[GPU],
            sources=IdentitySources(
                live=self.live,
                kube=kube,
                resources=fate.mortal(world.listed),
                lock_owner=self.keeper.owner,
            ),
            node_name=NODE,
            has_served=hook.has_served,
        )
        writer = PodWriter(
            kube=kube,
            locks=self.keeper,
            live=self.live,
            vendors=[vendor],
            notify=lambda note: fate.call("notify", world.events.append, note),
            stop=no_waits,
        )
        settings = NvidiaSettings(hook_path=world.hook)
        self.allocator = PodAllocator(
            AllocatorParts(
                identity=identity,
                live=self.live,
                cards=lambda: cards,
                usage=lambda leave_out: self.live.cards(cards, leave_out=leave_out),
                writer=writer,
                responder=NvidiaResponder(cast(HookFolder, fate.mortal(hook)), lambda: settings),
                rules=lambda: rules,
                clock=clock,
                one_at_a_time=threading.Lock(),
                on_result=lambda result, _: world.results.append(result),
            )
        )
        self.view.start(self.stop)
        eventually(self.view.is_synced)

    def close(self) -> None:
        """The end, orderly or not: nothing is written."""
        self.stop.set()
        self.view.close()
        self.kube.close()

    def wait_seen(self) -> None:
        """Wait until the watches show what the API server has."""

        def is_true() -> bool:
            pods = {pod.name: pod.resource_version for pod in self.view.pods()}
            want = {
                body["metadata"]["name"]: body["metadata"]["resourceVersion"]
                for body in self.world.api.list("pods")
            }
            node = self.view.node()
            return node is not None and node.annotations == self.world.notes and pods == want

        eventually(is_true)


class World:
    """What a kill does not end: API server, kubelet's list, the disk."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="hn-")
        self.root = Path(self._folder.name)
        self.hook = self.root / "hook"
        (self.hook / "vgpu").mkdir(parents=True)
        for name in ("libvgpu.so", "ld.so.preload"):
            (self.hook / "vgpu" / name).write_text("stand-in", encoding="utf-8")
        self.api = FaultyApiServer().start()
        self.api.create("nodes", {"metadata": {"name": NODE}, "status": {}})
        self.kubeconfig = self.api.write_kubeconfig(self.root / "kubeconfig")
        self.listed = Listed()
        self.hidden: set[str] = set()
        self.events: list[EventNote] = []
        self.results: list[str] = []
        self._desks: list[AllocatingDaemon] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for desk in self._desks:
            desk.close()
        self.api.stop()
        self._folder.cleanup()

    def desk(self, fate: Fate | None = None) -> AllocatingDaemon:
        """A daemon starts; the one before is dead."""
        for old in self._desks:
            old.close()
        self._desks = [AllocatingDaemon(self, fate)]
        return self._desks[0]

    def place(
        self,
        name: str,
        boxes: Sequence[Box],
        reserved: Reserved,
        generation: Generation = Generation.V2_10,
        *,
        is_locked: bool = True,
    ) -> None:
        """A scheduler reserves, locks and binds; kubelet begins the admission."""
        notes = reservation(layout(boxes, reserved, generation))
        self.api.create("pods", pod_body(name, boxes, notes))
        if is_locked:
            lock = f"2099-01-01T00:00:00Z,default,{name}"
            self.api.annotate("nodes", NODE, {names.NODE_LOCK: lock})
        self.listed.held["default", name] = {
            box.name: () for box in boxes if box.kind.value != "init"
        }
        for desk in self._desks:
            desk.wait_seen()

    def allocate(self, pod: str, ids: Sequence[str], container: str = "main") -> ContainerResponse:
        """kubelet's call; a served container is listed with its IDs from then on."""
        answer = self._desks[0].allocator.allocate([ids])[0]
        self.listed.held["default", pod][container] = tuple(ids)
        return answer

    def kubelet_fails(self, pod: str, *, lists_ended_pods: bool = False) -> None:
        """kubelet has no answer: the pod is Failed for good."""
        if not lists_ended_pods:
            del self.listed.held["default", pod]
        self.api.edit("pods", pod, lambda body: body["status"].update(phase="Failed"), "default")

    def pod(self, name: str) -> Pod:
        return decode_pod(self.api.read("pods", name, "default"))

    @property
    def notes(self) -> dict[str, str]:
        return dict(self.api.read("nodes", NODE)["metadata"].get("annotations") or {})

    @property
    def lock_text(self) -> str:
        return self.notes.get(names.NODE_LOCK, "")
