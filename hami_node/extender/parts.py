"""Builds the extender's parts from its settings; no request is made and nothing is served yet."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from hami_node.cluster.client import KubeClient, connect
from hami_node.cluster.events import EventLimits, EventWriter
from hami_node.cluster.node_lock import NodeLock
from hami_node.cluster.transport.connection import Timeouts
from hami_node.cluster.watching.object_cache import QUOTAS
from hami_node.cluster.watching.views import WatchedCluster
from hami_node.cluster.watching.watches import ResourceWatch
from hami_node.config.settings import Settings, plain
from hami_node.extender.binding.bind import PodBinder
from hami_node.extender.binding.bind_lock import QUIET_S, BindLock
from hami_node.extender.binding.sending import Sending
from hami_node.extender.card_pages import card_pages
from hami_node.extender.filter import Outlets, PodFilter
from hami_node.extender.http.server import Endpoints, ExtenderServer, ServerLimits, TlsFiles
from hami_node.extender.leading.catching_up import Echoes
from hami_node.extender.leading.endpoint import LeaderEndpoint, Place
from hami_node.extender.leading.leader import Leader
from hami_node.extender.leading.readiness import MakeLeader, Readiness
from hami_node.extender.placing import PodPlacer
from hami_node.extender.preemption.preempt import PodPreemption, Protection
from hami_node.extender.resizing.resizer import Resizer
from hami_node.extender.rules import rules_of
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.extender.state.handshakes import HandshakeKeeper
from hami_node.extender.state.reservation_writer import ReservationWriter
from hami_node.extender.sweeper import Releaser, Sweeper, Waker
from hami_node.extender.waiting import WaitingPods, extender_state
from hami_node.extender.webhook import Webhook, webhook_rules_of
from hami_node.metrics.extender import ExtenderMetrics
from hami_node.metrics.server import MetricsServer, PageServer, Probes, ProbeServer
from hami_node.ports import Clock, EventNote
from hami_node.vendors.spec import AnyVendor
from hami_node.wire.quotas import ResourceQuota

TIMEOUTS: Final = Timeouts(connect_s=3.0, read_s=6.0, total_s=8.0)
"""kube-scheduler allows a call 30 s in total."""
LEASE_TIMEOUTS: Final = Timeouts(connect_s=0.7, read_s=1.0, total_s=1.0)
"""Less than half of the time in which the Lease has to be renewed: one call may hang."""
ATTEMPTS: Final = 2
PAUSE_S: Final = 0.001
"""In which a search for victims lets other decisions have the state."""
DECISIONS: Final = ("/filter", "/bind", "/preempt", "/healthz", "/readyz", "/metrics", "/version")
"""What is served beside a port for the webhook alone."""
WEBHOOK_LIMITS: Final = ServerLimits(max_connections=256, bodies_bytes=5 << 20, webhook_workers=1)
"""Everybody may call it. A KiB of a review takes 0.4 ms at most, so that the last of those that
wait is read after 2 s; the API server gives up after 10. One thread: it only computes, and more of
them would keep the interpreter from decisions."""
EVENT_LIMITS: Final = EventLimits(
    queue_size=256, burst=10, remembered=8192, urgent_per_minute=120, routine_per_minute=240
)
"""A pod that fits nowhere is filtered every few seconds with different numbers in its reason, and
thousands may wait: each gets ten Events, then one a minute, while the sum allows it."""


class Parts:
    """The parts of one replica, wired together."""

    def __init__(
        self,
        settings: Settings,
        vendors: Sequence[AnyVendor],
        *,
        clock: Clock,
        stop: threading.Event,
        metrics: ExtenderMetrics,
        died: Callable[[], str],
    ) -> None:
        """Build the parts.

        Args:
            settings: of this process; the parts are built again when they change.
            vendors: whose cards are scheduled.
            clock: the time.
            stop: ends waits.
            metrics: what is counted.
            died: "" or which thread has died, for the liveness probe.

        Raises:
            ConfigError: no usable credentials, or a setting is wrong.
        """
        self._settings, self._vendors, self._metrics = settings, vendors, metrics
        self._clock, self._stop = clock, stop
        self.kube = self._connect(TIMEOUTS)
        self.lease_kube = self._connect(LEASE_TIMEOUTS)
        self.view = WatchedCluster.of_cluster(self.kube, clock)
        self.quotas = ResourceWatch(self.kube, QUOTAS, clock=clock, from_cache=False)
        rules = rules_of(settings, vendors)
        self.state = ClusterState(rules, clock)
        self.events = EventWriter(self.kube, clock, EVENT_LIMITS)
        self.readiness = self._build_readiness()
        self.resizer = self._build_resizer()
        self._waiting = WaitingPods(self.view.pod, clock)
        self._follow()
        self._writer = ReservationWriter(self.kube.with_retries(ATTEMPTS), clock, rules.vendors)
        self.sweeper = self._build_sweeper()
        readiness = self.readiness
        self.releaser = Releaser(self.state, self._writer, clock, readiness.require_lead)
        self.waker = Waker(self.state, self.kube, clock, readiness.is_leading)
        metrics.read = extender_state(self.state, self._waiting, clock, readiness.is_leading)
        probes = Probes(live={"threads": died}, ready={"api-server": readiness.why_not_ready})
        self.endpoint = self._build_endpoint()
        # public for callers in this process
        self.endpoints = self._build_endpoints(probes)
        self.webhook_server = self._build_webhook_server()
        self.server = self._build_server(None if self.webhook_server is None else DECISIONS)
        self.metrics_server = self._build_metrics_server(probes)
        has_probes = settings.probe_address != "off"
        self.probe_server = ProbeServer(settings.probe_address, probes) if has_probes else None

    def _build_readiness(self) -> Readiness:
        settings = self._settings
        echoes = Echoes(
            self.lease_kube.with_retries(ATTEMPTS),
            self.view,
            settings.lease_namespace,
            settings.replica_name,
        )
        return Readiness(
            self.view,
            self.quotas,
            self._election(),
            self._clock,
            partial(self.state.begin_term, settings.scheduler_name),
            (echoes.on_pod, echoes.on_node),
        )

    def _build_resizer(self) -> Resizer:
        outlets = Outlets(
            notify=self._notify,
            on_result=self._metrics.resizes.count,
            require_lead=self.readiness.require_lead,
        )
        return Resizer(self.state, self.kube, outlets)

    def servers(self) -> tuple[ExtenderServer, ...]:
        """For calls, in the order in which they start."""
        return (self.server,) if self.webhook_server is None else (self.server, self.webhook_server)

    def page_servers(self) -> tuple[PageServer, ...]:
        """For people and probes."""
        both = (self.probe_server, self.metrics_server)
        return tuple(server for server in both if server is not None)

    def _build_server(self, paths: Collection[str] | None) -> ExtenderServer:
        settings = self._settings
        return ExtenderServer(
            settings.http_bind,
            self.endpoints,
            tls=_tls_of(settings, settings.client_ca_file),
            on_request=self._metrics.count_request,
            paths=paths,
        )

    def _build_endpoint(self) -> LeaderEndpoint | None:
        settings = self._settings
        if not settings.endpoint_slice:
            return None

        def place() -> Place:
            return Place(
                namespace=settings.lease_namespace,
                slice_name=settings.endpoint_slice,
                pod=settings.replica_name or socket.gethostname(),
                ip=settings.pod_ip,
                port=self.server.port,
            )

        made = LeaderEndpoint(self.lease_kube, place, self._clock, self.readiness.is_leading)
        self.readiness.on_begun = made.wake
        return made

    def _build_webhook_server(self) -> ExtenderServer | None:
        settings = self._settings
        if settings.webhook_bind == "off":
            return None
        return ExtenderServer(
            settings.webhook_bind,
            self.endpoints,
            tls=_tls_of(settings, None),
            limits=WEBHOOK_LIMITS,
            on_request=self._metrics.count_request,
            paths=("/webhook",),
        )

    def _connect(self, timeouts: Timeouts) -> KubeClient:
        return connect(
            self._settings.kubeconfig,
            component="extender",
            clock=self._clock,
            timeouts=timeouts,
            on_request=self._metrics.api_requests.count,
            stop=self._stop,
        )

    def _follow(self) -> None:
        self.view.node_watch.cache.follow(self.state.node_changed)
        self.view.pod_watch.cache.follow(self.state.pod_changed)
        self.view.pod_watch.cache.follow(self.resizer.pod_changed)
        self.quotas.cache.follow(self._quota_changed)

    def _quota_changed(self, before: ResourceQuota | None, after: ResourceQuota | None) -> None:
        quota, limited = after or before, self.state.rules.limited
        if quota is None or limited is None:
            return
        limits = None if after is None else limited.limits_in(after)
        self.state.set_quota(quota.namespace, quota.name, limits)

    def _election(self) -> MakeLeader | None:
        settings = self._settings
        if not settings.leader_elect:
            return None
        return lambda on_change: Leader(
            self.lease_kube,
            namespace=settings.lease_namespace,
            name=settings.lease_name,
            identity=settings.replica_name or socket.gethostname(),
            clock=self._clock,
            on_change=on_change,
        )

    def _build_sweeper(self) -> Sweeper:
        is_leading = self.readiness.is_leading
        return Sweeper(
            self.state,
            self.view,
            self._writer,
            HandshakeKeeper(self.state, self.kube, self._clock, is_leading),
            self.readiness,
            clock=self._clock,
            scheduler_name=self._settings.scheduler_name,
        )

    def _build_endpoints(self, probes: Probes) -> Endpoints:
        settings, metrics = self._settings, self._metrics
        placer = PodPlacer(self.state, self._writer, self.view.pod)
        pod_filter = PodFilter(placer, self._outlets("filter"))
        binder = PodBinder(
            placer,
            self.kube,
            self._build_lock(),
            self._outlets("bind"),
            self._clock,
            settings.scheduler_name,
            self._build_sending(),
        )
        preemption = PodPreemption(
            self.state,
            self._writer,
            self._outlets("preempt"),
            Protection(self.kube, self._clock),
            self._clock,
            lambda: self._stop.wait(PAUSE_S),
        )
        rules = webhook_rules_of(settings, self._vendors)
        webhook = Webhook(rules, lambda result: metrics.decisions.count("webhook", result))
        return Endpoints(
            filter=pod_filter.answer,
            bind=binder.answer,
            preempt=preemption.answer,
            webhook=webhook.review,
            live=probes.live,
            ready=probes.ready,
            metrics=metrics.exposition,
        )

    def _build_sending(self) -> Sending:
        leader = self.readiness.leader
        if leader is None:
            return Sending()
        sending = Sending(leader.left_s, self._clock.monotonic)
        leader.await_sent = sending.wait
        return sending

    def _build_lock(self) -> BindLock:
        expiry_s = self._settings.node_lock_timeout_s
        return BindLock(
            self.state,
            self.kube,
            NodeLock(self.kube, self._clock, expiry_s, quiet_s=QUIET_S),
            self._clock,
            self._stop,
            wait_s=self._settings.lock_wait_s,
            expiry_s=expiry_s,
        )

    def _build_metrics_server(self, probes: Probes) -> MetricsServer | None:
        settings = self._settings
        if settings.metrics_address == "off":
            return None
        return MetricsServer(
            settings.metrics_address,
            self._metrics.registry,
            None if settings.probe_address != "off" else probes,
            lambda: plain(settings),
            card_pages(
                self.state,
                settings.card_metrics,
                self.readiness.is_leading,
                has_legacy=settings.legacy_metrics,
            ),
        )

    def _outlets(self, call: str) -> Outlets:
        return Outlets(
            notify=self._notify,
            on_result=lambda result: self._metrics.decisions.count(call, result),
            on_cut=self._metrics.cut_searches.count,
            on_wait=self._waiting.note,
            require_lead=self.readiness.require_lead,
        )

    def _notify(self, event: EventNote) -> None:
        if not self.events.emit(event):
            self._metrics.events_dropped.count()


def _tls_of(settings: Settings, client_ca_file: Path | None) -> TlsFiles | None:
    if settings.cert_file is None or settings.key_file is None:
        return None
    return TlsFiles(
        cert_file=settings.cert_file,
        key_file=settings.key_file,
        client_ca_file=client_ca_file,
        client_name=settings.client_name,
    )
