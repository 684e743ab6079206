"""The daemon's parts that need the API server: built and started after the registration."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from prometheus_client.registry import CollectorRegistry

from hami_node.cluster.client import connect
from hami_node.cluster.events import EventWriter
from hami_node.cluster.node_lock import NodeLock
from hami_node.cluster.watching.views import WatchedCluster
from hami_node.config.settings import Settings, plain
from hami_node.config.watch import ConfigWatch
from hami_node.engine.compat import COMPATS
from hami_node.logs import kv
from hami_node.metrics.daemon import DaemonMetrics
from hami_node.metrics.deferred import DeferredMetrics
from hami_node.metrics.pages import PageServer
from hami_node.metrics.server import MetricsServer, ProbeServer
from hami_node.model import Device
from hami_node.node.allocate.allocator import AllocateRules, AllocatorParts, PodAllocator
from hami_node.node.allocate.lock_keeper import LockKeeper
from hami_node.node.allocate.owed import NAME as OWED
from hami_node.node.allocate.owed import OwedWrites
from hami_node.node.allocate.pod_writer import PodWriter
from hami_node.node.holdings.live_use import LiveUse
from hami_node.node.holdings.settler import Settler, load_record
from hami_node.node.identity.identity import Identity, IdentitySources
from hami_node.node.kubelet.pod_resources import KubeletPodResources
from hami_node.node.kubelet.rivals import TAKEN_EVENT, Contested, Rivals
from hami_node.node.probes import NodeProbes
from hami_node.node.report.clear_word import ClearWord
from hami_node.node.report.gauges import Gauges
from hami_node.node.report.node_marks import NodeMarks
from hami_node.node.report.readings import NodeCards
from hami_node.node.report.reporter import Reporter
from hami_node.node.resource import NodeResource
from hami_node.ports import Clock, EventNote
from hami_node.record.file import RecordFile
from hami_node.record.ledger import NAME as LEDGER
from hami_node.record.ledger import VERSION as LEDGER_VERSION
from hami_node.record.ledger import Ledger
from hami_node.threads import GuardedThreads
from hami_node.vendors.publication import CardSources, Publication
from hami_node.vendors.spec import AnyVendor, Auditor, AuditOutlets, protocol_of, protocols_of

log = logging.getLogger(__name__)

SYNC_CHECK_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeParts:
    """The daemon's parts that need no API server.

    Attributes:
        settings: returns those in force.
        listener: where the pages are served; None where they are switched off.
        probe_listener: where the probes are served; None where the pages include them.
    """

    settings: Callable[[], Settings]
    vendors: tuple[AnyVendor, ...]
    resources: tuple[NodeResource, ...]
    clock: Clock
    stop: threading.Event
    threads: GuardedThreads
    metrics: DeferredMetrics
    config_watch: ConfigWatch
    listener: socket.socket | None
    probe_listener: socket.socket | None

    @property
    def is_simulated(self) -> bool:
        """True where some cards are not real."""
        return any(resource.backend.is_simulated for resource in self.resources)

    def cards(self) -> tuple[Device, ...]:
        """The cards of all resources, resource by resource."""
        return tuple(card for resource in self.resources for card in resource.inventory.cards)


class ClusterServices:
    """Everything between this node's daemon and the API server."""

    def __init__(self, parts: NodeParts) -> None:
        """Build the parts.

        Raises:
            ConfigError: no usable credentials.
        """
        self._parts = parts
        settings, clock = parts.settings(), parts.clock
        counters = [vendor.counter for vendor in parts.vendors if vendor.counter is not None]
        self.metrics = DaemonMetrics(CollectorRegistry(), settings.node_name, clock, counters)
        parts.metrics.put(self.metrics)
        self._kube = connect(
            settings.kubeconfig,
            component="daemon",
            clock=clock,
            host_name=settings.node_name,
            on_request=self.metrics.count_api_request,
            stop=parts.stop,
        )
        self.view = WatchedCluster.of_node(self._kube, settings.node_name, clock)
        self._events = EventWriter(self._kube, clock)
        self._kubelet = KubeletPodResources(settings.pod_resources_socket, parts.stop)
        # Names of resources can't change while the daemon runs.
        self._served = tuple(protocol_of(resource.vendor, settings) for resource in parts.resources)
        self.ledger = Ledger(
            RecordFile(settings.record_dir, LEDGER, version=LEDGER_VERSION),
            on_failure=self.metrics.count_record_failure,
        )
        self.live = LiveUse(
            watched=self.view, vendors=self._served, ledger=self.ledger, clock=clock
        )
        self._rivals = self._build_rivals()
        self._locks = self._build_locks()
        self.owed = OwedWrites(
            kube=self._kube, locks=self._locks, file=RecordFile(settings.record_dir, OWED)
        )
        self._reporter = self._build_reporter()
        self._allocators = self._build_allocators()
        self._gauges = self._build_gauges()
        self._settler = Settler(
            live=self.live, kube=self._kube, resources=self._kubelet, on_settled=self._gauges.wake
        )
        auditors = map(self._build_auditor, parts.vendors)
        self._auditors = tuple(auditor for auditor in auditors if auditor is not None)
        self._servers = self._build_servers()

    def _build_gauges(self) -> Gauges:
        parts = self._parts
        others = [vendor for vendor in parts.vendors if vendor.served is None]
        return Gauges(
            metrics=self.metrics,
            resources=parts.resources,
            live=self.live,
            ledger=self.ledger,
            node=NodeCards(
                node=self.view.node,
                served=self._served,
                others=protocols_of(others, parts.settings()),
            ),
            also=self._audit,
        )

    def _build_rivals(self) -> Rivals:
        def cards_of(resource: NodeResource) -> Callable[[], tuple[str, ...]]:
            return lambda: tuple(card.uuid for card in resource.inventory.cards)

        parts = self._parts
        return Rivals(
            [
                Contested(
                    name=resource.name, lifecycle=resource.lifecycle, uuids=cards_of(resource)
                )
                for resource in parts.resources
            ],
            plugin_dir=parts.settings().plugin_dir,
            held=self._kubelet.list,
            on_taken=self._resource_taken,
        )

    def _resource_taken(self, resource: str, why: str) -> None:
        self.metrics.set_resource_taken(resource, is_taken=bool(why))
        node = self.view.node()
        if why and node is not None:
            self._notify(
                EventNote(
                    kind="Node",
                    namespace="",
                    name=node.name,
                    uid=node.uid,
                    reason=TAKEN_EVENT,
                    message=why,
                )
            )

    def _build_locks(self) -> LockKeeper:
        return LockKeeper(
            lock=NodeLock(self._kube, self._parts.clock),
            kube=self._kube,
            watched=self.view,
            live=self.live,
            vendors=self._served,
            node_name=self._parts.settings().node_name,
            on_removed=self.metrics.count_lock_removed,
        )

    def _build_allocators(self) -> tuple[PodAllocator, ...]:
        sources = IdentitySources(
            live=self.live,
            ledger=self.ledger,
            kube=self._kube,
            resources=self._kubelet,
            lock_owner=self._locks.owner_now,
        )
        writer = PodWriter(
            kube=self._kube,
            locks=self._locks,
            live=self.live,
            vendors=self._served,
            notify=self._notify,
            owed=self.owed,
        )
        one_at_a_time = threading.Lock()
        return tuple(
            self._build_allocator(resource, sources, writer, one_at_a_time)
            for resource in self._parts.resources
        )

    def _build_allocator(
        self,
        resource: NodeResource,
        sources: IdentitySources,
        writer: PodWriter,
        one_at_a_time: threading.Lock,
    ) -> PodAllocator:
        parts = self._parts
        settings = parts.settings

        def rules() -> AllocateRules:
            now = settings()
            return AllocateRules(
                vendor=protocol_of(resource.vendor, now),
                vendors=protocols_of(parts.vendors, now),
                compat=COMPATS[now.compat.value],
            )

        identity = Identity(
            vendor=protocol_of(resource.vendor, settings()),
            resource=resource.name,
            sources=sources,
            node_name=settings().node_name,
        )
        return PodAllocator(
            AllocatorParts(
                identity=identity,
                live=self.live,
                ledger=self.ledger,
                cards=lambda: resource.inventory.cards,
                usage=lambda leave_out: self.live.cards(parts.cards(), leave_out=leave_out),
                writer=writer,
                responder=resource.responder,
                rules=rules,
                clock=parts.clock,
                resource=resource.name,
                one_at_a_time=one_at_a_time,
                on_result=self.metrics.count_allocate,
            )
        )

    def _build_reporter(self) -> Reporter:
        parts = self._parts
        settings = parts.settings()
        marks = NodeMarks(is_readable=self._kubelet.is_readable, simulated=parts.is_simulated)
        word = ClearWord([resource.backend.clear_errors for resource in parts.resources])
        return Reporter(
            node_name=settings.node_name,
            kube=self._kube,
            watched=self.view,
            publications=(*map(self._publication, parts.vendors), marks, word),
            clock=parts.clock,
            interval_s=lambda: parts.settings().report_interval_s,
            on_report=lambda _: self.metrics.mark_reported(),
        )

    def _publication(self, vendor: AnyVendor) -> Publication:
        """What a vendor publishes on the node object; cards are those of its resource."""
        own = (resource for resource in self._parts.resources if resource.vendor is vendor)
        resource = next(own, None)
        if resource is None:
            return vendor.publication(CardSources(), self._own_settings(vendor))
        sources = CardSources(
            cards=lambda: resource.inventory.cards,
            pair_scores=resource.backend.pair_scores,
            backend_error=lambda: resource.scanner.state.error,
            on_unanswered=self.metrics.set_handshake_unanswered,
            records=resource.record,
        )
        return vendor.publication(sources, self._own_settings(vendor))

    def _own_settings(self, vendor: AnyVendor) -> Callable[[], object]:
        """A vendor's settings in force."""
        settings, kind = self._parts.settings, vendor.settings.kind
        return lambda: settings().of(kind)

    def _build_auditor(self, vendor: AnyVendor) -> Auditor | None:
        """The auditor of the pods of a vendor that others serve."""
        if vendor.auditor is None or vendor.counter is None:
            return None
        count = partial(self.metrics.count_for_vendor, vendor.counter.name)
        outlets = AuditOutlets(notify=self._notify, count=count)
        return vendor.auditor(outlets, self._own_settings(vendor))

    def _build_servers(self) -> tuple[PageServer, ...]:
        parts = self._parts
        probes = NodeProbes(
            settings=parts.settings,
            vendors=parts.vendors,
            resources=parts.resources,
            view=self.view,
            is_reported=self._reporter.reported.is_set,
            why_taken=self._rivals.why_taken,
        ).questions()
        servers: list[PageServer] = []
        if parts.probe_listener is not None:
            servers.append(ProbeServer(parts.probe_listener, probes))
        if parts.listener is not None:
            here, registry = None if servers else probes, self.metrics.registry
            servers.append(
                MetricsServer(parts.listener, registry, here, lambda: plain(parts.settings()))
            )
        return tuple(servers)

    # -- life --------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the threads. Allocate calls are answered once the pods have been listed."""
        parts = self._parts
        self.view.subscribe(self.wake)
        self.view.start(parts.stop)
        for resource in parts.resources:
            resource.scanner.listen(lambda _: self.wake())
        for server in self._servers:
            server.start()
        for name, body in (
            ("events", self._events.run),
            ("settler", self._serve_when_synced),
            ("reporter", self._report_when_synced),
            ("locks", self._locks.run),
            ("rivals", self._rivals.run),
            ("gauges", self._gauges.run),
            ("record", self.ledger.run),
            ("owed", self.owed.run),
            ("config", parts.config_watch.run),
        ):
            parts.threads.start(name, partial(body, parts.stop))

    def wake(self) -> None:
        """Something changed: all parts check now."""
        self._reporter.wake()
        self._locks.wake()
        self._settler.wake()
        self._gauges.wake()

    def close(self) -> None:
        """After stop is set: end every wait. The reporter still writes its shutdown marks."""
        self.wake()
        self.ledger.wake()
        self.owed.wake()
        self._parts.config_watch.wake()
        self._events.wake()
        self.view.close()

    def finish(self) -> None:
        """Close what the threads used."""
        for server in self._servers:
            server.close()
        self._kubelet.close()
        self._kube.close()

    def _serve_when_synced(self, stop: threading.Event) -> None:
        if self._wait_synced(stop):
            load_record(self.ledger, self._settler, self.metrics.count_record_rebuilt)
            for resource, allocator in zip(self._parts.resources, self._allocators, strict=True):
                resource.allocator.put(allocator)
            log.info("serving", extra=kv(pods=len(self.view.pods())))
            self._settler.run(stop)

    def _report_when_synced(self, stop: threading.Event) -> None:
        if self._wait_synced(stop):
            self._reporter.run(stop)

    def _wait_synced(self, stop: threading.Event) -> bool:
        while not self.view.is_synced():
            if stop.wait(SYNC_CHECK_S):
                return False
        return True

    # -- reports ----------------------------------------------------------------------------------
    def _notify(self, event: EventNote) -> None:
        if not self._events.emit(event):
            self.metrics.count_event_dropped()

    def _audit(self) -> None:
        """Let the auditors check this node's pods."""
        node = self.view.node()
        if node is not None:
            for auditor in self._auditors:
                auditor.audit(node, self.live.pods())
