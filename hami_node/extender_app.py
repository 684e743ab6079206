"""Builds the extender from its parts and runs it: watches, decisions, server, leader election."""

from __future__ import annotations

import gc
import logging
import signal
import socket
import threading
from collections.abc import Callable
from typing import Final

from prometheus_client.registry import CollectorRegistry

from hami_node import __version__
from hami_node.clock import SystemClock
from hami_node.cluster.client import KubeClient, connect
from hami_node.cluster.connection import Timeouts
from hami_node.cluster.events import EventLimits, EventWriter
from hami_node.cluster.node_lock import NodeLock
from hami_node.cluster.views import ClusterView
from hami_node.cluster.watches import QUOTAS, ResourceWatch
from hami_node.config import ConfigSources, changed_fields, plain, resolve
from hami_node.config_watch import ConfigWatch
from hami_node.engine.quota import Limits
from hami_node.errors import KubeError, NotFound, NotLeading, PodTaken
from hami_node.extender.bind import BindParts, PodBinder
from hami_node.extender.filter import Outlets, PodFilter
from hami_node.extender.handshakes import HandshakeKeeper
from hami_node.extender.leader import Leader
from hami_node.extender.numbers import Numbers
from hami_node.extender.reservations import ReservationWriter
from hami_node.extender.restart import END_SIGNALS, start_anew
from hami_node.extender.rules import rules_of
from hami_node.extender.server import Endpoints, ExtenderServer
from hami_node.extender.state import ClusterState
from hami_node.extender.webhook import Webhook, webhook_rules_of
from hami_node.logs import configure, kv
from hami_node.metrics_server import MetricsServer, Probes
from hami_node.ports import Clock, EventNote
from hami_node.settings import Role, Settings, settings_of
from hami_node.wire.quotas import ResourceQuota

log = logging.getLogger(__name__)

TIMEOUTS: Final = Timeouts(connect_s=3.0, read_s=6.0, total_s=8.0)
"""kube-scheduler gives a call 30 s in all."""
LEASE_TIMEOUTS: Final = Timeouts(connect_s=1.5, read_s=2.0, total_s=3.0)
"""Well below the time in which the Lease has to be renewed."""
ATTEMPTS: Final = 2
EVENT_LIMITS: Final = EventLimits(queue_size=2048, burst=10, remembered=8192)
"""A pod that fits nowhere is filtered every few seconds with other numbers in its reason, and
thousands may wait: each gets ten Events, then one a minute. An Event is 1 KiB at most."""
SWEEP_S: Final = 15.0
SYNC_CHECK_S: Final = 0.05
SILENCE_LIMIT_S: Final = 180.0
"""Watches that hear nothing for so long make the extender unready."""
GRACE_S: Final = 20.0
"""How long requests under way may take at the end; a bind waits no longer for a lock."""
CLEARING_S: Final = 5.0
"""No clearing of leftovers begins later in a sweep: a call that hangs takes many seconds."""


