"""The state of a daemon without an API server: a test moves the backends and the cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from hami_node.cluster.client import KubeClient
from hami_node.cluster.watching.views import WatchedCluster
from hami_node.config.settings import Settings
from hami_node.metrics.daemon import DaemonMetrics
from hami_node.node.holdings.live_use import LiveUse
from hami_node.node.state import NodeState
from hami_node.ports import Backend, EventNote
from hami_node.vendors.on_node.parts import CardParts
from hami_node.vendors.spec import AnyVendor, protocol_of
from tests.fakes.clock import FakeClock
from tests.fakes.ledgers import a_ledger
from tests.fakes.live_kube import FakeCluster


def moved(vendor: AnyVendor, backend: Backend, parts: CardParts | None = None) -> AnyVendor:
    """The vendor with this backend, and with these parts of divided cards."""
    assert vendor.served is not None
    served = replace(vendor.served, make_backend=lambda settings, clock, records: backend)
    if parts is not None:
        served = replace(served, make_parts=lambda sources, settings: parts)
    return replace(vendor, served=served)


class FakeNode(NodeState):
    """`cluster` is what the watch shows; `notes` has the Events, `woken` the steps."""

    def __init__(
        self, settings: Settings, *vendors: AnyVendor, cluster: FakeCluster | None = None
    ) -> None:
        self.time = FakeClock()
        super().__init__(settings, vendors, self.time)
        self.cluster = cluster or FakeCluster()
        self.kube = cast(KubeClient, self.cluster)
        self.view = cast(WatchedCluster, self.cluster)
        self.metrics = DaemonMetrics("n1")
        self.served = tuple(protocol_of(each.vendor, settings) for each in self.vendor_cards)
        self.ledger = a_ledger()
        self.notes: list[EventNote] = []
        self.woken: list[str] = []
        self.recorded.set()
        self.live = LiveUse(
            watched=self.cluster, vendors=self.served, ledger=self.ledger, clock=self.time
        )

    def notify(self, event: EventNote) -> None:
        self.notes.append(event)

    def wake(self, *steps: str) -> None:
        self.woken += steps
