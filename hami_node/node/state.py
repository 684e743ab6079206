"""The state of this node's daemon: one object, which everything else is given.

What needs the API server is filled in after the registration, by `cluster_services`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hami_node.clock import SystemClock
from hami_node.config.settings import Settings
from hami_node.model import Device
from hami_node.node.resource import NodeResource
from hami_node.node.vendor_cards import VendorCards
from hami_node.ports import Clock, EventNote
from hami_node.threads import GuardedThreads
from hami_node.vendors.spec import AnyVendor

if TYPE_CHECKING:  # loaded after the registration
    from hami_node.cluster.client import KubeClient
    from hami_node.cluster.events import EventWriter
    from hami_node.cluster.watching.views import WatchedCluster
    from hami_node.config.watch import ConfigWatch
    from hami_node.metrics.daemon import DaemonMetrics
    from hami_node.node.holdings.live_use import LiveUse
    from hami_node.node.kubelet.pod_resources import KubeletPodResources
    from hami_node.node.loop import Loop
    from hami_node.record.ledger import Ledger
    from hami_node.vendors.protocol import VendorProtocol


class NodeState:
    """What is known and set on this node.

    Attributes:
        vendor_cards: the cards of each vendor that this daemon serves.
        reloads: how often settings were `applied`, and how often files were `refused`.
        one_at_a_time: held by whoever may give out more of this node's cards.
        refused: uids of the pods that this process has refused, the newest; true where the pod is
            to have the phase.
        recorded: set once the record has what kubelet's first list shows of our own containers;
            before that it is not known who holds what.
        served: the protocols of `vendor_cards`, in the same order.
    """

    config_watch: ConfigWatch
    metrics: DaemonMetrics
    kube: KubeClient
    view: WatchedCluster
    events: EventWriter
    kubelet: KubeletPodResources
    served: tuple[VendorProtocol, ...]
    ledger: Ledger
    live: LiveUse
    loop: Loop

    def __init__(
        self,
        settings: Settings,
        vendors: Sequence[AnyVendor],
        clock: Clock | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """Nothing is asked yet.

        Raises:
            ConfigError: a setting is wrong.
        """
        self.in_force, self.vendors = settings, tuple(vendors)
        self.clock: Clock = clock or SystemClock()
        self.stop = stop or threading.Event()
        self.threads = GuardedThreads(self.stop)
        self.reloads = Counter(applied=1)
        self.vendor_cards = tuple(
            VendorCards(vendor, vendor.served, self.settings, clock=self.clock, stop=self.stop)
            for vendor in self.vendors
            if vendor.served is not None
        )
        self.one_at_a_time = threading.Lock()
        self.refused: dict[str, bool] = {}
        self.recorded = threading.Event()

    def settings(self) -> Settings:
        """Those in force."""
        return self.in_force

    @property
    def is_simulated(self) -> bool:
        """True where some cards are not real."""
        return any(owner.backend.is_simulated for owner in self.vendor_cards)

    @property
    def resources(self) -> tuple[NodeResource, ...]:
        """The resources of all vendors, once their cards were found."""
        return tuple(resource for owner in self.vendor_cards for resource in owner.resources)

    def cards(self) -> tuple[Device, ...]:
        """The cards of all resources, resource by resource."""
        return tuple(card for owner in self.vendor_cards for card in owner.cards())

    def wake(self, *steps: str) -> None:
        """Something changed: these steps look soon; without a name, all that follow changes."""
        self.loop.wake(*steps)

    def notify(self, event: EventNote) -> None:
        """Write an Event, later."""
        if not self.events.emit(event):
            self.metrics.events_dropped.count()

    def notify_node(self, reason: str, message: str) -> None:
        """Write an Event about the node, if it is known."""
        if (node := self.view.node()) is not None:
            self.notify(EventNote.about(node, reason, message))