class Extender:
    """One replica. `start`, then `wait`; `stop` from anywhere."""

    def __init__(
        self,
        settings: Settings,
        sources: ConfigSources,
        *,
        clock: Clock | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """Build the parts; nothing is asked or served yet.

        Raises:
            ConfigError: no usable credentials, or a setting is wrong.
        """
        self.settings, self._sources = settings, sources
        self.clock: Clock = clock or SystemClock()
        self.stop = stop or threading.Event()
        self.is_outdated = False
        self.numbers = Numbers(CollectorRegistry())
        self._end_of_lead = threading.Event()
        self._threads: list[threading.Thread] = []
        self._died = ""
        self._settled = threading.Event()
        self._has_caught_up = not settings.leader_elect
        self._kube = self._connect(TIMEOUTS)
        self._lease_kube = self._connect(LEASE_TIMEOUTS)
        self.view = ClusterView.of_cluster(self._kube, self.clock)
        self._quotas = ResourceWatch(self._kube, QUOTAS, clock=self.clock, from_cache=False)
        self.state = ClusterState(rules_of(settings), self.clock, settings.node_lock_timeout_s)
        self._follow()
        self._events = EventWriter(self._kube, self.clock, EVENT_LIMITS)
        self._leader = self._build_leader()
        self._writer = ReservationWriter(self._kube.with_retries(ATTEMPTS), self.clock)
        self._handshakes = HandshakeKeeper(self.state, self._kube, self.clock, self.is_leading)
        self.server = self._build_server()
        self._metrics_server = self._build_metrics_server()
        self._config = ConfigWatch(sources.files(), self._configuration_changed)

    # -- building ----------------------------------------------------------------------------------
    def _connect(self, timeouts: Timeouts) -> KubeClient:
        return connect(
            self.settings.kubeconfig,
            component="extender",
            clock=self.clock,
            timeouts=timeouts,
            on_request=self.numbers.count_api_request,
            stop=self.stop,
        )

    def _follow(self) -> None:
        self.view.node_watch.cache.follow(self.state.node_changed)
        self.view.pod_watch.cache.follow(self.state.pod_changed)
        self._quotas.cache.follow(self._quota_changed)

    def _build_leader(self) -> Leader | None:
        settings = self.settings
        if not settings.leader_elect:
            return None
        return Leader(
            self._lease_kube,
            namespace=settings.lease_namespace,
            name=settings.lease_name,
            identity=settings.replica_name or socket.gethostname(),
            clock=self.clock,
            on_change=self._lead_changed,
        )

    def _build_server(self) -> ExtenderServer:
        settings = self.settings
        pod_filter = PodFilter(self.state, self._writer, self._outlets("filter"))
        binder = PodBinder(
            BindParts(
                kube=self._kube,
                state=self.state,
                writer=self._writer,
                lock=NodeLock(self._kube, self.clock, settings.node_lock_timeout_s),
                find_pod=self.view.pod,
                clock=self.clock,
                stop=self.stop,
                scheduler_name=settings.scheduler_name,
                lock_wait_s=settings.lock_wait_s,
            ),
            self._outlets("bind"),
        )
        webhook = Webhook(
            lambda: webhook_rules_of(self.settings),
            lambda result: self.numbers.count_decision("webhook", result),
        )
        probes = self._probes()
        # also for callers in this process
        self.endpoints = Endpoints(
            filter=pod_filter.answer,
            bind=binder.answer,
            webhook=webhook.review,
            live=probes.live,
            ready=probes.ready,
            metrics=self._exposition,
        )
        return ExtenderServer(
            settings.http_bind,
            self.endpoints,
            cert_file=settings.cert_file,
            key_file=settings.key_file,
            on_request=self.numbers.count_request,
        )

    def _build_metrics_server(self) -> MetricsServer | None:
        if self.settings.metrics_address == "off":
            return None
        return MetricsServer(
            self.settings.metrics_address,
            self.numbers.registry,
            self._probes(),
            lambda: plain(self.settings),
        )

    def _outlets(self, call: str) -> Outlets:
        return Outlets(
            notify=self._notify,
            on_result=lambda result: self.numbers.count_decision(call, result),
            require_lead=self._require_lead,
        )

    def _probes(self) -> Probes:
        return Probes(
            live={"threads": lambda: f"{self._died} died" if self._died else ""},
            ready={"api-server": self._synced, "leader": self._leads},
        )

    # -- life --------------------------------------------------------------------------------------
    def start(self) -> None:
        """Listen and begin to watch; ready once nodes, pods and quotas have been listed.

        Raises:
            ConfigError: an address or the certificate can't be used.
        """
        self.server.start()
        if self._metrics_server is not None:
            self._metrics_server.start()
        self.view.start(self.stop)
        self._spawn("quotas", lambda: self._quotas.run(self.stop))
        self._spawn("events", lambda: self._events.run(self.stop))
        self._spawn("config", lambda: self._config.run(self.stop))
        self._spawn("sweeper", self._sweep)
        if self._leader is not None:
            leader = self._leader
            self._spawn("leader", lambda: leader.run(self._end_of_lead))

    def wait(self) -> int:
        """Wait for the end; the process's exit code."""
        while not self.stop.wait(1.0):
            usage = self.state.sizes()
            self.numbers.set_sizes(*usage)
            self.numbers.set_leading(self.is_leading())
        return self._end()

    def _end(self) -> int:
        """Answer what is under way, give the Lease back, end the threads."""
        self.server.close(GRACE_S)
        self._end_of_lead.set()  # not before: what is under way was decided as the leader
        self._events.wake()
        self._config.wake()
        self._quotas.interrupt()
        self.view.close()
        for thread in self._threads:
            thread.join(5.0)
        if self._metrics_server is not None:
            self._metrics_server.close()
        self._kube.close()
        self._lease_kube.close()
        log.info("stopped", extra=kv(died=self._died or None))
        return 1 if self._died else 0

    def _spawn(self, name: str, body: Callable[[], None]) -> None:
        """Start a thread; one that dies ends the process, for a half-dead one lies."""

        def guarded() -> None:
            try:
                body()
            except BaseException:
                log.exception("thread_died", extra=kv(thread=name))
                self._died = name
                self.stop.set()
                raise

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    # -- who decides -------------------------------------------------------------------------------
    def is_synced(self) -> bool:
        """True once everything has been listed and settled."""
        return self._settled.is_set() and self._is_listed()

    def _is_listed(self) -> bool:
        return self.view.is_synced() and self._quotas.is_synced()

    def is_leading(self) -> bool:
        """True while this replica decides."""
        return self.is_synced() and not self._leads()

    def _require_lead(self) -> None:
        why = self._synced() or self._leads()
        if why:
            raise NotLeading(why)

    def _lead_changed(self, is_leading: bool) -> None:
        """What the replica before us decided last may not have reached our watch: list anew."""
        self._has_caught_up = False
        if is_leading:
            self.view.pod_watch.relist()
            self.view.node_watch.relist()
            self._has_caught_up = True

    def _synced(self) -> str:
        if not self.is_synced():
            return "nodes, pods and quotas have not been listed yet"
        age_s = self.view.last_contact_age_s()
        if age_s is not None and age_s > SILENCE_LIMIT_S:
            return f"the API server has not been heard for {age_s:.0f} s"
        return ""

    def _leads(self) -> str:
        if self._leader is None:
            return ""
        if self._leader.is_leading():
            return "" if self._has_caught_up else "the lead was taken over just now"
        return f"replica {self._leader.holder() or 'nobody'} decides"

    # -- threads' bodies and listeners -------------------------------------------------------------
    def _sweep(self) -> None:
        while not self._is_listed():
            if self.stop.wait(SYNC_CHECK_S):
                return
        self.state.catch_up()
        gc.collect()
        gc.freeze()  # a collection over every pod of a large cluster would stop decisions
        self._settled.set()
        log.info("synced", extra=kv(nodes=len(self.view.nodes()), pods=len(self.view.pods())))
        while not self.stop.is_set():
            self.sweep()
            self._handshakes.look()
            self.stop.wait(SWEEP_S)

    def sweep(self) -> None:
        """Drop what no longer counts, and take it off the pods."""
        version = self.view.pod_watch.version()  # before the pods, which then are not older
        self.state.sweep({pod.uid for pod in self.view.pods()}, version)
        if self.is_leading():
            self._clear_leftovers()

    def _clear_leftovers(self) -> None:
        end_s = self.clock.monotonic() + CLEARING_S
        for pod in self.state.leftovers():
            if pod.scheduler_name != self.settings.scheduler_name:
                continue  # its own scheduler may still mean to bind it, and its plugin needs that
            if self.clock.monotonic() > end_s or not self.is_leading():
                return
            try:
                self.state.learned(self._writer.clear(pod))
            except PodTaken as e:
                self.state.learned(e.pod)
                if e.pod.uid != pod.uid:
                    self.state.pod_changed(pod, None)
            except NotFound:
                self.state.pod_changed(pod, None)
            except KubeError as e:
                log.debug("leftover_not_cleared", extra=kv(pod=pod.key, error=str(e)))

    def _quota_changed(self, before: ResourceQuota | None, after: ResourceQuota | None) -> None:
        quota = after or before
        if quota is None:
            return
        rules = self.state.rules.names
        limits = None
        if after is not None:
            limits = Limits(
                memory_mib=after.limit(rules.gpu_memory), cores=after.limit(rules.gpu_cores)
            )
        self.state.set_quota(quota.namespace, quota.name, limits)

    def _configuration_changed(self) -> None:
        """What is new for the extender takes a new start; what is wrong changes nothing."""
        found = resolve(self._sources)
        for error in found.errors:
            log.error("config_refused", extra=kv(error=str(error), kept="the settings in force"))
        ours = frozenset(settings_of(Role.EXTENDER))
        changed = [name for name in changed_fields(self.settings, found.settings) if name in ours]
        if changed and not found.errors:
            log.warning("config_changed", extra=kv(changed=changed, then="starts anew"))
            self.is_outdated = True
            self.stop.set()

    def _notify(self, event: EventNote) -> None:
        if not self._events.emit(event):
            self.numbers.count_event_dropped()

    def _exposition(self, accept: str) -> tuple[bytes, str]:
        return self.numbers.exposition(accept)


def run_extender(settings: Settings, sources: ConfigSources) -> int:
    """Run until SIGTERM or SIGINT; the process's exit code. A changed configuration starts it anew.

    Raises:
        ConfigError: a setting is wrong.
    """
    configure(settings.log_format, settings.log_level)
    log.info("starting", extra=kv(version=__version__, scheduler=settings.scheduler_name))
    if settings.ignored:
        log.warning("settings_without_effect", extra=kv(names=settings.ignored))
    extender = Extender(settings, sources)
    ended = threading.Event()

    def end(*_: object) -> None:
        ended.set()
        extender.stop.set()

    for number in END_SIGNALS:
        signal.signal(number, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, END_SIGNALS)
    try:
        extender.start()
    except BaseException:
        extender.stop.set()
        raise
    code = extender.wait()
    if code == 0 and extender.is_outdated:
        start_anew(ended)
    return code
