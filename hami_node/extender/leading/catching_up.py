"""A new leader's view of the cluster: it has to show all that was stored before it took the Lease.

The leader before may have written until then, and our watches may be late. They are not listed
again, which takes many seconds in a large cluster: a watch reports changes in order, so it shows
everything older once it shows something that was stored after the Lease was taken. That something
is an echo, a harmless write to an object of our own; where there is none, any change of a version
that was asked for. What proves nothing within a moment is listed again, and so is what is small.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Protocol

from hami_node.cluster.client import KubeClient
from hami_node.cluster.watching.views import WatchedCluster
from hami_node.errors import KubeError
from hami_node.logs import kv
from hami_node.ports import Clock
from hami_node.wire import names

log: Final = logging.getLogger(__name__)


QUIET_S: Final = 1.5
"""A watch that has shown nothing new for so long is listed again."""
PATIENCE_S: Final = 6.0
"""So is one that is busy and does not get there."""
SMALL: Final = 1000
"""As many objects are listed sooner than waited for."""
LOOK_S: Final = 0.01
IDLE_S: Final = 0.5

Seen = Callable[[], bool]
Touch = Callable[[str], Seen | None]
"""Writes a text to an object, and returns whether its watch shows it; None where it can't."""


class Followed(Protocol):
    """What is needed of a watch; see `ResourceWatch`."""

    def is_synced(self) -> bool:
        """True once listed, and not waiting to be listed again."""

    def size(self) -> int:
        """How many objects it has."""

    def lists_begun(self) -> int:
        """How many lists were begun."""

    def last_list(self) -> int:
        """The number of the list that its objects come from."""

    def version(self) -> int:
        """It has every change up to this version; 0 when that is unknown."""

    def newest_version(self) -> int:
        """Ask for the version that is stored now. Raises KubeError."""

    def relist(self) -> None:
        """List again before anything else."""


@dataclass(frozen=True, slots=True)
class Source:
    """A watch, and what makes something pass on it."""

    watch: Followed
    touch: Touch | None = None


class Following:
    """One watch after one moment: does it show everything that was stored before?"""

    def __init__(self, source: Source, clock: Clock) -> None:
        """The moment is now; nothing is asked yet."""
        self._source, self._clock = source, clock
        self._lists = source.watch.lists_begun()
        self._is_passed: Seen = lambda: False
        self._since_s = self._moved_s = clock.monotonic()
        self._version = 0

    def begin(self, mark: str) -> None:
        """Make something pass, or list again; makes one request or two."""
        source, watch = self._source, self._source.watch
        passed = source.touch(mark) if source.touch is not None else None
        if passed is None and watch.is_synced():
            passed = None if watch.size() <= SMALL else self._version_passed()
            if passed is None:
                watch.relist()
        self._is_passed = passed or self._is_passed
        self._since_s = self._moved_s = self._clock.monotonic()

    def is_current(self) -> bool:
        """True when it does. A list that was begun after the moment proves it as well."""
        watch = self._source.watch
        if not watch.is_synced():
            return False
        return watch.last_list() > self._lists or self._is_passed()

    def hurry(self) -> None:
        """List again what has waited for too long; a list that runs is waited for."""
        watch, now_s = self._source.watch, self._clock.monotonic()
        if not watch.is_synced() or watch.lists_begun() > watch.last_list():
            self._since_s = self._moved_s = now_s
            return
        if (version := watch.version()) != self._version:
            self._version, self._moved_s = version, now_s
        if now_s - self._moved_s >= QUIET_S or now_s - self._since_s >= PATIENCE_S:
            watch.relist()

    def _version_passed(self) -> Seen | None:
        watch = self._source.watch
        before = watch.version()
        try:
            wanted = watch.newest_version()
        except KubeError:
            return None
        # a version that was seen and is not stored yet belongs to another history
        return (lambda: watch.version() >= wanted) if 0 < before <= wanted else None


