"""Lets kube-scheduler take up the pods that wait, once a closed node is open or cards are free.

It asks again about a pod that an extender refused only when something has changed in the cluster.
Of what changes on a node, every version from 1.28 on heeds labels; annotations only from 1.30 on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from hami_node.cluster.client import KubeClient
from hami_node.errors import KubeError, NotFound
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.logs import kv
from hami_node.ports import Clock
from hami_node.wire import names

log = logging.getLogger(__name__)

LOOK_S: Final = 0.2
AT_ONCE: Final = 2
"""Nodes written after each look, so ten a second at most: kube-scheduler takes up every pod that
waits after each."""
RETRY_S: Final = 1.0


class Waker:
    """`run` is a thread's body."""

    def __init__(
        self, state: ClusterState, kube: KubeClient, clock: Clock, is_leading: Callable[[], bool]
    ) -> None:
        """Write nodes of `state` that pods have missed, while leading."""
        self._state, self._kube, self._clock = state, kube, clock
        self._is_leading = is_leading

    def run(self, stop: threading.Event) -> None:
        """Look until stopped."""
        rest_s = LOOK_S
        while not stop.wait(rest_s):
            rest_s = LOOK_S if self.look() else RETRY_S

    def look(self) -> bool:
        """Write what is due; False where that failed, and is due again."""
        if not self._is_leading():
            return True
        is_done = True
        for node in self._state.take_opened(AT_ONCE):
            stamp = str(round(self._clock.now() * 1000))
            try:
                self._kube.label_node(node, {names.OPENED_NODE: stamp})
            except NotFound:
                continue
            except KubeError as e:
                log.warning("node_not_opened", extra=kv(node=node, error=str(e)))
                self._state.not_opened(node)
                is_done = False
        return is_done
