"""Allocate alone, between a real HTTP API and a list that the test writes: for faults and kills."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

from hami_node.clock import Deadline
from hami_node.cluster.client import KubeClient, connect
from hami_node.cluster.transport.connection import Timeouts
from hami_node.cluster.watching.views import WatchedCluster
from hami_node.errors import AllocationError, KubeError, KubeletError
from hami_node.model import Node, Pod
from hami_node.node.allocate.allocator import PodAllocator
from hami_node.node.allocate.lock_keeper import LockKeeper
from hami_node.node.allocate.phases import Phases
from hami_node.node.cards.preference import CardChoice
from hami_node.node.holdings.live_use import LiveUse
from hami_node.node.holdings.recorded import grant_codec
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
from hami_node.vendors.nvidia.spec import NVIDIA_SPEC
from hami_node.vendors.on_node.answer import ContainerResponse, Responder, Slice
from hami_node.vendors.on_node.parts import CardParts
from tests.fakes.cards import card
from tests.fakes.clock import RealClock
from tests.fakes.pods import NODE, Box, Generation, Reserved, layout, pod_body, reservation
from tests.fakes.settings import settings
from tests.fakes.waiting import eventually
from tests.integration.rig import Site

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
        fate, clock = fate or Fate(), self.clock
        self.kube: KubeClient = connect(
            world.kubeconfig, component="test", clock=clock, timeouts=SHORT
        )
        self.view = WatchedCluster.of_node(self.kube, NODE, clock)
        kube, watched = fate.mortal(self.kube), Veiled(self.view, world.hidden)
        served = (nvidia_protocol(),)
        self.ledger = Ledger(MortalRecord(world, "grants", fate), grant_codec(served))
        self.live = LiveUse(watched=watched, vendors=served, ledger=self.ledger, clock=clock)
        self.one_at_a_time = threading.Lock()
        node = self._cards(fate)
        vars(node).update(
            kube=kube,
            view=watched,
            kubelet=fate.mortal(world.listed),
            served=served,
            ledger=self.ledger,
            live=self.live,
            notify=lambda note: fate.call("notify", world.notified.append, note),
            one_at_a_time=self.one_at_a_time,
            refused={},
            wake=lambda *_: None,
            metrics=SimpleNamespace(
                locks_removed=SimpleNamespace(count=lambda _: None),
                count_allocate=lambda result, _: world.results.append(result),
            ),
        )
        self.keeper, self.phases = LockKeeper(node), Phases(node)
        (owner,) = node.vendor_cards
        (resource,) = owner.resources
        self.allocator = PodAllocator(node, owner, resource, self.keeper)
        self.view.start(self.stop)
        eventually(self.view.is_synced)
        self.ledger.load()
        self.live.settle(world.listed.list())
        fate.is_armed = True

    def _cards(self, fate: Fate) -> Any:
        """The state of a node with the cards of the world, as the daemon's resource of them."""
        world = self.world
        found = settings(node_name=NODE, hook_path=world.hook, backend=BackendKind.SIMULATED)
        own = found.of(NvidiaSettings)
        hook = cast(HookFolder, fate.mortal(SlowHook(world)))
        hand_over = NodeHandOver(lambda: own)
        resource = SimpleNamespace(
            name=GPU,
            vendor=NVIDIA_SPEC,
            lifecycle=world.lifecycle,
            inventory=SimpleNamespace(cards=world.cards),
            choice=lambda: CardChoice(cards=world.cards),
            is_aligned=lambda: False,
            update_hints=lambda _: None,
        )
        owner = SimpleNamespace(
            vendor=NVIDIA_SPEC,
            resources=(resource,),
            responder=world.responder or NvidiaResponder(hook, lambda: own, hand_over),
            parts=world.parts and fate.mortal(world.parts),
        )
        return SimpleNamespace(
            settings=lambda: found,
            vendors=(NVIDIA_SPEC,),
            vendor_cards=(owner,),
            clock=self.clock,
            cards=lambda: world.cards,
        )

    def deadline(self) -> Deadline:
        """Of a call that begins now."""
        return Deadline.after(self.world.budget_s, self.clock.monotonic)

    def follow_up(self) -> None:
        """What the loop does once the answer has left."""
        for look in (self.phases.look, self.keeper.watch):
            with suppress(KubeError):  # tried again by a later pass
                look()

    def follow_up_until(self, is_true: Callable[[], object]) -> None:
        """As the loop does, again and again."""

        def is_done() -> object:
            self.follow_up()
            return is_true()

        eventually(is_done)

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


class World(Site):
    """What a kill does not end, and kubelet's list."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = Listed()
        self.hidden: set[str] = set()
        self.notified: list[EventNote] = []
        self.results: list[str] = []
        self.disk: Callable[[Path], object] = lambda _: None
        self.budget_s = 3.0
        self.lifecycle = SimpleNamespace(registrations=1)
        self.cards = tuple(card(i) for i in range(4))
        self.parts: CardParts | None = None
        self.responder: Responder | None = None
        self._desks: list[AllocatingDaemon] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for desk in self._desks:
            desk.close()
        self.close()

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
            self.lock(name)
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
            desk.follow_up()
            raise
        self.listed.held["default", pod][container] = tuple(ids)
        desk.follow_up()
        return answer

    def kubelet_fails(self, pod: str, *, lists_ended_pods: bool = False) -> None:
        """kubelet has no answer: the pod is Failed for good."""
        if not lists_ended_pods:
            del self.listed.held["default", pod]
        status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "refused"}
        self.api.edit("pods", pod, lambda body: body["status"].update(status), "default")

    @property
    def reasons(self) -> list[str]:
        """Of all Events, written or queued."""
        return [
            *(note.reason for note in self.notified),
            *(str(note["reason"]) for note in self.api.list("events")),
        ]
