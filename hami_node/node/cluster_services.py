"""The daemon's parts that need the API server: built and started after the registration."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Final

from prometheus_client.metrics_core import Metric

from hami_node.cluster.client import connect
from hami_node.cluster.events import EventWriter
from hami_node.cluster.watching.views import WatchedCluster
from hami_node.config.settings import plain
from hami_node.errors import RecordError
from hami_node.logs import kv
from hami_node.metrics.daemon import DaemonMetrics
from hami_node.metrics.server import MetricsServer, PageServer, ProbeServer
from hami_node.metrics.usage import Shown, usage_series
from hami_node.model import Uuid
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
from hami_node.node.parts import ClusterParts, NodeParts, Service
from hami_node.node.probes import NodeProbes
from hami_node.node.report import series
from hami_node.node.report.clear_word import ClearWord
from hami_node.node.report.divided import DividedReport
from hami_node.node.report.hand_overs import HandOvers
from hami_node.node.report.node_marks import NodeMarks
from hami_node.node.report.part_errors import PartErrors
from hami_node.node.report.reporter import Reporter
from hami_node.node.report.rounds import Rounds
from hami_node.node.resize.enforcer import resize_vendors
from hami_node.node.resize.keeper import ResizeKeeper
from hami_node.node.resize.words import ResizedWords
from hami_node.node.strangers import Drift, Strangers
from hami_node.node.usage.passes import UsagePasses
from hami_node.ports import EventNote
from hami_node.record.file import Loaded, RecordFile
from hami_node.record.ledger import NAME as LEDGER
from hami_node.record.ledger import Key, Ledger
from hami_node.vendors.on_node.publication import CardSources, Publication
from hami_node.vendors.spec import AnyVendor, protocol_of, protocols_of

log = logging.getLogger(__name__)

SYNC_CHECK_S: Final = 0.05
RECORD_CHECK_S: Final = 1.0
REBUILT_EVENT: Final = "RecordRebuilt"
FIRST_LIST_S: Final = 5.0
"""How long the first report waits for the record and kubelet's list."""


