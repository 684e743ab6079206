"""All of the daemon that needs the API server: built and started after the registration."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from prometheus_client.metrics_core import Metric

from hami_node.cluster.client import connect
from hami_node.cluster.events import EventWriter
from hami_node.cluster.watching.views import WatchedCluster
from hami_node.config.settings import plain
from hami_node.config.watch import LOOK_S
from hami_node.errors import RecordError
from hami_node.logs import kv
from hami_node.metrics.daemon import DaemonMetrics
from hami_node.metrics.server import MetricsServer, PageServer, ProbeServer
from hami_node.metrics.usage import Shown, usage_series
from hami_node.node.allocate.allocator import PodAllocator
from hami_node.node.allocate.lock_keeper import LockKeeper
from hami_node.node.allocate.phases import Phases
from hami_node.node.file_keeper import FileKeeper
from hami_node.node.holdings.live_use import LiveUse
from hami_node.node.holdings.recorded import grant_codec
from hami_node.node.holdings.room import Room
from hami_node.node.holdings.settler import Settler, complete_record
from hami_node.node.kubelet.pod_resources import KubeletPodResources
from hami_node.node.loop import Loop, Step
from hami_node.node.part_keeper import PartKeeper
from hami_node.node.probes import node_probes
from hami_node.node.report.divided import divided_details, divided_series
from hami_node.node.report.hand_overs import HandOvers
from hami_node.node.report.node_marks import NodeMarks
from hami_node.node.report.part_errors import PartErrors
from hami_node.node.report.reporter import Reporter
from hami_node.node.report.rounds import PodRounds
from hami_node.node.report.series import shown_models, state_series
from hami_node.node.resizes import Resizes
from hami_node.node.state import NodeState
from hami_node.node.strangers import Strangers
from hami_node.node.usage import UsagePasses
from hami_node.record.file import Loaded, RecordFile
from hami_node.record.ledger import NAME as LEDGER
from hami_node.record.ledger import Ledger
from hami_node.vendors.on_node.publication import CardSources, Publication
from hami_node.vendors.spec import AnyVendor, protocol_of

log = logging.getLogger(__name__)

SYNC_CHECK_S: Final = 0.05
RECORD_CHECK_S: Final = 1.0
ROUND_S: Final = 5.0
REBUILT_EVENT: Final = "RecordRebuilt"


class ClusterServices:
    """Completes the state with what needs the API server, and runs the loop over it."""

    def __init__(
        self, node: NodeState, listener: socket.socket | None, probe_listener: socket.socket | None
    ) -> None:
        """Build the parts. The listeners are for the pages and for the probes; None: not served.

        Raises:
            ConfigError: no usable credentials.
        """
        self.node = node
        self._connect()
        # No name of a resource can change while the daemon runs.
        node.served = tuple(protocol_of(each.vendor, node.settings()) for each in node.vendor_cards)
        node.ledger = Ledger(
            RecordFile(node.settings().record_dir, LEDGER),
            grant_codec(node.served),
            on_failure=node.metrics.record_failures.count,
        )
        node.live = LiveUse(
            watched=node.view,
            vendors=node.served,
            ledger=node.ledger,
            clock=node.clock,
            on_listed=lambda listed: self._strangers.settled(listed),
            cards=node.cards,
        )
        self._found: Loaded | None = None
        """What was read of the record; None before that."""
        self._strangers = Strangers(node)
        self._room = Room(
            node.vendor_cards,
            node.served,
            node.ledger,
            node.live,
            on_lost=self._strangers.look_at_lost,
        )
        self._settler = Settler(
            live=node.live, kube=node.kube, resources=node.kubelet, on_settled=self._settled
        )
        self._locks, self._phases = LockKeeper(node), Phases(node)
        self._files, self._card_parts = FileKeeper(node), PartKeeper(node)
        self._part_errors, self._rounds = PartErrors(node), PodRounds(node)
        self._hand_overs, self._resizes = HandOvers(node), Resizes(node)
        self.usage = UsagePasses(node, self._resizes.suspect)
        self._is_unanswered: bool | None = None
        """Whether no scheduler answers our handshake; None before that is known."""
        marks = NodeMarks(node, self._hand_overs, self._strangers.closed)
        self._reporter = Reporter(node, (*map(self._publication, node.vendors), marks))
        self._servers = self._build_servers(listener, probe_listener)
        node.loop = Loop(self._steps(), node.clock)
        node.metrics.sources.append(self._series)

    def _connect(self) -> None:
        """Metrics, the API server and kubelet's list."""
        node, settings = self.node, self.node.settings()
        counters = [vendor.counter for vendor in node.vendors if vendor.counter is not None]
        node.metrics = DaemonMetrics(settings.node_name, counters)
        node.kube = connect(
            settings.kubeconfig,
            component="daemon",
            clock=node.clock,
            host_name=settings.node_name,
            on_request=node.metrics.api_requests.count,
            stop=node.stop,
        )
        node.view = WatchedCluster.of_node(node.kube, settings.node_name, node.clock)
        node.events = EventWriter(node.kube, node.clock)
        node.kubelet = KubeletPodResources(settings.pod_resources_socket, node.stop)

    def _steps(self) -> tuple[Step, ...]:
        """What is looked at again and again, in this order."""
        hand_overs, usage = self._hand_overs, self.usage
        room, parts, files = map(
            self._once_recorded, (self._room.close_full, self._card_parts.look, self._files.look)
        )
        return (
            Step("record", self._settle, settle_s=0.5),
            Step("report", self._reporter.look, self._reporter.sign_off, longest_pause_s=5.0),
            Step("hand-over", hand_overs.look, hand_overs.end, every_s=60.0),
            Step("phases", self._phases.look, longest_pause_s=2.0),
            Step("locks", self._locks.watch, longest_pause_s=2.0),
            Step("strangers", self._strangers.look, follows_changes=False),
            Step("card-parts", parts, settle_s=0.2),
            Step("resizes", self._resizes.look, settle_s=0.05),
            Step("files", files, follows_changes=False),
            Step("room", room, every_s=ROUND_S, settle_s=0.5),
            Step("part-errors", self._part_errors.look, every_s=ROUND_S, settle_s=0.5),
            Step("audit", self._strangers.audit, every_s=ROUND_S, settle_s=0.5),
            Step("limiters", hand_overs.look_at_limiters, every_s=ROUND_S, settle_s=0.5),
            Step("pods", self._rounds.look, every_s=ROUND_S, settle_s=0.5),
            Step("usage", self._look_at_usage, usage.end, follows_changes=False),
            Step(
                "config",
                self.node.config_watch.look,
                every_s=LOOK_S,
                follows_changes=False,
                longest_pause_s=2.0,
            ),
        )

    def _once_recorded(self, look: Callable[[], float | None]) -> Callable[[], float | None]:
        """Before the record is complete it is not known who holds what."""
        return lambda: look() if self.node.recorded.is_set() else None

    def _publication(self, vendor: AnyVendor) -> Publication:
        """What a vendor publishes on the node object; cards are those of its resources."""
        node, room, kind = self.node, self._room, vendor.settings.kind
        owner = next((each for each in node.vendor_cards if each.vendor is vendor), None)
        if owner is None:
            sources = self._strangers.sources_of(vendor)
        else:
            sources = CardSources(
                cards=lambda: room.left(owner),
                pair_scores=owner.backend.pair_scores,
                backend_error=lambda: owner.error,
                used=room.used,
                on_unanswered=self._set_unanswered,
                records=owner.record,
            )
        return vendor.publication(sources, lambda: node.settings().of(kind))

    def _build_servers(
        self, listener: socket.socket | None, probe_listener: socket.socket | None
    ) -> tuple[PageServer, ...]:
        probes = node_probes(
            self.node,
            report=lambda: self._reporter.age_s,
            why_taken=self._strangers.why_taken,
            limiter=self._hand_overs.why_unlimited,
            hand_over=self._hand_overs.why_unready,
        )
        servers: list[PageServer] = []
        if probe_listener is not None:
            servers.append(ProbeServer(probe_listener, probes))
        if listener is not None:
            here, registry = None if servers else probes, self.node.metrics.registry
            servers.append(MetricsServer(listener, registry, here, self._shown_settings))
        return tuple(servers)

    def _shown_settings(self) -> Mapping[str, object]:
        """The settings in force, and how containers get their cards under them."""
        hand_over, settings = self._hand_overs.details(), plain(self.node.settings())
        return {**settings, "hand-over": hand_over, **divided_details(self.node)}

    # -- life --------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the threads. Allocate calls are answered once the pods have been listed."""
        node = self.node
        node.view.subscribe(node.wake)
        node.view.start(node.stop)
        for owner in node.vendor_cards:
            owner.on_change = node.wake
        for server in self._servers:
            server.start()
        node.threads.start("events", partial(node.events.run, node.stop))
        node.threads.start("loop", partial(node.loop.run, node.stop))

    def close(self) -> None:
        """After stop is set: end every wait. The loop's steps still do what they do at the end."""
        self.node.events.wake()
        self.node.loop.close()
        self.node.view.close()

    def finish(self) -> None:
        """Close what the threads used."""
        for server in self._servers:
            server.close()
        self.node.kubelet.close()
        self.node.kube.close()

    def _settle(self) -> float:
        """Read the record, serve once it is complete, and from then on keep it up to date."""
        return (0.0 if self.node.recorded.is_set() else self._begin()) or self._settler.look()

    def _begin(self) -> float:
        """Complete the record and serve; else the seconds until the next try.

        A disk that hangs is asked again, and calls are refused meanwhile.
        """
        node = self.node
        if self._found is None:
            self._await("the disk of its record")
            try:
                self._found = node.ledger.load()
            except RecordError:  # which was logged
                return RECORD_CHECK_S
            self._await("the API server")
        if not node.view.is_synced():
            return SYNC_CHECK_S
        allocators = {
            resource: PodAllocator(node, owner, resource, self._locks)
            for owner in node.vendor_cards
            for resource in owner.resources
        }
        complete_record(self._found, node.ledger, self._settler, self._record_rebuilt)
        self._room.close_full()
        self._hand_overs.record_read()
        self._strangers.begin()
        for resource, allocator in allocators.items():
            resource.allocator.put(allocator)
        log.info("serving", extra=kv(pods=len(node.view.pods())))
        node.wake("report", "card-parts", "resizes", "files")
        return 0.0

    def _record_rebuilt(self, found: Loaded) -> None:
        """Count it, and tell people of a record that was there and could not be read."""
        self.node.metrics.record_rebuilt.count(found.state.value)
        if found.is_lost:
            why = f"{found.problem}: what containers hold was read from kubelet's list and the pods"
            self.node.notify_node(REBUILT_EVENT, why)

    def _await(self, what: str) -> None:
        for resource in self.node.resources:
            resource.allocator.awaited = what

    def _look_at_usage(self) -> float:
        """What containers use needs no API server; nobody waits for what a killed daemon said."""
        return self.usage.look() if self._found is not None else SYNC_CHECK_S

    def _settled(self) -> None:
        """The ledger has changed: files, parts, and what is left of cards for schedulers."""
        self.node.wake("report", "room", "pods", "files", "card-parts")

    def _set_unanswered(self, is_unanswered: bool) -> None:
        self._is_unanswered = is_unanswered

    # -- the scrape --------------------------------------------------------------------------------
    def _series(self) -> Iterator[Metric]:
        """What a scrape shows of the state of this node; in memory all of it."""
        node, metrics, settings = self.node, self.node.metrics, self.node.settings()
        models = shown_models(node)
        limiters = self._hand_overs.limiters or ()
        yield from state_series(node, models, limiters, self._strangers.taken)
        shown = Shown(
            node=metrics.node,
            now_s=node.clock.now(),
            names=settings.usage_metrics,
            has_legacy=settings.legacy_metrics,
            models=models,
        )
        yield from usage_series(self.usage.usage, shown)
        yield from divided_series(node, self._part_errors.counts)
        drifted = self._rounds.drifted + self._strangers.drifted()
        yield metrics.value("record_drift_pods", drifted)
        yield metrics.value("foreign_pods", self._strangers.pods_holding())
        yield metrics.value("init_reruns", len(self._rounds.rerunning))
        yield metrics.value("config_generation", node.reloads["applied"])
        yield metrics.kept("config_reload_failures", [((), node.reloads["refused"])])
        yield metrics.value("report_age_seconds", self._reporter.age_s)
        yield metrics.gauge("handshake_unanswered", [(("csv9",), self._is_unanswered)])
        yield from self._files.series()