class CatchingUp:
    """Begins a term once all sources are current. `run` is a thread's body."""

    def __init__(
        self, sources: Sequence[Source], clock: Clock, on_current: Callable[[int], None]
    ) -> None:
        """`on_current` is called with the term; it may come too late for it."""
        self._sources, self._clock, self._on_current = sources, clock, on_current
        self._wanted = threading.Event()
        self._lock = threading.Lock()
        self._begun: tuple[int, tuple[Following, ...]] | None = None

    def begin(self, term: int) -> None:
        """The Lease was taken just now; returns at once."""
        followings = tuple(Following(source, self._clock) for source in self._sources)
        with self._lock:
            self._begun = (term, followings)
        self._wanted.set()

    def end(self) -> None:
        """The term is over."""
        with self._lock:
            self._begun = None

    def run(self, stop: threading.Event) -> None:
        """Catch up whenever a term begins."""
        while not stop.is_set():
            if self._wanted.wait(IDLE_S):
                self._wanted.clear()
                try:
                    self.catch_up(stop)
                except Exception:  # a thread must not die: whatever failed is tried again
                    log.exception("leader_not_caught_up")
                    stop.wait(IDLE_S)
                    self._wanted.set()

    def catch_up(self, stop: threading.Event) -> None:
        """Wait until everything is current, the term is over or another one has begun."""
        begun = self._begun
        if begun is None:
            return
        (term, followings), since_s = begun, self._clock.monotonic()
        mark = f"{datetime.fromtimestamp(self._clock.now(), UTC):%Y-%m-%dT%H:%M:%SZ}"
        mark += f" {secrets.token_hex(4)}"  # never the same twice: a write of no change is no event
        for following in reversed(followings):
            following.begin(mark)
        waiting = list(followings)
        while self._begun is begun and not stop.is_set():
            waiting = [item for item in waiting if not item.is_current()]
            if not waiting:
                self._on_current(term)
                took_s = round(self._clock.monotonic() - since_s, 3)
                log.info("leader_caught_up", extra=kv(term=term, seconds=took_s))
                return
            for item in waiting:
                item.hurry()
            stop.wait(LOOK_S)


class Echoes:
    """Writes that are shown to the writer; outside of a cluster there is nothing to write to."""

    def __init__(self, kube: KubeClient, view: WatchedCluster, namespace: str, name: str) -> None:
        """Of the pod with this name, if there is one; the calls have to be bounded in time."""
        self._kube, self._view = kube, view
        self._namespace, self._name = namespace, name

    def on_pod(self, mark: str) -> Seen | None:
        """Mark our own pod."""
        pod = self._view.pod(self._namespace, self._name)
        if pod is None:
            return None
        any_version = replace(pod, resource_version="")
        try:
            self._kube.patch_pod_exactly(any_version, {names.NODE_LEADING_SINCE: mark})
        except KubeError as error:
            _note_unmarked(f"pods/{pod.key}", error)
            return None

        def is_seen() -> bool:
            now = self._view.pod(self._namespace, self._name)
            return now is not None and now.annotations.get(names.NODE_LEADING_SINCE) == mark

        return is_seen

    def on_node(self, mark: str) -> Seen | None:
        """Mark the node on which our pod runs."""
        pod = self._view.pod(self._namespace, self._name)
        if pod is None or not pod.node_name:
            return None
        cache, name = self._view.node_watch.cache, pod.node_name
        try:
            self._kube.merge_patch_node(name, {names.NODE_LEADING_SINCE: mark})
        except KubeError as error:
            _note_unmarked(f"nodes/{name}", error)
            return None

        def is_seen() -> bool:
            now = cache.find("", name)
            return now is not None and now.annotations.get(names.NODE_LEADING_SINCE) == mark

        return is_seen


def _note_unmarked(what: str, error: KubeError) -> None:
    hint = "all of its kind are listed again instead; are the manifests of this version?"
    log.warning("lead_not_marked", extra=kv(object=what, error=error, hint=hint))
