"""Everything that people look at, kept current by watches: one list, and then changes only."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

from hami_node.cluster.client import KubeClient
from hami_node.cluster.kinds import NODES, PODS
from hami_node.cluster.watching.views import WatchedCluster
from hami_node.cluster.watching.watches import ResourceWatch
from hami_node.model import Node, Pod
from hami_node.ports import Clock

_QUOTAS_S: Final = 60.0
"""Quotas change seldom: they are listed again after so long."""


class LiveListing:
    """The answers of `ports.ListingKube` for a whole cluster, from memory."""

    def __init__(self, kube: KubeClient, clock: Clock) -> None:
        """Prepare; `start` begins."""
        self._kube, self._clock = kube, clock
        pods = ResourceWatch(kube, PODS, clock=clock)
        self._cluster = WatchedCluster(pods, ResourceWatch(kube, NODES, clock=clock))
        self.changed = threading.Event()
        self._stop = threading.Event()
        self._quotas: tuple[Mapping[str, object], ...] = ()
        self._quotas_s = -_QUOTAS_S

    def start(self) -> None:
        """List, then watch in threads.

        Raises:
            KubeError: nodes or pods may not be listed, or the API server does not answer.
        """
        for kind in (NODES, PODS):  # a watch tries for ever: what never works is said at once
            self._kube.sender.list_page(kind.path, kind.resource, (("limit", "1"),))
        self._cluster.subscribe(self.changed.set)
        self._cluster.start(self._stop)
        while not self._cluster.is_synced():
            self._stop.wait(0.05)

    def close(self) -> None:
        """End the watches."""
        self._stop.set()
        self._cluster.close(timeout_s=0.2)

    def silent_s(self) -> float:
        """Seconds since the API server was last heard of."""
        return self._cluster.last_contact_age_s() or 0.0

    def list_nodes(self) -> tuple[Node, ...]:
        """The nodes now."""
        return self._cluster.nodes()

    def list_pods(self, node_name: str | None = None) -> tuple[Pod, ...]:
        """The pods now."""
        pods = self._cluster.pods()
        return tuple(pod for pod in pods if node_name in (None, pod.node_name))

    def list_resource_quotas(self) -> tuple[Mapping[str, object], ...]:
        """The quotas, a minute old at most."""
        now_s = self._clock.monotonic()
        if now_s - self._quotas_s >= _QUOTAS_S:
            self._quotas, self._quotas_s = self._kube.list_resource_quotas(), now_s
        return self._quotas
