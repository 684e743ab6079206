"""Reservations that end before they are used: their pods failed after our answer."""

from __future__ import annotations

import logging
import threading

from hami_node.extender.state.pod_book import PodBook
from hami_node.logs import kv
from hami_node.model import Pod

log = logging.getLogger(__name__)


class ReleaseBook:
    """Thread-safe: shares the lock of the state."""

    def __init__(self, lock: threading.RLock, pods: PodBook) -> None:
        """Release what `pods` records."""
        self._lock, self._pods = lock, pods

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
        self._pods.forget(counted)
        return counted.pod
