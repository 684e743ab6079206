"""Reservations that end before they are used: their pods failed after our answer."""

from __future__ import annotations

import logging
import threading
from itertools import islice

from hami_node.extender.state.pod_book import PodBook
from hami_node.logs import kv
from hami_node.model import Pod

log = logging.getLogger(__name__)


class ReleaseBook:
    """Thread-safe: shares the lock of the state."""

    def __init__(self, lock: threading.RLock, pods: PodBook) -> None:
        """Release what `pods` records."""
        self._lock, self._pods = lock, pods
        self._freed: set[str] = set()
        self._is_missed = False

    def missed(self) -> None:
        """A pod found no node."""
        with self._lock:
            self._is_missed = True

    def take_freed(self, most: int) -> list[str]:
        """Some nodes on which cards are free again that a pod has missed; each is given once.

        kube-scheduler tries the pods that wait at the moment in which it gives another one up, and
        that is before its cards are free.
        """
        with self._lock:
            found = list(islice(self._freed, most))
            self._freed.difference_update(found)
            self._is_missed = self._is_missed and not found
            return found

    def take(self) -> tuple[Pod, ...]:
        """Release what pods hold that their scheduler has given up since; those pods.

        One that is being bound, or may have been, keeps its cards until that is known.
        """
        with self._lock:
            return tuple(
                pod for uid in self._pods.failures.due() if (pod := self._released(uid)) is not None
            )

    def _released(self, uid: str) -> Pod | None:
        counted = self._pods.find(uid)
        if counted is None or counted.since_s is None:
            self._pods.failures.ended(uid)
            return None
        if counted.token or counted.is_binding or counted.is_doubtful or counted.void_version:
            return None
        log.info("reservation_released", extra=kv(pod=counted.pod.key, node=counted.node))
        if self._is_missed:
            self._freed.add(counted.node)
        self._pods.forget(counted)
        return counted.pod