class ClusterServices:
    """Everything between this node's daemon and the API server."""

    def __init__(self, parts: NodeParts) -> None:
        """Build the parts.

        Raises:
            ConfigError: no usable credentials.
        """
        self._parts = parts
        self._reach_cluster()
        self._know_holders()
        self._cluster = ClusterParts(
            metrics=self.metrics,
            kube=self._kube,
            view=self.view,
            kubelet=self._kubelet,
            served=self._served,
            ledger=self.ledger,
            live=self.live,
            notify=self._notify,
            wake=self.wake,
        )
        self._strangers = Strangers(parts, self._cluster)
        self._room = Room(
            parts.vendor_cards,
            self._served,
            self.ledger,
            self.live,
            on_lost=self._strangers.look_at_lost,
        )
        self._report()
        self._serve()
        self.metrics.sources.append(self._series)
        self._servers = self._build_servers()
        self._loop = self._build_loop()
        self._services = self._build_services()

    def _reach_cluster(self) -> None:
        """Metrics, the API server and kubelet's list."""
        parts, settings, clock = self._parts, self._parts.settings(), self._parts.clock
        counters = [vendor.counter for vendor in parts.vendors if vendor.counter is not None]
        self.metrics = DaemonMetrics(settings.node_name, counters)
        self._kube = connect(
            settings.kubeconfig,
            component="daemon",
            clock=clock,
            host_name=settings.node_name,
            on_request=self.metrics.api_requests.count,
            stop=parts.stop,
        )
        self.view = WatchedCluster.of_node(self._kube, settings.node_name, clock)
        self._events = EventWriter(self._kube, clock)
        self._kubelet = KubeletPodResources(settings.pod_resources_socket, parts.stop)

    def _know_holders(self) -> None:
        """What is held on this node: by the ledger, by other plugins, and what is left."""
        parts, settings = self._parts, self._parts.settings()
        # Names of resources can't change while the daemon runs.
        self._served = tuple(protocol_of(owner.vendor, settings) for owner in parts.vendor_cards)
        self.ledger = Ledger(
            RecordFile(settings.record_dir, LEDGER),
            grant_codec(self._served),
            on_failure=self.metrics.record_failures.count,
        )
        self._is_serving = False
        self._found: Loaded | None = None
        """What was read of the record; None before that."""
        self.live = LiveUse(
            watched=self.view,
            vendors=self._served,
            ledger=self.ledger,
            clock=parts.clock,
            on_listed=lambda listed: self._strangers.settled(listed),
            cards=parts.cards,
        )
        others = [vendor for vendor in parts.vendors if vendor.served is None]
        self._shown_cards = series.NodeCards(
            node=self.view.node, served=self._served, others=protocols_of(others, settings)
        )

    def _report(self) -> None:
        """What the node object and its pods are told."""
        parts = self._parts
        self._locks = LockKeeper(parts, self._cluster)
        self._part_errors = PartErrors(
            parts.vendor_cards, pods=self.view.pods, notify=self._notify, clock=parts.clock
        )
        self._divided = DividedReport(
            parts.vendor_cards,
            self._served,
            ledger=self.ledger,
            pods=self.view.pods,
            settings=parts.settings,
            errors=self._part_errors.counts,
        )
        self._rounds = Rounds(
            parts.vendor_cards,
            live=self.live,
            cards=parts.cards,
            drift=Drift(self.ledger, self._served),
            notify=self._notify,
            steps=(self._close_full, self._part_errors.look, self._strangers.audit),
        )
        self._is_unanswered: bool | None = None
        """Whether no scheduler answers our handshake; None before that is known."""
        self._reporter = self._build_reporter()
        self._hand_overs = HandOvers(
            parts.vendor_cards,
            node=self.view.node,
            ledger=self.ledger,
            on_change=self._reporter.wake,
        )

    def _serve(self) -> None:
        """Answers to kubelet, and what follows containers while they run and after."""
        parts = self._parts
        self._phases = Phases(self._cluster, parts.clock)
        self._allocators = {
            resource.name: PodAllocator(parts, self._cluster, owner, resource, self._locks)
            for owner in parts.vendor_cards
            for resource in owner.resources
        }
        self._resizes = ResizeKeeper(
            parts,
            self._cluster,
            is_loaded=self._strangers.recorded.is_set,
            on_settled=self._reporter.wake,
        )
        self._settler = Settler(
            live=self.live,
            kube=self._kube,
            resources=self._kubelet,
            on_settled=self._settled,
        )
        self._files = FileKeeper(parts, self._cluster)
        self._card_parts = PartKeeper(parts, self._cluster)
        self.usage = UsagePasses(parts, self._cluster, self._suspect)

    def _build_loop(self) -> Loop:
        """What is looked at again and again, in this order."""
        hand_overs, usage = self._hand_overs, self.usage
        parts, files = map(self._once_recorded, (self._card_parts.keep, self._files.tidy))
        steps = (
            Step(name="record", look=self._settle, follows_changes=True, settle_s=0.5),
            Step(name="hand-over", look=hand_overs.look, end=hand_overs.end, follows_changes=True),
            Step(name="phases", look=self._phases.look, follows_changes=True, longest_pause_s=2.0),
            Step(name="locks", look=self._locks.watch, follows_changes=True, longest_pause_s=2.0),
            Step(name="strangers", look=self._strangers.look),
            Step(name="card-parts", look=parts, follows_changes=True, settle_s=0.2),
            Step(
                name="resizes", look=self._resizes.look_if_due, follows_changes=True, settle_s=0.05
            ),
            Step(name="files", look=files),
            Step(name="rounds", look=self._rounds.look, follows_changes=True, settle_s=0.5),
            Step(name="usage", look=self._look_at_usage, end=usage.end),
        )
        return Loop(steps, self._parts.clock)

    def _once_recorded(self, look: Callable[[], float | None]) -> Callable[[], float | None]:
        """Before the record is complete it is not known who holds what."""
        return lambda: look() if self._strangers.recorded.is_set() else None

    def _build_services(self) -> tuple[Service, ...]:
        """All that runs in a thread of its own until the daemon stops."""
        watch, reporter = self._parts.config_watch, self._reporter
        return (
            Service(name="events", run=self._events.run, wake=self._events.wake),
            Service(name="loop", run=self._loop.run, wake=self._loop.close),
            Service(
                name="reporter",
                run=self._report_when_synced,
                wake=reporter.wake,
                follows_changes=True,
            ),
            Service(name="config", run=watch.run, wake=watch.wake),
        )

    def _build_reporter(self) -> Reporter:
        parts = self._parts
        settings = parts.settings()
        marks = NodeMarks(
            is_readable=self._kubelet.is_readable,
            limiters=self._rounds.limiter_versions,
            simulated=parts.is_simulated,
            closed=self._why_closed,
            hand_over=lambda: self._hand_overs.summary(),
        )
        word = ClearWord([owner.backend.clear_errors for owner in parts.vendor_cards])
        is_loaded, is_able = self._strangers.recorded.is_set, bool(resize_vendors(parts))
        resized = ResizedWords(self.ledger.entries, is_loaded, is_able=is_able)
        return Reporter(
            node_name=settings.node_name,
            kube=self._kube,
            watched=self.view,
            publications=(*map(self._publication, parts.vendors), marks, word, resized),
            clock=parts.clock,
            interval_s=lambda: parts.settings().report_interval_s,
        )

    def _why_closed(self) -> dict[Uuid, str]:
        """Why cards are unhealthy, or closed although they work."""
        cards = (card for owner in self._parts.vendor_cards for card in owner.cards())
        return {
            **{card.uuid: card.unhealthy_reason for card in cards if card.unhealthy_reason},
            **self._strangers.closed(),
        }

    def _publication(self, vendor: AnyVendor) -> Publication:
        """What a vendor publishes on the node object; cards are those of its resources."""
        owners = (owner for owner in self._parts.vendor_cards if owner.vendor is vendor)
        owner = next(owners, None)
        if owner is None:
            of_others = self._strangers.sources_of(vendor)
            return vendor.publication(of_others, self._own_settings(vendor))
        sources = CardSources(
            cards=lambda: self._room.left(owner),
            pair_scores=owner.backend.pair_scores,
            backend_error=lambda: owner.scanner.state.error,
            used=self._room.used,
            on_unanswered=self._set_unanswered,
            divided=owner.divided,
            records=owner.record,
        )
        return vendor.publication(sources, self._own_settings(vendor))

    def _own_settings(self, vendor: AnyVendor) -> Callable[[], object]:
        """A vendor's settings in force."""
        settings, kind = self._parts.settings, vendor.settings.kind
        return lambda: settings().of(kind)

    def _build_servers(self) -> tuple[PageServer, ...]:
        parts = self._parts
        probes = NodeProbes(
            settings=parts.settings,
            vendors=parts.vendors,
            vendor_cards=parts.vendor_cards,
            view=self.view,
            is_reported=lambda: self._reporter.age_s is not None,
            why_taken=self._strangers.why_taken,
            limiter=self._rounds.why_unready,
            hand_over=self._hand_overs.why_unready,
        ).questions()
        servers: list[PageServer] = []
        if parts.probe_listener is not None:
            servers.append(ProbeServer(parts.probe_listener, probes))
        if parts.listener is not None:
            here, registry = None if servers else probes, self.metrics.registry
            shown = self._shown_settings
            servers.append(MetricsServer(parts.listener, registry, here, shown))
        return tuple(servers)

    def _shown_settings(self) -> Mapping[str, object]:
        """The settings in force, and how containers get their cards under them."""
        hand_over, settings = self._hand_overs.details(), plain(self._parts.settings())
        return {**settings, "hand-over": hand_over, **self._divided.details()}

    # -- life --------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the threads. Allocate calls are answered once the pods have been listed."""
        parts = self._parts
        self.view.subscribe(self.wake)
        self.view.start(parts.stop)
        for owner in parts.vendor_cards:
            owner.scanner.listen(lambda _: self.wake())
        for server in self._servers:
            server.start()
        for service in self._services:
            parts.threads.start(service.name, partial(service.run, parts.stop))

    def wake(self, *steps: str) -> None:
        """Something changed: these steps look soon; without a name, all parts check."""
        self._loop.wake(*steps)
        for service in self._services:
            if service.follows_changes and not steps:
                service.wake()

    def close(self) -> None:
        """After stop is set: end every wait. The reporter still writes its shutdown marks."""
        for service in self._services:
            service.wake()
        self.view.close()

    def finish(self) -> None:
        """Close what the threads used."""
        for server in self._servers:
            server.close()
        self._kubelet.close()
        self._kube.close()

    def _settle(self) -> float:
        """Read the record, serve once it is complete, and from then on keep it up to date."""
        if not self._is_serving:
            wait_s = self._begin()
            if wait_s:
                return wait_s
        return self._settler.look()

    def _begin(self) -> float:
        """Complete the record and serve; else the seconds until the next try.

        A disk that hangs is asked again, and calls are refused meanwhile.
        """
        if self._found is None:
            self._await("the disk of its record")
            try:
                self._found = self.ledger.load()
            except RecordError:  # which was logged
                return RECORD_CHECK_S
            self._await("the API server")
        if not self.view.is_synced():
            return SYNC_CHECK_S
        complete_record(self._found, self.ledger, self._settler, self._record_rebuilt)
        self._room.close_full()
        self._hand_overs.record_read()
        self._rounds.look_at_limiters()
        self._strangers.begin()
        for resource in self._parts.resources:
            resource.allocator.put(self._allocators[resource.name])
        self._is_serving = True
        log.info("serving", extra=kv(pods=len(self.view.pods())))
        self._loop.wake("card-parts", "resizes", "files")
        return 0.0

    def _record_rebuilt(self, found: Loaded) -> None:
        """Count it, and tell people of a record that was there and could not be read."""
        self.metrics.record_rebuilt.count(found.state.value)
        node = self.view.node()
        if found.is_lost and node is not None:
            why = f"{found.problem}: what containers hold was read from kubelet's list and the pods"
            self._notify(EventNote.about(node, REBUILT_EVENT, why))

    def _await(self, what: str) -> None:
        for resource in self._parts.resources:
            resource.allocator.awaited = what

    def _look_at_usage(self) -> float:
        """What containers use needs no API server; nobody waits for what a killed daemon said."""
        return self.usage.look_if_due() if self._found is not None else SYNC_CHECK_S

    def _suspect(self, keys: Collection[Key]) -> None:
        """These containers may have more memory in force than the ledger counts."""
        self._resizes.suspect(keys)
        if keys:
            self._loop.wake("resizes")

    def _report_when_synced(self, stop: threading.Event) -> None:
        if self._wait_synced(stop):
            # Not before record and list were read: what they alone show to be held would look free.
            # It also says how containers get their cards.
            self._strangers.recorded.wait(FIRST_LIST_S)
            self._reporter.run(stop)

    def _wait_synced(self, stop: threading.Event) -> bool:
        while not self.view.is_synced():
            if stop.wait(SYNC_CHECK_S):
                return False
        return True

    # -- reports ----------------------------------------------------------------------------------
    def _notify(self, event: EventNote) -> None:
        if not self._events.emit(event):
            self.metrics.events_dropped.count()

    def _settled(self) -> None:
        """The ledger has changed: files, parts, and what is left of cards for schedulers."""
        self._loop.wake("rounds", "files", "card-parts")
        self._reporter.wake()

    def _set_unanswered(self, is_unanswered: bool) -> None:
        self._is_unanswered = is_unanswered

    def _close_full(self) -> None:
        """Close shares that have no room."""
        if self._strangers.recorded.is_set():  # before that, what has ended meanwhile still counts
            self._room.close_full()

    # -- the scrape --------------------------------------------------------------------------------
    def _series(self) -> Iterator[Metric]:
        """What a scrape shows of the state of this node; in memory all of it."""
        parts, metrics, settings = self._parts, self.metrics, self._parts.settings()
        owners, entries = parts.vendor_cards, self.ledger.entries()
        yield from series.backends(metrics, owners)
        yield from series.holdings(metrics, parts.cards(), self.live, self._shown_cards)
        shown = Shown(
            node=metrics.node,
            now_s=parts.clock.now(),
            names=settings.usage_metrics,
            has_legacy=settings.legacy_metrics,
            models=self._shown_cards.models(),
        )
        yield from usage_series(self.usage.usage, shown)
        yield from self._divided.series(metrics)
        yield from series.registrations(metrics, owners, self._strangers.taken)
        drifted = self._rounds.drifted + self._strangers.drifted()
        yield from series.recorded(metrics, entries, drifted)
        yield from series.limiters(metrics, self._rounds.limiters)
        yield from self._sums()

    def _sums(self) -> Iterator[Metric]:
        """Numbers of the whole node."""
        metrics, reloads = self.metrics, self._parts.reloads
        yield metrics.value("foreign_pods", self._strangers.pods_holding())
        yield metrics.value("init_reruns", self._rounds.reruns)
        yield metrics.value("config_generation", reloads["applied"])
        yield metrics.kept("config_reload_failures", [((), reloads["refused"])])
        yield metrics.value("report_age_seconds", self._reporter.age_s)
        yield metrics.gauge("handshake_unanswered", [(("csv9",), self._is_unanswered)])
        yield from self._files.series(metrics)
