"""What others may ask of the state: each answer is of one moment."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping

from hami_node.engine.fleet.fleet import Fleet
from hami_node.engine.usage import Charge, DeviceUsage
from hami_node.extender.state.counted_pod import is_overfull
from hami_node.extender.state.node_book import NodeBook
from hami_node.extender.state.pod_book import PodBook
from hami_node.metrics.cluster_use import ClusterUse
from hami_node.model import Node, Pod, Uuid
from hami_node.vendors.offer import registered_cards


class StateQueries:
    """The part of the state that only reads."""

    _lock: threading.RLock
    _fleet: Fleet
    _nodes: NodeBook
    _pods: PodBook

    def latest(self, uid: str) -> Pod | None:
        """The newest known state of a pod that holds cards or was filtered."""
        with self._lock:
            counted = self._pods.find(uid)
            return None if counted is None else counted.pod

    def node(self, name: str) -> Node | None:
        """A node as the watch shows it."""
        with self._lock:
            return self._nodes.nodes.get(name)

    def nodes(self) -> tuple[Node, ...]:
        """All nodes as the watch shows them."""
        with self._lock:
            return tuple(self._nodes.nodes.values())

    def why_not_offered(self, node: str) -> str:
        """Why a node offers no card, for messages."""
        with self._lock:
            offer = self._nodes.offers.get(node)
            return "the node is not known" if offer is None else offer.why_empty

    def reservation_of(self, uid: str) -> str:
        """The node that holds a pod's reservation; "" without one."""
        with self._lock:
            return self._fleet.node_of(uid) or ""

    def overcommitted(self, uid: str) -> tuple[str, ...]:
        """The cards of a pod's grants that are overcommitted, gone or unhealthy."""
        with self._lock:
            name = self._fleet.node_of(uid)
            node = self._fleet.nodes.get(name) if name is not None else None
            if node is None:
                return ()
            cards, held = node.usage.cards, [charge.uuid for charge in node.usage.charges(uid)]
            return tuple(sorted(uuid for uuid in held if is_overfull(cards.get(uuid))))

    def catch_up(self) -> None:
        """Do now what the next decision would do first; after a list that is a lot."""
        with self._lock:
            self._fleet.catch_up()

    def sizes(self) -> tuple[int, int]:
        """(nodes that offer cards, pods that hold cards)."""
        with self._lock:
            return self._nodes.offering, self._fleet.pod_count

    def silent_nodes(self) -> int:
        """Nodes of which a daemon has gone silent."""
        with self._lock:
            return self._nodes.silent

    def usage(self) -> dict[str, Mapping[Uuid, DeviceUsage]]:
        """Every card of every node with its usage."""
        with self._lock:
            return {name: node.usage.cards for name, node in sorted(self._fleet.nodes.items())}

    def in_use(self, nodes: Collection[str] | None = None) -> ClusterUse:
        """All cards of these nodes and what each container holds; None for all nodes."""
        wanted = None if nodes is None else frozenset(nodes)
        with self._lock:
            states = self._fleet.nodes
            known = states.keys() if wanted is None else states.keys() & wanted
            open_names = known - self._nodes.cordoned()
            offered = {name: states[name].usage.cards for name in open_names}
            pods = self._pods.in_use(wanted)
            quotas = self._fleet.quotas.snapshot() if wanted is None else {}
            withheld = self._nodes.withheld(wanted)
        return ClusterUse(
            offered=offered,
            pods=pods,
            withheld={
                node.name: cards
                for node, vendors in withheld
                if (cards := registered_cards(node, vendors))
            },
            quotas=quotas,
        )

    def cards_of(self, node: str) -> Mapping[Uuid, DeviceUsage]:
        """The cards of a node with their usage; none for an unknown node."""
        with self._lock:
            state = self._fleet.nodes.get(node)
            return {} if state is None else state.usage.cards

    def largest_mib(self, nodes: Iterable[str]) -> dict[str, int]:
        """All memory of the largest card of each of these nodes, MiB; 0 without cards."""
        with self._lock:
            return self._nodes.largest_mib(nodes)

    def charges(self) -> dict[str, tuple[str, tuple[Charge, ...]]]:
        """Node and charges of every pod that holds something, by uid."""
        with self._lock:
            return {
                uid: (name, node.usage.charges(uid))
                for name, node in self._fleet.nodes.items()
                for uid in node.usage.pods
            }
