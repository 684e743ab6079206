"""The daemon's parts that need the API server: built and started after kubelet has its list."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from hami_node.backends.nvml import NvmlBackend
from hami_node.cluster.client import connect
from hami_node.cluster.events import EventWriter
from hami_node.cluster.node_lock import NodeLock
from hami_node.cluster.views import ClusterView
from hami_node.logs import kv
from hami_node.metrics_server import MetricsServer, Probes, registry_of
from hami_node.model import Pod, Uuid
from hami_node.node.allocation import PodAllocator
from hami_node.node.gauges import Gauges
from hami_node.node.identity import Identity
from hami_node.node.lock_keeper import LockKeeper
from hami_node.node.neuron_reports import NeuronAuditor, NeuronPublication
from hami_node.node.pod_resources import KubeletPodResources
from hami_node.node.pod_writer import PodWriter
from hami_node.node.publications import IdentityPublication, NvidiaPublication
from hami_node.node.reporter import Reporter
from hami_node.node.reservations import LiveUse
from hami_node.node.response import HookFolder
from hami_node.node.rules import rules_of
from hami_node.ports import EventNote
from hami_node.settings import plain

if TYPE_CHECKING:
    from hami_node.app import Daemon

log = logging.getLogger(__name__)

SYNC_CHECK_S: Final = 0.05
SILENCE_LIMIT_S: Final = 180.0
"""Watches that hear nothing for so long make the daemon unready."""


class ClusterSide:
    """Everything between this node's daemon and the API server."""

    def __init__(self, daemon: Daemon) -> None:
        """Build the parts.

        Raises:
            ConfigError: no usable credentials, or the metrics address is taken.
        """
        self._daemon = daemon
        settings, clock, stop = daemon.settings, daemon.clock, daemon.stop
        self._metrics = daemon.metrics
        self._xids: dict[tuple[Uuid, int], int] = {}
        self._kube = connect(
            settings.kubeconfig,
            component="daemon",
            clock=clock,
            host_name=settings.node_name,
            on_request=daemon.metrics.count_api_request,
            stop=stop,
        )
        self.view = ClusterView.of_node(self._kube, settings.node_name, clock)
        self._events = EventWriter(self._kube, clock)
        self._hook = HookFolder(settings.hook_path)
        self._resources = KubeletPodResources(settings.pod_resources_socket, daemon.stop)
        self.live = LiveUse(
            watched=self.view,
            resource=settings.resource_count,
            has_served=self._hook.has_served,
            clock=clock,
        )
        self._keeper = self._build_keeper()
        self._auditor = NeuronAuditor(
            notify=self._notify, count=daemon.metrics.count_neuron_violation
        )
        self._allocator = self._build_allocator()
        self._reporter = self._build_reporter()
        self._gauges = self._build_gauges()
        self._config = daemon.config_watch
        self._server = self._build_server()
        daemon.metrics.set_simulated(daemon.backend.is_simulated)
        daemon.metrics.watch_pass_age(daemon.backend.name, daemon.backend.last_pass_age_s)

    def _build_keeper(self) -> LockKeeper:
        daemon = self._daemon
        return LockKeeper(
            lock=NodeLock(self._kube, daemon.clock),
            kube=self._kube,
            watched=self.view,
            live=self.live,
            resource=daemon.settings.resource_count,
            on_removed=daemon.metrics.count_lock_removed,
        )

    def _build_gauges(self) -> Gauges:
        return Gauges(
            metrics=self._metrics,
            inventory=self._daemon.inventory,
            live=self.live,
            is_limiter_missing=lambda: not self._hook.limiter().is_complete,
            also=self._look_around,
        )

    def _build_allocator(self) -> PodAllocator:
        daemon = self._daemon
        identity = Identity(
            live=self.live,
            kube=self._kube,
            resources=self._resources,
            resource=daemon.settings.resource_count,
            node_name=daemon.settings.node_name,
            has_served=self._hook.has_served,
            lock_owner=self._keeper.owner,
        )
        writer = PodWriter(
            kube=self._kube,
            locks=self._keeper,
            live=self.live,
            notify=self._notify,
            stop=daemon.stop,
        )
        return PodAllocator(
            identity=identity,
            live=self.live,
            inventory=daemon.inventory,
            writer=writer,
            hook=self._hook,
            rules=lambda: rules_of(daemon.settings),
            clock=daemon.clock,
            on_result=daemon.metrics.count_allocate,
        )

    def _build_reporter(self) -> Reporter:
        daemon = self._daemon
        nvidia = NvidiaPublication(
            cards=lambda: daemon.inventory.cards,
            pair_scores=daemon.backend.pair_scores,
            backend_error=lambda: daemon.scanner.state.error,
            register_format=lambda: daemon.settings.register_format,
            handshake=lambda: daemon.settings.handshake,
            on_unanswered=daemon.metrics.set_handshake_unanswered,
        )
        identity = IdentityPublication(
            is_readable=self._resources.is_readable, simulated=daemon.backend.is_simulated
        )
        return Reporter(
            node_name=daemon.settings.node_name,
            kube=self._kube,
            watched=self.view,
            publications=(nvidia, NeuronPublication(), identity),
            clock=daemon.clock,
            interval_s=daemon.settings.report_interval_s,
            on_report=lambda _: daemon.metrics.mark_reported(),
        )

    def _build_server(self) -> MetricsServer | None:
        settings = self._daemon.settings
        if settings.metrics_address == "off":
            return None
        probes = Probes(
            live={"cards": self._cards_looked_at},
            ready={
                "api-server": self._synced,
                "kubelet": self._registered,
                "report": self._reported,
            },
        )
        return MetricsServer(
            settings.metrics_address,
            registry_of(self._daemon.metrics),
            probes,
            lambda: plain(self._daemon.settings),
        )

    # -- life --------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the threads. Allocate is answered once the pods have been listed."""
        daemon = self._daemon
        threads, stop = daemon.threads, daemon.stop
        self.view.subscribe(self.wake)
        self.view.start(stop)
        daemon.scanner.listen(lambda _: self.wake())
        if self._server is not None:
            self._server.start()
        for name, body in (
            ("events", self._events.run),
            ("allocator", self._serve_when_synced),
            ("reporter", self._report_when_synced),
            ("locks", self._keeper.run),
            ("gauges", self._gauges.run),
            ("config", self._config.run),
        ):
            threads.start(name, _bound(body, stop))

    def wake(self) -> None:
        """Something changed: everybody looks."""
        self._reporter.wake()
        self._keeper.wake()
        self._gauges.wake()

    def close(self) -> None:
        """After stop is set: end every wait. The reporter still says farewell."""
        self.wake()
        self._config.wake()
        self._events.wake()
        self.view.close()

    def finish(self) -> None:
        """Close what the threads used."""
        if self._server is not None:
            self._server.close()
        self._resources.close()
        self._kube.close()

    def _serve_when_synced(self, stop: threading.Event) -> None:
        if self._wait_synced(stop):
            self._daemon.allocator.put(self._allocator)
            log.info("serving", extra=kv(pods=len(self.view.pods())))

    def _report_when_synced(self, stop: threading.Event) -> None:
        if self._wait_synced(stop):
            self._reporter.run(stop)

    def _wait_synced(self, stop: threading.Event) -> bool:
        while not self.view.is_synced():
            if stop.wait(SYNC_CHECK_S):
                return False
        return True

    # -- probes ------------------------------------------------------------------------------------
    def _cards_looked_at(self) -> str:
        age_s = self._daemon.backend.last_pass_age_s()
        limit_s = self._daemon.settings.stall_limit_s
        if age_s <= limit_s:
            return ""
        return f"no look at the cards has finished for {age_s:.0f} s (limit {limit_s:.0f} s)"

    def _synced(self) -> str:
        if not self.view.is_synced():
            return "nodes and pods have not been listed yet"
        age_s = self.view.last_contact_age_s()
        if age_s is not None and age_s > SILENCE_LIMIT_S:
            return f"the API server has not been heard for {age_s:.0f} s"
        return ""

    def _registered(self) -> str:
        if self._daemon.lifecycle.registered.is_set() or self._is_neuron_node():
            return ""
        return self._daemon.scanner.state.error or "not registered with kubelet yet"

    def _reported(self) -> str:
        return "" if self._reporter.reported.is_set() else "the node object was not written yet"

    def _is_neuron_node(self) -> bool:
        node = self.view.node()
        return node is not None and bool(
            node.capacity.get(self._daemon.settings.neuron_resource, "0") != "0"
        )

    # -- small ones --------------------------------------------------------------------------------
    def _notify(self, event: EventNote) -> None:
        if not self._events.emit(event):
            self._metrics.count_event_dropped()

    def _look_around(self) -> None:
        """What has to be looked at after changes beside the gauges."""
        daemon = self._daemon
        daemon.metrics.set_registered(
            daemon.settings.resource_count, daemon.lifecycle.registered.is_set()
        )
        self._count_xids()
        node = self.view.node()
        if node is not None:
            pods: tuple[Pod, ...] = self.live.pods()
            self._auditor.audit(node, pods)

    def _count_xids(self) -> None:
        """Hand the driver's XID events, counted since its session began, to the metrics."""
        daemon = self._daemon
        if not isinstance(daemon.backend, NvmlBackend):
            return
        ignored = frozenset(daemon.settings.xids_ignored)
        for (uuid, xid), count in daemon.backend.xid_counts().items():
            for _ in range(count - self._xids.get((uuid, xid), 0)):
                daemon.metrics.count_xid(uuid, xid, is_ignored=xid in ignored)
            self._xids[uuid, xid] = count


def _bound(body: Callable[[threading.Event], None], stop: threading.Event) -> Callable[[], None]:
    return lambda: body(stop)
