"""What the daemon's services are built from, and how a service runs."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from hami_node.cluster.client import KubeClient
from hami_node.cluster.watching.views import WatchedCluster
from hami_node.config.settings import Settings
from hami_node.config.watch import ConfigWatch
from hami_node.metrics.daemon import DaemonMetrics
from hami_node.model import Device
from hami_node.node.holdings.live_use import LiveUse
from hami_node.node.kubelet.pod_resources import KubeletPodResources
from hami_node.node.resource import NodeResource
from hami_node.node.vendor_cards import VendorCards
from hami_node.ports import Clock, EventNote
from hami_node.record.ledger import Ledger
from hami_node.threads import GuardedThreads
from hami_node.vendors.protocol import VendorProtocol
from hami_node.vendors.spec import AnyVendor


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """The daemon's parts that need no API server.

    Attributes:
        settings: returns those in force.
        vendor_cards: the cards of each vendor that this daemon serves.
        reloads: how often settings were `applied`, and how often files were `refused`.
        listener: where the pages are served; None where they are switched off.
        probe_listener: where the probes are served; None where the pages include them.
    """

    settings: Callable[[], Settings]
    vendors: tuple[AnyVendor, ...]
    vendor_cards: tuple[VendorCards, ...]
    clock: Clock
    stop: threading.Event
    threads: GuardedThreads
    reloads: Counter[str]
    config_watch: ConfigWatch
    listener: socket.socket | None
    probe_listener: socket.socket | None

    @property
    def is_simulated(self) -> bool:
        """True where some cards are not real."""
        return any(owner.backend.is_simulated for owner in self.vendor_cards)

    @property
    def resources(self) -> tuple[NodeResource, ...]:
        """The resources of all vendors."""
        return tuple(resource for owner in self.vendor_cards for resource in owner.resources)

    def cards(self) -> tuple[Device, ...]:
        """The cards of all resources, resource by resource."""
        return tuple(card for owner in self.vendor_cards for card in owner.cards())


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterParts:
    """What all services between this node and the API server share.

    Attributes:
        served: the protocols of the vendors whose resources this daemon serves.
        notify: writes an Event, later.
        wake: these steps of the loop look soon; without a name, all that follow changes.
        one_at_a_time: held by whoever may give out more of this node's cards.
        refused: uids of the pods that this process has refused, the newest; true where the pod is
            to have the phase.
    """

    metrics: DaemonMetrics
    kube: KubeClient
    view: WatchedCluster
    kubelet: KubeletPodResources
    served: tuple[VendorProtocol, ...]
    ledger: Ledger
    live: LiveUse
    notify: Callable[[EventNote], None]
    wake: Callable[..., None]
    one_at_a_time: threading.Lock = field(default_factory=threading.Lock)
    refused: dict[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Something that runs beside the rest until the daemon stops, in a thread of its own.

    Attributes:
        run: the body; returns soon after the event is set and `wake` was called.
        wake: ends its waiting.
        follows_changes: wake it at every change of cards, pods, node and configuration, too.
    """

    name: str
    run: Callable[[threading.Event], None]
    wake: Callable[[], None] = lambda: None
    follows_changes: bool = False
