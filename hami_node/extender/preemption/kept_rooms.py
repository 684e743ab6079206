"""The room that evicted pods leave: kept for the pod for which they had to go.

kube-scheduler writes its choice to the pod (`status.nominatedNodeName`) and keeps what it counts
itself; what the victims held on cards nobody else keeps. It clears its choice whenever a call for
the pod fails, as between two leaders. So the victims are noted on the pod, for the next leader, and
the room is kept until they have ended. Their owner may write such a note, too, where no policy
forbids it: it counts for the node that was nominated only, and of its pods only those that
kube-scheduler evicts, both of which the status says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from hami_node.engine.fleet.eviction import Look, Trial
from hami_node.engine.fleet.fleet import Fleet, IsTimeUp, NoNode, Placed, Unfinished
from hami_node.engine.fleet.kept import Kept, place_beside
from hami_node.engine.place import PodRequest, Refused
from hami_node.engine.usage import PodGrants
from hami_node.errors import WireError
from hami_node.extender.state.pod_book import PodBook
from hami_node.model import Pod
from hami_node.ports import Clock
from hami_node.vendors.protocol import VendorProtocol
from hami_node.vendors.request import request_of
from hami_node.wire import names
from hami_node.wire.reservation import victims_of

UNSEEN_S: Final = 30.0
"""How long room is kept on the nodes of an answer while the watch shows no nomination."""
KEPT_S: Final = 600.0
"""How long it is kept for a nominated pod that does not come, once its victims are gone."""
LEFT_S: Final = 10.0
"""The same once the nomination was cleared: kube-scheduler tries the pod again within that."""
MAX_KEPT: Final = 1_000
"""Pods for which room is kept; of more, that of the oldest is given up."""
RETRY_S: Final = 1.0
MAX_SOUGHT: Final = 16
"""How often, and how often in a decision, room is sought for pods that others nominated."""
STEPS_AT_ONCE: Final = 512
"""A look that takes more steps of effort than that counts as several."""

NOTHING_KEPT: Final[Kept] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a pod gets on a node, and who leaves it for that."""

    grants: PodGrants
    victims: frozenset[str] = frozenset()


@dataclass(slots=True, kw_only=True)
class _Entry:
    """A pod for which room is kept.

    Attributes:
        heard: its nomination as the watch shows it.
        node: the nomination that counts; "" while one is awaited.
        victims: who is evicted there.
        is_cleared: the nomination was taken back, and its victims still count.
        rooms: by node; of a pod that another scheduler nominated, once it has been found.
        until_s: when its time is over, monotonic.
        sought_s: when its room was last sought.
    """

    pod: str
    priority: int
    request: PodRequest
    until_s: float
    heard: str = ""
    node: str = ""
    victims: frozenset[str] = frozenset()
    is_cleared: bool = False
    rooms: dict[str, Room] = field(default_factory=dict)
    sought_s: float | None = None

    def nominate(self, node: str, victims: frozenset[str], now_s: float) -> None:
        room = self.rooms.get(node)
        self.node, self.sought_s, self.is_cleared = node, None, False
        self.rooms, self.victims = ({}, victims) if room is None else ({node: room}, room.victims)
        self.extend(now_s)

    def extend(self, now_s: float) -> None:
        self.until_s = now_s + (LEFT_S if self.is_cleared else KEPT_S)


