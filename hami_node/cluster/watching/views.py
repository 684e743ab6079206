"""Pods and nodes for the rest of the product: `ports.Watched` over two watches."""

from __future__ import annotations

import threading

from hami_node.cluster.client import KubeClient
from hami_node.cluster.watching.object_cache import NODES, PODS
from hami_node.cluster.watching.watches import OF_FEW, ResourceWatch, WatchTimes
from hami_node.model import Node, Pod
from hami_node.ports import Clock, Listener


class WatchedCluster:
    """Pods and nodes as the watches see them: those of one node, or all."""

    def __init__(
        self, pods: ResourceWatch[Pod], nodes: ResourceWatch[Node], node_name: str = ""
    ) -> None:
        """Join two watches; `node_name` is the node that `node()` returns."""
        self.pod_watch, self.node_watch = pods, nodes
        self._node_name = node_name
        self._threads: tuple[threading.Thread, ...] = ()

    @classmethod
    def of_node(
        cls, kube: KubeClient, node_name: str, clock: Clock, times: WatchTimes | None = None
    ) -> WatchedCluster:
        """One node and the pods bound to it: what a daemon needs."""
        return cls(
            ResourceWatch(
                kube, PODS, clock=clock, field_selector=f"spec.nodeName={node_name}", times=times
            ),
            ResourceWatch(
                kube, NODES, clock=clock, field_selector=f"metadata.name={node_name}", times=times
            ),
            node_name,
        )

    @classmethod
    def of_cluster(
        cls, kube: KubeClient, clock: Clock, times: WatchTimes = OF_FEW
    ) -> WatchedCluster:
        """All nodes and pods, listed in pages: what the extender needs."""
        return cls(
            ResourceWatch(kube, PODS, clock=clock, from_cache=False, times=times),
            ResourceWatch(kube, NODES, clock=clock, from_cache=False, times=times),
        )

    def pods(self) -> tuple[Pod, ...]:
        """All pods covered, sorted by (namespace, name)."""
        return self.pod_watch.cache.objects()

    def pod(self, namespace: str, name: str) -> Pod | None:
        """The pod with this name, or None."""
        return self.pod_watch.cache.find(namespace, name)

    def node(self) -> Node | None:
        """Our own node; None before the first list, or when it does not exist."""
        return self.node_watch.cache.find("", self._node_name)

    def nodes(self) -> tuple[Node, ...]:
        """All nodes covered, sorted by name."""
        return self.node_watch.cache.objects()

    def is_synced(self) -> bool:
        """True once nodes and pods have been listed."""
        return self.pod_watch.is_synced() and self.node_watch.is_synced()

    def last_contact_age_s(self) -> float | None:
        """Seconds since the last response of the quieter watch; None before both had one."""
        ages = [self.pod_watch.last_contact_age_s(), self.node_watch.last_contact_age_s()]
        known = [age for age in ages if age is not None]
        return max(known) if len(known) == len(ages) else None

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` after every change of either."""
        self.pod_watch.cache.subscribe(listener)
        self.node_watch.cache.subscribe(listener)

    def start(self, stop: threading.Event) -> None:
        """Run both watches in threads of their own until `stop`, then `close`."""
        self._threads = tuple(
            threading.Thread(target=watch.run, args=(stop,), name=f"watch-{name}", daemon=True)
            for name, watch in (("nodes", self.node_watch), ("pods", self.pod_watch))
        )
        for thread in self._threads:
            thread.start()

    def close(self, timeout_s: float = 2.0) -> None:
        """After `stop` is set: interrupt the pending reads and join the threads."""
        self.pod_watch.interrupt()
        self.node_watch.interrupt()
        for thread in self._threads:
            thread.join(timeout_s)
