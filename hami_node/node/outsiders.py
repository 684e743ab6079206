"""What other device plugins serve on this node: cards from before, and cards that are theirs."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from hami_node.model import Uuid
from hami_node.node.holdings.foreign import ForeignHolders, WatchedCards
from hami_node.node.holdings.observed import ObservedHoldings
from hami_node.node.parts import ClusterParts, NodeParts
from hami_node.ports import HeldContainer
from hami_node.vendors.on_node.publication import CardSources
from hami_node.vendors.spec import AnyVendor, Auditor, AuditOutlets


class Outsiders:
    """Takes each list of kubelet's that the daemon reads anyway, and audits. Thread-safe."""

    def __init__(self, parts: NodeParts, cluster: ClusterParts) -> None:
        """Build the parts."""
        self._parts, self._cluster = parts, cluster
        self._foreign = ForeignHolders(
            [
                WatchedCards(
                    resource=resource.name, inventory=resource.inventory, named=owner.foreign_cards
                )
                for owner in parts.vendor_cards
                for resource in owner.resources
            ],
            ledger=cluster.ledger,
            pods=cluster.live.pods,
            on_change=cluster.wake,
        )
        self._observed = ObservedHoldings(
            [name for vendor in parts.vendors for name in vendor.listed(self._own(vendor))],
            ledger=cluster.ledger,
            pods=cluster.live.pods,
            clock=parts.clock,
        )
        self._auditing = threading.Lock()
        auditors = ((vendor, self._auditor(vendor)) for vendor in parts.vendors)
        self._auditors = {vendor.settings.kind: it for vendor, it in auditors if it is not None}
        self.recorded = threading.Event()
        """Set once the record has what kubelet's first list shows of our own containers."""

    def _own(self, vendor: AnyVendor) -> object:
        return self._parts.settings().of(vendor.settings.kind)

    def _auditor(self, vendor: AnyVendor) -> Auditor | None:
        """The auditor of the pods of a vendor that others serve."""
        if vendor.auditor is None or vendor.counter is None:
            return None
        outlets = AuditOutlets(
            notify=self._cluster.notify,
            count=self._cluster.metrics.of_vendors[vendor.counter.name].count,
            sysfs_root=self._parts.settings().sysfs_root,
            clock=self._parts.clock,
        )
        return vendor.auditor(outlets, lambda: self._own(vendor))

    # -- what is known -----------------------------------------------------------------------------
    def closed(self) -> dict[Uuid, str]:
        """Why cards, or cores of them, are closed although they work."""
        audited = {
            uuid: found.reason
            for auditor in self._auditors.values()
            for uuid, found in auditor.closed.items()
        }
        return {**audited, **self._foreign.reasons}

    def sources_of(self, vendor: AnyVendor) -> CardSources:
        """What is published of a vendor that others serve."""
        auditor = self._auditors.get(vendor.settings.kind)
        return CardSources() if auditor is None else CardSources(closed=lambda: auditor.closed)

    def pods_holding(self) -> int:
        """How many pods hold our cards from another plugin."""
        return self._foreign.pods_holding

    # -- what happened -----------------------------------------------------------------------------
    def settled(self, listed: Sequence[HeldContainer]) -> None:
        """kubelet's list, once the record has what it shows of our own containers."""
        self._foreign.look(listed)
        self._observed.look(listed)

    def listed(self, listed: Sequence[HeldContainer]) -> None:
        """kubelet's list, read for something else."""
        if self.recorded.is_set():
            self.settled(listed)

    def begin(self) -> None:
        """The record is complete: the first report may follow."""
        self.audit()
        self.recorded.set()

    def drifted(self) -> int:
        """How many pods hold other cards than were reserved, by the last audit."""
        return sum(auditor.drifted for auditor in self._auditors.values())

    def audit(self) -> None:
        """Let the auditors check this node's pods.

        The NUMA hints follow containers that have ended, too.
        """
        if self.recorded.is_set():
            for resource in self._parts.resources:
                resource.update_hints(self._cluster.ledger.entries())
        node, auditors = self._cluster.view.node(), self._auditors.values()
        if node is None:
            return
        with self._auditing:
            before = [auditor.closed for auditor in auditors]
            for auditor in auditors:
                auditor.audit(node, self._cluster.live.pods(), self._observed.held())
            has_changed = before != [auditor.closed for auditor in auditors]
        if has_changed:
            self._cluster.wake()
