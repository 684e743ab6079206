"""Cards for groups of pods: for a member only if the members that are missing fit beside it.

The room of those is held until they come, so that a group which has begun needs nothing that
another one may take: groups never wait for each other with cards in their hands. A group that does
not use what it got gives everything back, and rests so that others have a turn.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from hami_node.engine.fleet.fleet import NoNode
from hami_node.engine.place import PodRequest, Refused
from hami_node.errors import WireError
from hami_node.extender.grouping.members import Members
from hami_node.extender.grouping.rests import Rests
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.extender.state.decisions import Busy, Reserved
from hami_node.logs import kv
from hami_node.model import Pod
from hami_node.ports import Clock
from hami_node.wire.pod_group import PodGroup, decode_pod_group

log = logging.getLogger(__name__)

HOLD_S: Final = 30.0
"""A group that has not become complete so long after its last member came gives all back."""
SLICE_S: Final = 0.01
"""After so long of a trial other decisions are let in."""

HOLDING_S: Final = 1.0
"""How long room is looked for in one call, for all members that are missing."""

Answer = Reserved | NoNode | Refused | Busy


@dataclass(slots=True)
class _Promise:
    """A group whose members have cards, or room that is held for them.

    Attributes:
        minimum: how many of them have to be bound until it is kept.
        last: the member that came last: pods of its run count, and of its scheduler.
        since_s: when it was made.
        progress_s: when a member came last.
        waiting: the members for which room is held.
        came: the members that got their cards.
    """

    minimum: int
    last: Pod
    since_s: float
    progress_s: float
    waiting: set[str] = field(default_factory=set)
    came: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Call:
    """A member that is being decided on, and what is known of the others."""

    pod: Pod
    group: PodGroup
    pending: Sequence[Pod]
    missing: int
    candidates: Collection[str] | None


class GroupGate:
    """Thread-safe; one decision about a group at a time."""

    def __init__(self, state: ClusterState, clock: Clock, pause: Callable[[], object]) -> None:
        """Decide on `state`; `pause` lets other decisions in."""
        self._state, self._clock, self._pause = state, clock, pause
        self.members = Members(state.rules.vendors)
        self._lock = threading.Lock()
        self._promises: dict[str, _Promise] = {}
        self._rests = Rests()

    def reserve(
        self,
        pod: Pod,
        request: PodRequest,
        candidates: Collection[str] | None,
        *,
        is_binding: bool = False,
    ) -> Answer:
        """As the state's `reserve`; for a member of a group only together with those missing."""
        try:
            group = None if is_binding else decode_pod_group(pod)
        except WireError as e:
            return Refused(why=f"the pod's group can't be served: {e}")
        if group is None:
            return self._state.reserve(pod, request, candidates, is_binding=is_binding)
        with self._lock:
            return self._as_member(pod, request, group, candidates)

    def look(self) -> tuple[Pod, ...]:
        """End what is not used; the pods that were released."""
        released: list[Pod] = []
        with self._lock:
            now_s = self._clock.monotonic()
            for key, promise in list(self._promises.items()):
                if self._is_complete(key):
                    self._kept(key)
                elif name := self._lost(key):
                    released += self._broken(key, f"{name} could not be bound")
                elif now_s - promise.progress_s > HOLD_S and self._is_waiting(key):
                    released += self._broken(key, f"nothing has come of it for {HOLD_S:.0f} s")
        return tuple(released)

    def clear(self) -> None:
        """Another replica has decided since."""
        with self._lock:
            self._promises.clear()
            self._state.held.drop(self._state.held.held())

    # -- one member --------------------------------------------------------------------------------
    def _as_member(
        self, pod: Pod, request: PodRequest, group: PodGroup, candidates: Collection[str] | None
    ) -> Answer:
        others = self._others(pod, group)
        if why := self._contradiction(group, others):
            return Refused(why=why)
        if why := self._rests.why(group.key, self._clock.monotonic()):
            return Busy(why)
        pending = self._pending(others)
        missing = group.minimum - 1 - (len(others) - len(pending))
        if missing > len(pending):
            there = 1 + len(others)
            return Busy(
                f"pod group {group.key} has {there} of {group.minimum} pods: "
                f"{group.minimum - there} more have to be created first"
            )
        with self._state.held.offered(pod.uid, (other.uid for other in reversed(pending))):
            answer = self._state.reserve(pod, request, candidates)
        call = _Call(pod, group, pending, max(missing, 0), candidates)
        if isinstance(answer, Reserved):
            return self._with_the_others(call, answer)
        if isinstance(answer, NoNode) and missing > 0 and group.key not in self._promises:
            return Busy(_too_large(group, missing + 1, 0))  # nobody is evicted for a part of it
        return answer

    def _others(self, pod: Pod, group: PodGroup) -> tuple[Pod, ...]:
        return tuple(other for other in self._run_of(pod, group.key) if other.uid != pod.uid)

    def _run_of(self, pod: Pod, key: str) -> tuple[Pod, ...]:
        """The members of the pod's group that count for it."""
        return tuple(
            other
            for other in self.members.of(key)
            if other.scheduler_name == pod.scheduler_name
            and (not other.is_over or other.owner == pod.owner)  # else of an earlier run
        )

    def _contradiction(self, group: PodGroup, others: Iterable[Pod]) -> str:
        """Why the members don't agree, or one can't be served; "" otherwise."""
        for other in others:
            try:
                theirs = decode_pod_group(other)
                self.members.request_of(other)
            except WireError as e:
                return f"pod group {group.key}: its member {other.name} is wrong: {e}"
            if theirs is not None and theirs.minimum != group.minimum:
                return (
                    f"pod group {group.key} has to have one minimum: "
                    f"{other.name} says {theirs.minimum}, this pod {group.minimum}"
                )
        return ""

    def _pending(self, pods: Sequence[Pod]) -> list[Pod]:
        """Those that are neither bound nor have their cards, and need some."""
        placed = self._state.held.placed(pod.uid for pod in pods)
        open_ = [pod for pod in pods if not pod.node_name and pod.uid not in placed]
        return [pod for pod in open_ if not self.members.request_of(pod).is_empty]

    # -- the others --------------------------------------------------------------------------------
    def _with_the_others(self, call: _Call, reserved: Reserved) -> Reserved | Busy:
        """Hold room for those that are missing, or give everything back."""
        key, begun_s = call.group.key, self._clock.monotonic()
        held = self._state.held.held()
        ordered = sorted(call.pending, key=lambda pod: pod.uid not in held)
        wanted, surplus = ordered[: call.missing], ordered[call.missing :]
        promise = self._promises.get(key)
        former = frozenset[str]() if promise is None else promise.waiting - {p.uid for p in wanted}
        self._state.held.drop([*former, *(pod.uid for pod in surplus)])
        fitting, is_cut = self._hold(wanted, call.candidates)
        now_s = self._clock.monotonic()
        if fitting == len(wanted):
            promise = promise or _Promise(call.group.minimum, call.pod, now_s, now_s)
            promise.last, promise.progress_s = call.pod, now_s
            promise.waiting = {pod.uid for pod in wanted}
            promise.came.add(call.pod.uid)
            if call.group.minimum > 1:
                self._promises[key] = promise
            return reserved
        say = _too_long if is_cut else _too_large
        why = say(call.group, len(wanted), fitting)
        self._state.undo(call.pod.uid, reserved.token)
        self._state.held.drop(pod.uid for pod in wanted)
        if promise is not None:
            self._broken(key, why)
        else:
            self._rests.refused(key, why, now_s - begun_s, now_s)
        return Busy(why, is_unfinished=is_cut)

    def _hold(self, wanted: Sequence[Pod], candidates: Collection[str] | None) -> tuple[int, bool]:
        """Hold room for each; how many fit before the first that does not, or is not known to."""
        first_s = begun_s = self._clock.monotonic()
        for count, pod in enumerate(wanted):
            answer = self._state.held.hold(pod, self.members.request_of(pod), candidates)
            if answer is not True:
                return count, answer is not False
            now_s = self._clock.monotonic()
            if now_s - first_s > HOLDING_S and count + 1 < len(wanted):
                return count + 1, True
            if now_s - begun_s > SLICE_S:
                self._pause()
                begun_s = self._clock.monotonic()
        return len(wanted), False

    # -- the end -----------------------------------------------------------------------------------
    def _is_complete(self, key: str) -> bool:
        promise = self._promises[key]
        bound = sum(bool(pod.node_name) for pod in self._run_of(promise.last, key))
        return bound >= promise.minimum

    def _lost(self, key: str) -> str:
        """A member that had its cards and has them no more; "" if there is none."""
        came, members = self._promises[key].came, self.members.of(key)
        lost = [pod for pod in members if pod.uid in came and not pod.node_name]
        placed = self._state.held.placed(pod.uid for pod in lost)
        return next((pod.name for pod in lost if pod.uid not in placed), "")

    def _is_waiting(self, key: str) -> bool:
        """Whether a member has still to come; one that has its cards may take long to be bound."""
        promise = self._promises[key]
        members = self._run_of(promise.last, key)
        try:
            served = len(members) - len(self._pending(members))
        except WireError:
            return True
        return bool(promise.waiting) or served < promise.minimum

    def _kept(self, key: str) -> None:
        promise = self._promises.pop(key)
        self._state.held.drop(promise.waiting)
        self._rests.forget(key)

    def _broken(self, key: str, why: str) -> tuple[Pod, ...]:
        """Give back all that is not bound; the pods that held it."""
        promise, now_s = self._promises.pop(key), self._clock.monotonic()
        self._state.held.drop(promise.waiting)
        unbound = [pod.uid for pod in self.members.of(key) if not pod.node_name]
        released = self._state.released.give_up(unbound)
        text = f"pod group {key} gave its cards back: {why}; others have a turn"
        self._rests.broken(key, text, now_s - promise.since_s, now_s)
        log.warning("group_gave_back", extra=kv(group=key, why=why, released=len(released)))
        return released


def _too_large(group: PodGroup, missing: int, fitting: int) -> str:
    return (
        f"pod group {group.key} of {group.minimum} does not fit as a whole: "
        f"{missing} more have to get cards at once, there is room for {fitting}"
    )


def _too_long(group: PodGroup, missing: int, fitting: int) -> str:
    return (
        f"pod group {group.key} of {group.minimum} takes long to place: {missing} more have to get "
        f"cards at once, room was found for {fitting} in the time of a call; it is tried again"
    )
