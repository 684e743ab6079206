"""Allocate alone, between a real HTTP API and a list that the test writes: for faults and kills."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

from hami_node.clock import Deadline
from hami_node.cluster.client import KubeClient, connect
from hami_node.cluster.node_lock import NodeLock
from hami_node.cluster.transport.connection import Timeouts
from hami_node.cluster.watching.views import WatchedCluster
from hami_node.engine.compat import COMPATS
from hami_node.errors import AllocationError, KubeletError
from hami_node.model import Node, Pod
from hami_node.node.allocate.allocator import AllocatorParts, PodAllocator
from hami_node.node.allocate.lock_keeper import LockKeeper
from hami_node.node.allocate.owed import OwedWrites
from hami_node.node.allocate.pod_writer import PodWriter
from hami_node.node.allocate.terms import AllocateRules, CardState, ReservedTerms
from hami_node.node.holdings.live_use import LiveUse
from hami_node.node.identity.identity import Identity, IdentitySources
from hami_node.ports import EventNote, HeldContainer
from hami_node.record.file import RecordFile
from hami_node.record.ledger import Ledger
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.choices import BackendKind
from hami_node.vendors.nvidia.node.handover.node_hand_over import NodeHandOver
from hami_node.vendors.nvidia.node.limiter.hook_folder import HookFolder
from hami_node.vendors.nvidia.node.limiter.limiter_files import Limiter
from hami_node.vendors.nvidia.node.response import NvidiaResponder
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.answer import ContainerResponse, Responder, Slice
from hami_node.vendors.on_node.parts import CardParts
from hami_node.wire import names
from hami_node.wire.objects import decode_pod
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.cards import card
from tests.fakes.clock import RealClock
from tests.fakes.limiter import lay_limiter
from tests.fakes.pods import NODE, Box, Generation, Reserved, layout, pod_body, reservation
from tests.fakes.waiting import eventually, remove

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
    is_armed: bool = False

    def mortal(self, target: object) -> Any:
        """The same object, but every method call may be the last."""
        return _Mortal(target, self)

    def call(self, name: str, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        if not self.is_armed:
            return method(*args, **named)
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
        if name == "within":
            return lambda deadline: _Mortal(found(deadline), self._fate)
        if not callable(found):
            return found
        return lambda *args, **named: self._fate.call(name, found, *args, **named)


class MortalRecord(RecordFile):
    """A record each write of which may be the last, on a disk that may hang."""

    def __init__(self, world: World, name: str, fate: Fate) -> None:
        super().__init__(world.record, name)
        self._world, self._fate = world, fate

    def save(self, payload: bytes) -> None:
        self._world.disk(self._world.record)
        self._fate.call("save", super().save, payload)


class SlowHook(HookFolder):
    """The limiter's folder on a disk that may hang."""

    def __init__(self, world: World) -> None:
        super().__init__(world.hook)
        self._world = world

    def prepare(self, granted: Slice, limiter: Limiter) -> Limiter:
        self._world.disk(self._world.hook)
        return super().prepare(granted, limiter)


