"""Room that is held for pods which are not there yet: charged like theirs, until they come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from hami_node.engine.fleet.fleet import Fleet, IsTimeUp, NoNode, Placed, Unfinished
from hami_node.engine.place import PodRequest, Refused
from hami_node.engine.usage import PodGrants
from hami_node.extender.state.slices import Slices
from hami_node.model import Pod

PREFIX: Final = "held/"
"""Of the keys under which the room is charged; no uid begins with it."""

Choose = Callable[
    [Pod, PodRequest, Collection[str] | None, IsTimeUp], Placed | NoNode | Refused | Unfinished
]
"""Chooses a pod's node and cards by all that is known; nothing is charged."""


class _Room(NamedTuple):
    namespace: str
    node: str
    grants: PodGrants


class HeldRooms:
    """By the uid of the pod. Thread-safe: shares the lock of the state."""

    def __init__(self, lock: threading.RLock, fleet: Fleet, choose: Choose, slices: Slices) -> None:
        """Hold on `fleet` what `choose` finds there, in slices."""
        self._lock, self._fleet, self._choose, self._slices = lock, fleet, choose, slices
        self._rooms: dict[str, _Room] = {}
        self._offers: dict[str, tuple[str, ...]] = {}

    def hold(
        self, pod: Pod, request: PodRequest, preferred: Collection[str] | None
    ) -> bool | Unfinished:
        """Place a pod on one of these nodes, else on any, and hold its cards; False for nowhere.

        The nodes that kube-scheduler names are those for another pod, and may be only some of them.
        It takes no longer than the decision about a pod; `Unfinished` where that was too short.
        """
        answer: bool | Unfinished = False
        for nodes in (None,) if preferred is None else (preferred, None):
            answer = self._hold(pod, request, nodes)
            if answer is not False:
                break
        return answer

    def drop(self, uids: Iterable[str]) -> None:
        """Hold nothing for these pods."""
        with self._lock:
            for uid in uids:
                if self._rooms.pop(uid, None) is not None:
                    self._fleet.remove_pod(PREFIX + uid)

    @contextmanager
    def offered(self, uid: str, others: Iterable[str]) -> Iterator[None]:
        """A decision about the pod may use the room of the first of these if it has none."""
        self._offers[uid] = tuple(others)
        try:
            yield
        finally:
            del self._offers[uid]

    @contextmanager
    def lent(self, uid: str) -> Iterator[None]:
        """What is held for the pod is free for it, and is held on if it got nothing."""
        with self._lock:
            owners = (uid, *self._offers.get(uid, ()))
            owner = next((one for one in owners if one in self._rooms), None)
            if owner is None:
                yield
                return
            self._fleet.remove_pod(PREFIX + owner)
            try:
                yield
            finally:
                if self._fleet.node_of(uid) is None:
                    self._charge(owner)
                else:
                    del self._rooms[owner]

    def placed(self, uids: Iterable[str]) -> frozenset[str]:
        """Those of these pods that hold cards themselves."""
        with self._lock:
            return frozenset(uid for uid in uids if self._fleet.node_of(uid) is not None)

    def held(self) -> frozenset[str]:
        """The pods for which room is held."""
        with self._lock:
            return frozenset(self._rooms)

    def _hold(
        self, pod: Pod, request: PodRequest, nodes: Collection[str] | None
    ) -> bool | Unfinished:
        for is_time_up in self._slices.some_turns():
            with self._lock:
                if pod.uid in self._rooms or self._fleet.node_of(pod.uid) is not None:
                    return True
                answer = self._choose(pod, request, nodes, is_time_up)
                if isinstance(answer, Unfinished):
                    continue
                if isinstance(answer, Placed):
                    room = _Room(request.namespace, answer.node, answer.grants)
                    self._rooms[pod.uid] = room
                    self._charge(pod.uid)
                return isinstance(answer, Placed)
        with self._lock:
            self._fleet.put_off(request)
        return Unfinished()

    def _charge(self, uid: str) -> None:
        room = self._rooms[uid]
        self._fleet.add_pod(PREFIX + uid, room.namespace, room.node, room.grants)
