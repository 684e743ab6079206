"""What is held up: pods that find no node, node locks that are held, nodes that are silent."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from hami_node.extender.state.cluster_state import ClusterState
from hami_node.metrics.extender import ExtenderState
from hami_node.model import Pod
from hami_node.ports import Clock
from hami_node.wire import names
from hami_node.wire.lock import decode_lock
from hami_node.wire.times import parse_time

MAX_PODS: Final = 10_000
"""Pods that are remembered; of more, those that were asked for last are not counted."""
UNSEEN_S: Final = 60.0
"""How long a pod counts that the watch does not show yet."""

FindPod = Callable[[str, str], Pod | None]


class _Entry(NamedTuple):
    """What is needed of a pod: its annotations may have 256 KiB."""

    namespace: str
    name: str
    uid: str
    creation_time: str
    reason: str
    noted_s: float


class WaitingPods:
    """The pods for which the last call found no node. Thread-safe, bounded."""

    def __init__(self, find_pod: FindPod, clock: Clock) -> None:
        """Start without pods; `find_pod` reads the watch."""
        self._find_pod, self._clock = find_pod, clock
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}

    def note(self, pod: Pod, reason: str) -> None:
        """A call has found no node for a pod, mostly for this reason; "": it has found one."""
        with self._lock:
            if not reason:
                self._entries.pop(pod.uid, None)
            elif pod.uid in self._entries or len(self._entries) < MAX_PODS:
                whose = (pod.namespace, pod.name, pod.uid, pod.creation_time)
                self._entries[pod.uid] = _Entry(*whose, reason, self._clock.monotonic())

    def clear(self) -> None:
        """Another replica decides now."""
        with self._lock:
            self._entries.clear()

    def now(self) -> tuple[dict[str, int], float | None]:
        """How many pods wait by reason, and how long the oldest has been there, seconds."""
        now_s = self._clock.now()
        with self._lock:
            entries = dict(self._entries)
        gone = [uid for uid, entry in entries.items() if not self._waits(entry)]
        with self._lock:
            for uid in gone:
                if self._entries.get(uid) is entries.pop(uid):
                    del self._entries[uid]
        ages_s = [
            max(now_s - created_s, 0.0)
            for entry in entries.values()
            if (created_s := parse_time(entry.creation_time)) is not None
        ]
        counts = Counter(entry.reason for entry in entries.values())
        return dict(counts), max(ages_s, default=None)

    def _waits(self, entry: _Entry) -> bool:
        shown = self._find_pod(entry.namespace, entry.name)
        if shown is None or shown.uid != entry.uid:
            return self._clock.monotonic() - entry.noted_s < UNSEEN_S
        return not (shown.node_name or shown.is_over or shown.is_being_deleted)


def extender_state(
    state: ClusterState, pods: WaitingPods, clock: Clock, is_leading: Callable[[], bool]
) -> Callable[[], ExtenderState]:
    """Reads what a scrape shows; what is held up only on the replica that decides."""

    def read() -> ExtenderState:
        nodes, holders = state.sizes()
        if not is_leading():
            pods.clear()
            return ExtenderState(nodes=nodes, pods=holders)
        reasons, longest_s = pods.now()
        locks = [text for node in state.nodes() if (text := node.annotations.get(names.NODE_LOCK))]
        taken_s = [taken for text in locks if (taken := decode_lock(text).time_s) is not None]
        return ExtenderState(
            is_leading=True,
            nodes=nodes,
            pods=holders,
            waiting=reasons,
            longest_wait_s=longest_s or 0.0,
            locked_nodes=len(locks),
            oldest_lock_s=max(clock.now() - min(taken_s), 0.0) if taken_s else 0.0,
            silent_nodes=state.silent_nodes(),
            backed_off=state.back_offs(),
        )

    return read
