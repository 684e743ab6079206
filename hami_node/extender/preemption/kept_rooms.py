"""The room that evicted pods leave: kept for the pod for which they had to go.

kube-scheduler writes its choice to the pod (`status.nominatedNodeName`) and keeps what it counts
itself; what the victims held on cards nobody else keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from hami_node.engine.fleet.eviction import Look, Trial
from hami_node.engine.fleet.fleet import Fleet
from hami_node.engine.fleet.kept import Kept
from hami_node.engine.place import PodRequest
from hami_node.engine.usage import PodGrants
from hami_node.errors import WireError
from hami_node.model import Pod
from hami_node.ports import Clock
from hami_node.vendors.protocol import VendorProtocol
from hami_node.vendors.request import request_of

UNSEEN_S: Final = 30.0
"""How long room is kept on the nodes of an answer while the watch shows no nomination."""
KEPT_S: Final = 600.0
"""How long it is kept for a nominated pod that does not come, once its victims are gone."""
MAX_KEPT: Final = 1_000
"""Pods for which room is kept; of more, that of the oldest is given up."""
RETRY_S: Final = 1.0
MAX_SOUGHT: Final = 16
"""How often, and how often in a decision, room is sought for pods that others nominated."""
STEPS_AT_ONCE: Final = 512
"""A look that takes more steps of effort than that counts as several."""

NOTHING_KEPT: Final[Kept] = MappingProxyType({})

Leaving = Callable[[str], frozenset[str]]
"""The pods of a node that are being deleted."""


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
    rooms: dict[str, Room] = field(default_factory=dict)
    sought_s: float | None = None

    def nominate(self, node: str, now_s: float) -> None:
        self.node, self.until_s, self.sought_s = node, now_s + KEPT_S, None
        self.rooms = {node: self.rooms[node]} if node in self.rooms else {}


class KeptRooms:
    """Not thread-safe: its owner holds a lock."""

    def __init__(
        self, fleet: Fleet, clock: Clock, vendors: Sequence[VendorProtocol], leaving: Leaving
    ) -> None:
        """Keep room on the nodes of `fleet`, for pods that ask for these vendors' cards."""
        self._fleet, self._clock, self._vendors, self._leaving = fleet, clock, vendors, leaving
        self._entries: dict[str, _Entry] = {}

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
        entry = self._entries.get(pod.uid)
        if entry is None and not pod.nominated_node:
            return
        if pod.node_name or pod.is_over or pod.is_being_deleted:
            self.forget(pod.uid)
        elif entry is None:
            self._hear_new(pod)
        else:
            self._hear_again(pod.uid, entry, pod.nominated_node)

    def forget(self, uid: str) -> None:
        """The pod is bound or gone."""
        self._entries.pop(uid, None)

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

    def _hear_new(self, pod: Pod) -> None:
        """A nomination without an answer of ours: of the leader before, or by CPU and memory."""
        try:
            request = request_of(pod, self._vendors)
        except WireError:
            return
        if request.is_empty:
            return
        entry = _Entry(pod=pod.key, priority=pod.priority, request=request, until_s=0.0)
        entry.heard = pod.nominated_node
        entry.nominate(pod.nominated_node, self._clock.monotonic())
        self._add(pod.uid, entry)

    def _hear_again(self, uid: str, entry: _Entry, nominated: str) -> None:
        entry.heard = nominated
        if not entry.node:  # an older nomination may be shown before the one that follows
            if nominated in entry.rooms:
                entry.nominate(nominated, self._clock.monotonic())
        elif not nominated:
            self.forget(uid)
        elif nominated != entry.node:
            entry.nominate(nominated, self._clock.monotonic())

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
                self.forget(owner)
                return True
            entry.nominate(entry.heard, now_s)
            return False
        victims = {uid for room in entry.rooms.values() for uid in room.victims}
        if any(self._fleet.node_of(uid) == entry.node for uid in victims):
            entry.until_s = now_s + KEPT_S
            return False
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
        look = Look(gone=self._leaving(node) | {owner}, kept=taken)
        trial = Trial(self._fleet, entry.request)
        grants = trial.grants(node, look)
        if grants is not None:
            entry.rooms = {node: Room(grants=grants)}
        return 1 + trial.steps // STEPS_AT_ONCE
