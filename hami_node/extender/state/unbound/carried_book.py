"""The reservations that stand in memory until a Binding carries them, as calls see them."""

from __future__ import annotations

import threading

from hami_node.extender.state.pod_book import PodBook
from hami_node.extender.state.unbound.carried import Carried


class CarriedBook:
    """Thread-safe: under the state's lock, which is given."""

    def __init__(self, lock: threading.RLock, pods: PodBook) -> None:
        """See to the reservations in `pods`, under `lock`."""
        self._lock, self._pods = lock, pods

    def keep(self, uid: str, token: int, carried: Carried) -> bool:
        """This reservation stands in memory until it is bound; False if it no longer counts."""
        with self._lock:
            counted = self._pods.find(uid)
            if counted is None or counted.token != token:
                return False
            self._pods.carry(counted, carried)
            return True

    def find(self, uid: str, node: str) -> Carried | None:
        """What the pod's Binding to this node has to carry; None if nothing, or in doubt."""
        with self._lock:
            counted = self._pods.find(uid)
            if counted is None or counted.node != node or counted.is_doubtful:
                return None
            return counted.carried

    def doubt(self, uid: str, version: str) -> None:
        """A Binding for this version of the pod was not answered: it may still arrive."""
        with self._lock:
            counted = self._pods.find(uid)
            if counted is not None and counted.carried is not None:
                self._pods.doubt(counted, version)

    def is_late(self, uid: str) -> bool:
        """True while such a Binding may still arrive."""
        with self._lock:
            counted = self._pods.find(uid)
            return counted is not None and counted.is_late

    def is_gone(self, uid: str) -> bool:
        """True if the pod was deleted or has ended."""
        with self._lock:
            return self._pods.is_gone(uid)