class KeptRooms:
    """Not thread-safe: its owner holds a lock."""

    def __init__(
        self, fleet: Fleet, clock: Clock, vendors: Sequence[VendorProtocol], pods: PodBook
    ) -> None:
        """Keep room on the nodes of `fleet`, for pods that ask for these vendors' cards."""
        self._fleet, self._clock, self._vendors, self._pods = fleet, clock, vendors, pods
        self._entries: dict[str, _Entry] = {}
        self._noted: dict[str, Pod] = {}

    def keep(self, pod: Pod, request: PodRequest, rooms: Mapping[str, Room]) -> None:
        """Keep these rooms for a pod, in place of those before, until its nomination is known."""
        known = self._entries.pop(pod.uid, None)
        heard = pod.nominated_node if known is None else known.heard
        self._add(
            pod.uid,
            _Entry(
                pod=pod.key,
                priority=pod.priority,
                request=request,
                until_s=self._clock.monotonic() + UNSEEN_S,
                heard=heard,
                rooms=dict(rooms),
            ),
        )

    def hear(self, pod: Pod) -> None:
        """Apply a state of a pod from the watch."""
        if pod.is_over:
            self.ended(pod)
        elif pod.node_name or pod.is_being_deleted:
            self._forget(pod.uid)
        else:
            if names.POD_VICTIMS in pod.annotations:
                self._noted[pod.uid] = pod
            else:
                self._noted.pop(pod.uid, None)
            entry = self._entries.get(pod.uid)
            if entry is not None:
                self._hear_again(pod, entry)
            elif pod.nominated_node:
                self._hear_new(pod, pod.nominated_node)

    def ended(self, pod: Pod) -> None:
        """The pod is gone: nothing is kept for it, and what it leaves is kept from now on."""
        self._forget(pod.uid)
        for entry in self._entries.values():
            if pod.is_preempted and pod.uid in entry.victims:
                entry.extend(self._clock.monotonic())

    def begin_term(self) -> None:
        """Keep the rooms of pods whose nomination was cleared before this replica saw it."""
        for pod in self._noted.values():
            if pod.uid not in self._entries:
                noted = victims_of(pod).items()
                nodes = [node for node, victims in noted if self._are_evicted(victims, node)]
                if nodes and (entry := self._hear_new(pod, nodes[0])) is not None:
                    self._clear(pod.uid, entry)

    def awaited(self, uid: str) -> str:
        """Where pods are evicted for this one although its nomination was cleared; or ""."""
        entry = self._entries.get(uid)
        if entry is None or not entry.is_cleared:
            return ""
        return entry.node if self._are_evicted(entry.victims, entry.node) else ""

    def against(self, uid: str, priority: int) -> Kept:
        """By node: what is kept there for other pods that this one may not overtake."""
        if not self._entries:
            return NOTHING_KEPT
        found: dict[str, tuple[PodGrants, ...]] = {}
        for _, node, room in self._rooms(uid, priority):
            found[node] = (*found.get(node, ()), room.grants)
        return found

    def owners(self, uid: str, priority: int) -> Mapping[str, str]:
        """By node: a pod for which room is kept there, as `namespace/name`."""
        return {node: entry.pod for entry, node, _ in self._rooms(uid, priority)}

    def _add(self, uid: str, entry: _Entry) -> None:
        self._entries[uid] = entry
        while len(self._entries) > MAX_KEPT:
            del self._entries[next(iter(self._entries))]

    def _forget(self, uid: str) -> None:
        self._entries.pop(uid, None)
        self._noted.pop(uid, None)

    def _hear_new(self, pod: Pod, node: str) -> _Entry | None:
        """A nomination without an answer of ours: of the leader before, or by CPU and memory."""
        try:
            request = request_of(pod, self._vendors)
        except WireError:
            return None
        if request.is_empty:
            return None
        entry = _Entry(pod=pod.key, priority=pod.priority, request=request, until_s=0.0)
        entry.heard = pod.nominated_node
        self._nominate(entry, pod, node)
        self._add(pod.uid, entry)
        return entry

    def _hear_again(self, pod: Pod, entry: _Entry) -> None:
        nominated = entry.heard = pod.nominated_node
        if not entry.node:  # an older nomination may be shown before the one that follows
            if nominated in entry.rooms:
                self._nominate(entry, pod, nominated)
        elif not nominated:
            self._clear(pod.uid, entry)
        elif nominated != entry.node or entry.is_cleared:
            self._nominate(entry, pod, nominated)

    def _nominate(self, entry: _Entry, pod: Pod, node: str) -> None:
        entry.nominate(node, victims_of(pod).get(node, frozenset()), self._clock.monotonic())

    def _clear(self, uid: str, entry: _Entry) -> None:
        """Its nomination was taken back: by an error or for good, which nobody can tell."""
        if not entry.victims:
            self._entries.pop(uid)
        elif not entry.is_cleared:
            entry.is_cleared = True
            entry.extend(self._clock.monotonic())

    def _are_evicted(self, victims: frozenset[str], node: str) -> bool:
        """True until the last of them has ended; a pod that is not evicted does not count."""
        return any(self._pods.is_evicted(uid, node) for uid in victims)

    def _rooms(self, uid: str, priority: int) -> Iterator[tuple[_Entry, str, Room]]:
        """Every room that this pod may not take."""
        now_s, sought = self._clock.monotonic(), 0
        for owner, entry in list(self._entries.items()):
            if owner == uid or entry.priority < priority or self._fleet.node_of(owner) is not None:
                continue  # what it has reserved is charged
            if self._is_over(owner, entry, now_s):
                continue
            if entry.node and not entry.rooms and sought < MAX_SOUGHT:
                sought += self._seek(owner, entry, now_s)
            for node, room in entry.rooms.items():
                yield entry, node, room

    def _is_over(self, owner: str, entry: _Entry, now_s: float) -> bool:
        """True once a pod's time is over; a nomination that stays is not believed again."""
        if now_s <= entry.until_s:
            return False
        if not entry.node:
            if entry.heard not in entry.rooms:
                self._entries.pop(owner)
                return True
            entry.nominate(entry.heard, frozenset(), now_s)
            return False
        if self._are_evicted(entry.victims, entry.node):
            entry.extend(now_s)
            return False
        if entry.is_cleared:
            self._entries.pop(owner)
        return True

    def _seek(self, owner: str, entry: _Entry, now_s: float) -> int:
        """Find the room of a nomination that is not ours; how often it was sought by that."""
        if entry.sought_s is not None and now_s - entry.sought_s < RETRY_S:
            return 0
        entry.sought_s, node = now_s, entry.node
        taken = tuple(
            other.rooms[node].grants
            for uid, other in self._entries.items()
            if node in other.rooms and self._fleet.node_of(uid) is None
        )
        look = Look(gone=self._pods.leaving(node) | {owner}, kept=taken)
        trial = Trial(self._fleet, entry.request)
        grants = trial.grants(node, look)
        if grants is not None:
            entry.rooms = {node: Room(grants=grants)}
        return 1 + trial.steps // STEPS_AT_ONCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """The state's parts; to be used only while its lock is held."""

    lock: AbstractContextManager[object]
    fleet: Fleet
    pods: PodBook
    kept: KeptRooms

    @contextmanager
    def held(self) -> Iterator[Books]:
        """With the state's lock: one decision at a time."""
        with self.lock:
            yield self

    def place(
        self,
        pod: Pod,
        request: PodRequest,
        candidates: Collection[str] | None,
        is_time_up: IsTimeUp,
    ) -> Placed | NoNode | Refused | Unfinished:
        """Choose node and cards, and take no room that is kept for others; nothing is charged."""
        kept = self.kept.against(pod.uid, pod.priority)
        return place_beside(self.fleet, request, candidates, kept, is_time_up)