class Listed:
    """kubelet's list: every container of the pods it knows, with the IDs it gave out."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}
        self.faults: list[KubeletError] = []

    def list(self, deadline: Deadline | None = None) -> tuple[HeldContainer, ...]:
        del deadline
        if self.faults:
            raise self.faults.pop(0)
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
        self.world, self.stop, self.clock = world, threading.Event(), RealClock()
        fate = fate or Fate()
        clock = self.clock
        self.kube: KubeClient = connect(
            world.kubeconfig, component="test", clock=clock, timeouts=SHORT
        )
        self.view = WatchedCluster.of_node(self.kube, NODE, clock)
        hook, vendor = SlowHook(world), nvidia_protocol()
        watched = Veiled(self.view, world.hidden)
        self.ledger = Ledger(MortalRecord(world, "grants", fate))
        self.live = LiveUse(
            watched=watched,
            vendors=[vendor],
            ledger=self.ledger,
            clock=clock,
        )
        kube = fate.mortal(self.kube)
        self.keeper = LockKeeper(
            lock=NodeLock(kube, clock),
            kube=kube,
            watched=watched,
            live=self.live,
            vendors=[vendor],
            node_name=NODE,
            clock=clock,
        )
        self.owed = OwedWrites(
            kube=kube,
            locks=self.keeper,
            file=MortalRecord(world, "owed", fate),
            clock=clock,
        )
        cards = world.cards
        rules = AllocateRules(vendor=vendor, vendors=(vendor,), compat=COMPATS["2.8"])
        identity = Identity(
            vendor=vendor,
            resource=GPU,
            sources=IdentitySources(
                live=self.live,
                ledger=self.ledger,
                kube=kube,
                resources=fate.mortal(world.listed),
                lock_owner=self.keeper.owner_now,
            ),
            node_name=NODE,
        )
        self.one_at_a_time = threading.Lock()
        self.writer = PodWriter(
            kube=kube,
            locks=self.keeper,
            live=self.live,
            vendors=[vendor],
            notify=lambda note: fate.call("notify", world.events.append, note),
            owed=self.owed,
        )
        settings = NvidiaSettings(hook_path=world.hook, backend=BackendKind.SIMULATED)
        state = CardState(
            cards=lambda: cards,
            usage=lambda leave_out: self.live.cards(cards, leave_out=leave_out),
            live=self.live,
        )
        self.allocator = PodAllocator(
            AllocatorParts(
                identity=identity,
                terms=ReservedTerms(state, identity, self.writer),
                ledger=self.ledger,
                cards=lambda: cards,
                writer=self.writer,
                responder=world.responder
                or NvidiaResponder(
                    cast(HookFolder, fate.mortal(hook)),
                    lambda: settings,
                    NodeHandOver(lambda: settings),
                ),
                parts=lambda: None if world.parts is None else fate.mortal(world.parts),
                notice=self.live.noticed,
                rules=lambda: rules,
                clock=clock,
                resource=GPU,
                one_at_a_time=self.one_at_a_time,
                on_result=lambda result, _: world.results.append(result),
            )
        )
        self.view.start(self.stop)
        eventually(self.view.is_synced)
        self.ledger.load()
        self.live.settle(world.listed.list())
        fate.is_armed = True

    def deadline(self) -> Deadline:
        """Of a call that begins now."""
        return Deadline.after(self.world.budget_s, self.clock.monotonic)

    def pay(self) -> None:
        """What is done once the answer has left."""
        self.owed.pay(threading.Event())

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
        self.root = Path(tempfile.mkdtemp(prefix="hn-"))
        self.hook, self.record = self.root / "hook", self.root / "record"
        lay_limiter(self.hook)
        self.api = FaultyApiServer().start()
        self.api.create("nodes", {"metadata": {"name": NODE}, "status": {}})
        self.kubeconfig = self.api.write_kubeconfig(self.root / "kubeconfig")
        self.listed = Listed()
        self.hidden: set[str] = set()
        self.events: list[EventNote] = []
        self.results: list[str] = []
        self.disk: Callable[[Path], object] = lambda _: None
        self.budget_s = 3.0
        self.cards = tuple(card(i) for i in range(4))
        self.parts: CardParts | None = None
        self.responder: Responder | None = None
        self._desks: list[AllocatingDaemon] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for desk in self._desks:
            desk.close()
        self.api.stop()
        remove(self.root)

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
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        """A scheduler reserves, locks and binds; kubelet begins the admission."""
        notes = reservation(layout(boxes, reserved, generation)) | dict(annotations or {})
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
        desk = self._desks[0]
        try:
            answer = desk.allocator.allocate([ids], desk.deadline())[0]
        except AllocationError:
            desk.pay()
            raise
        self.listed.held["default", pod][container] = tuple(ids)
        desk.pay()
        return answer

    def kubelet_fails(self, pod: str, *, lists_ended_pods: bool = False) -> None:
        """kubelet has no answer: the pod is Failed for good."""
        if not lists_ended_pods:
            del self.listed.held["default", pod]
        self.api.edit("pods", pod, lambda body: body["status"].update(phase="Failed"), "default")

    @property
    def reasons(self) -> list[str]:
        """Of all Events, written or queued."""
        return [
            *(note.reason for note in self.events),
            *(str(note["reason"]) for note in self.api.list("events")),
        ]

    def pod(self, name: str) -> Pod:
        return decode_pod(self.api.read("pods", name, "default"))

    @property
    def notes(self) -> dict[str, str]:
        return dict(self.api.read("nodes", NODE)["metadata"].get("annotations") or {})

    @property
    def lock_text(self) -> str:
        return self.notes.get(names.NODE_LOCK, "")
