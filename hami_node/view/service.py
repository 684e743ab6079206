"""The program behind `hami-node view`: watches, the picture, the server."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Self, TypeVar

from hami_node.cluster.client import KubeClient
from hami_node.cluster.watching.object_cache import NODES, PODS, QUOTAS, WatchedKind
from hami_node.cluster.watching.watches import OF_FEW, ResourceWatch, WatchTimes
from hami_node.engine.place import PodRequest
from hami_node.extender.http.serving import BoundedServer, ServerLimits, listen
from hami_node.inspection.picture import Basis
from hami_node.inspection.views import Problem
from hami_node.model import Node, Pod
from hami_node.ports import Clock
from hami_node.threads import GuardedThreads
from hami_node.view.details import node_page
from hami_node.view.feed import MAX_LISTENERS, Change, Feed
from hami_node.view.http.addresses import AllowedHosts
from hami_node.view.http.event_stream import BEAT_S, PAUSE_S
from hami_node.view.http.guard import Guard
from hami_node.view.http.query import Query
from hami_node.view.http.routes import Answer, Routes
from hami_node.view.lists import (
    namespaces_list,
    nodes_list,
    pods_list,
    problems_list,
    rooms_list,
    waiting_list,
)
from hami_node.view.live_picture import LivePicture
from hami_node.view.story import events_reader, pod_page
from hami_node.view.summary import Sources, Summaries
from hami_node.view.used import UsedReader
from hami_node.view.whatif import options, what_if
from hami_node.wire.quotas import ResourceQuota

log: Final = logging.getLogger(__name__)

DAEMON_NAMESPACE: Final = "hami-system"
GRACE_S: Final = 1.0
TICK_S: Final = 1.0
"""At least so often it is seen whether the API server is there."""
COALESCE_S: Final = 0.5
"""Changes within this time are read and told together."""
SWEEP_S: Final = 10.0
REASONS_S: Final = 5.0
"""For so long the reason why a request fits nowhere is taken as known."""

LIMITS: Final = ServerLimits(max_connections=256)


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewOptions:
    """How the page is served.

    Attributes:
        bind: `HOST:PORT` or `:PORT`; 0 takes a free port.
        allowed_hosts: names under which browsers may ask for it, beside the loopback names.
        daemon_namespace: where the daemons are, who say what is used.
        most_listeners: pages that listen at a time.
        beat_s, pause_s: see `event_stream`.
        times: waits of the watches.
        limits: what a client may use.
    """

    bind: str
    allowed_hosts: tuple[str, ...] = ()
    daemon_namespace: str = DAEMON_NAMESPACE
    most_listeners: int = MAX_LISTENERS
    beat_s: float = BEAT_S
    pause_s: float = PAUSE_S
    times: WatchTimes = OF_FEW
    limits: ServerLimits = LIMITS


_Watched = TypeVar("_Watched", Pod, Node, ResourceQuota)


class ViewServer:
    """Serves between `start` and `close`."""

    def __init__(
        self,
        options: ViewOptions,
        kube: KubeClient,
        basis: Basis,
        clock: Clock,
        scheduler_name: str,
        problems: Sequence[Problem] = (),
    ) -> None:
        """Build the parts.

        Args:
            options: how to serve.
            kube: the API, with the user's rights.
            basis: the vendors and the extender's rules.
            clock: the time.
            scheduler_name: the kube-scheduler profile that calls the extender.
            problems: shown with those of the cluster.
        """
        self._options, self._clock, self._scheduler = options, clock, scheduler_name
        self._problems = tuple(problems)
        self.stop = threading.Event()
        self.threads = GuardedThreads(self.stop)
        self._pods: ResourceWatch[Pod] = self._watch(kube, PODS)
        self._nodes: ResourceWatch[Node] = self._watch(kube, NODES)
        self._quotas: ResourceWatch[ResourceQuota] = self._watch(kube, QUOTAS)
        self.picture = LivePicture(basis, clock)
        for watch in (self._pods, self._nodes, self._quotas):
            watch.cache.follow(self.picture.note)
        self.feed = Feed(options.most_listeners)
        self._summaries = Summaries(
            self.picture,
            Sources(
                needed={"nodes": self._nodes, "pods": self._pods},
                optional={"resourcequotas": self._quotas},
            ),
            clock.now,
            clock.monotonic,
        )
        self._reasons: dict[PodRequest, str] = {}
        self._reasons_s = 0.0
        self._read_events = events_reader(kube)
        self._used = UsedReader(kube.read_pod_metrics, clock, options.daemon_namespace)
        self._pods.cache.follow(self._used.note)
        self._routes = Routes(
            self._answers(), self.feed, beat_s=options.beat_s, pause_s=options.pause_s
        )
        self._server: BoundedServer | None = None
        self.port = 0

    def _watch(self, kube: KubeClient, kind: WatchedKind[_Watched]) -> ResourceWatch[_Watched]:
        times = self._options.times
        return ResourceWatch(kube, kind, clock=self._clock, from_cache=False, times=times)

    @property
    def url(self) -> str:
        """Where a browser on this machine finds the page."""
        host = self._options.bind.rpartition(":")[0]
        return f"http://{host or '127.0.0.1'}:{self.port}/"

    def start(self) -> Self:
        """Listen, and start the watches.

        Raises:
            ConfigError: the address can't be bound.
        """
        listener = listen(self._options.bind, self._options.limits, "--bind")
        self.port = int(listener.getsockname()[1])
        app = Guard(self._routes, AllowedHosts(self._options.allowed_hosts))
        self._server = server = BoundedServer(app, None, None, self._options.limits)
        begun = threading.Event()

        def serve() -> None:
            try:
                asyncio.run(server.run(listener, begun))
            finally:
                begun.set()

        self.threads.start("http", serve)
        begun.wait()
        for name, watch in self._watches().items():
            self.threads.start(name, partial(watch.run, self.stop))
        self.threads.start("picture", self._keep_picture)
        return self

    def close(self) -> None:
        """End everything."""
        self.stop.set()
        self.feed.close()
        self.picture.woken.set()
        for watch in self._watches().values():
            watch.interrupt()
        if self._server is not None:
            self._server.stop(GRACE_S)
        self._routes.close()
        self.threads.join()

    def _watches(self) -> dict[str, ResourceWatch[Any]]:
        return {"nodes": self._nodes, "pods": self._pods, "quotas": self._quotas}

    # -- the picture -------------------------------------------------------------------------------

    def _keep_picture(self) -> None:
        """Read what changed, portion by portion, and tell the pages."""
        swept_s = self._clock.monotonic()
        told: Any = None
        late = frozenset[str]()
        while not self.stop.is_set():
            self.picture.woken.wait(TICK_S)
            self.picture.woken.clear()
            changed: set[str] = set()
            is_waiting_changed, left = False, 0
            ends_s = self._clock.monotonic() + COALESCE_S
            while not self.stop.is_set():
                found = self.picture.refresh()
                changed |= found.nodes
                is_waiting_changed |= found.is_waiting_changed
                left = found.left
                if not left or self._clock.monotonic() > ends_s:
                    break
            if left:
                self.picture.woken.set()
            if self._clock.monotonic() - swept_s > SWEEP_S:
                swept_s = self._clock.monotonic()
                self.picture.sweep()
            was_late, late = late, self._summaries.late()
            changed |= was_late ^ late
            summary = self._summary(left, len(late))
            if changed or is_waiting_changed or summary != told:
                told = summary
                nodes = frozenset(changed)
                change = Change(nodes=nodes, is_waiting_changed=is_waiting_changed)
                self.feed.publish(change, summary)
            self.stop.wait(0.0 if left else COALESCE_S)

    def _summary(self, left: int, late: int) -> dict[str, Any]:
        is_read = self._nodes.is_synced() and self._pods.is_synced()
        summary = dict(self._summaries.make(left, late))
        summary["problems"] += len(self._problems)
        return {**summary, "synced": is_read, "scheduler": self._scheduler}

    # -- answers -----------------------------------------------------------------------------------

    def _answers(self) -> dict[str, Answer]:
        picture, now, scheduler = self.picture, self._clock.now, self._scheduler
        answers: dict[str, Callable[[Query], Any]] = {
            "summary": lambda _: self.feed.summary(),
            "nodes": lambda query: nodes_list(picture, query, now()),
            "node": lambda query: node_page(picture, query.name("name"), now()),
            "used": lambda query: self._used.used_on(query.name("name")),
            "pods": lambda query: pods_list(picture, query),
            "pod": lambda query: pod_page(
                picture, query.name("name"), now(), scheduler, self._read_events
            ),
            "waiting": lambda query: waiting_list(
                picture, query, now(), scheduler, self._known_reasons()
            ),
            "problems": lambda query: problems_list(picture, query, self._problems),
            "namespaces": lambda _: namespaces_list(picture),
            "rooms": lambda _: rooms_list(picture),
            "options": lambda _: options(picture),
            "whatif": lambda query: what_if(picture, query, now(), scheduler),
        }
        return {f"/api/{name}": answer for name, answer in answers.items()}

    def _known_reasons(self) -> dict[PodRequest, str]:
        now_s = self._clock.monotonic()
        if now_s - self._reasons_s > REASONS_S:
            self._reasons, self._reasons_s = {}, now_s
        return self._reasons
