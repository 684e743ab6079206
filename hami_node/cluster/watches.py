"""Objects of the API server, kept current by LIST once and WATCH from then on.

A watch is resumed where it broke; only a history that is gone (410) or a long outage costs a new
list. The server ends every watch after the time that we ask for, so one that outlives it is dead;
bookmarks can't tell, for a quiet cluster sends none for hours. One object that can't be read costs
that object only.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic

from hami_node.cluster.client import PAGE_LIMIT, KubeClient, Query
from hami_node.cluster.connection import Stream, decode_status
from hami_node.cluster.frames import ObjectMeta, WatchFrame, read_frame, read_list, read_meta
from hami_node.cluster.object_cache import Key, ObjectCache, T
from hami_node.errors import Gone, KubeError, WireError
from hami_node.logs import kv
from hami_node.model import Node, Pod
from hami_node.ports import Clock
from hami_node.wire.objects import decode_node, decode_pod
from hami_node.wire.quotas import ResourceQuota, decode_resource_quota

log = logging.getLogger(__name__)

_FRESH_LIST_AFTER: Final = (
    5  # failures in a row: the server may have come back with another history
)
_HASTY_S: Final = 0.5  # a watch that ends sooner, without an event, counts as a failure

_WAKE_S: Final = 0.25  # how soon a wait after a failure notices a relist


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedKind(Generic[T]):
    """What to list and how to read it."""

    resource: str
    path: str
    decode: Callable[[bytes], T]
    key_of: Callable[[T], Key]


PODS: Final[WatchedKind[Pod]] = WatchedKind(
    resource="pods",
    path="/api/v1/pods",
    decode=decode_pod,
    key_of=lambda pod: (pod.namespace, pod.name),
)
NODES: Final[WatchedKind[Node]] = WatchedKind(
    resource="nodes", path="/api/v1/nodes", decode=decode_node, key_of=lambda node: ("", node.name)
)

QUOTAS: Final[WatchedKind[ResourceQuota]] = WatchedKind(
    resource="resourcequotas",
    path="/api/v1/resourcequotas",
    decode=decode_resource_quota,
    key_of=lambda quota: (quota.namespace, quota.name),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTimes:
    """Waits and limits in seconds.

    Attributes:
        server_timeout_s: the server ends a watch after this time, up to a tenth less at random.
        grace_s: a silent watch that lasts so much longer is dead. (TCP finds a dead peer earlier.)
        first_wait_s: after a failure; doubled with each further one, half of it at random.
        longest_wait_s: the most that a wait grows to.
    """

    server_timeout_s: float = 120.0
    grace_s: float = 10.0
    first_wait_s: float = 0.2
    longest_wait_s: float = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchCounts:
    """What happened since the start."""

    lists: int = 0
    watches: int = 0
    failures: int = 0
    undecodable: int = 0


class ResourceWatch(Generic[T]):
    """Keeps the objects of one kind in `cache`. `run` is the thread's body."""

    def __init__(
        self,
        kube: KubeClient,
        kind: WatchedKind[T],
        *,
        clock: Clock,
        field_selector: str = "",
        from_cache: bool = True,
        times: WatchTimes | None = None,
    ) -> None:
        """Prepare; nothing is asked before `run`.

        Args:
            kube: the API.
            kind: `PODS` or `NODES`.
            clock: tells how long ago the server was heard.
            field_selector: `spec.nodeName=...` or `metadata.name=...`; "" takes all.
            from_cache: take the first list from the API server's memory, in one piece; False
                takes it in pages, which keeps our memory small for whole clusters.
            times: waits and limits.
        """
        self.cache: ObjectCache[T] = ObjectCache(kind.resource)
        self._kube, self._kind, self._clock = kube, kind, clock
        self._selector: Query = (("fieldSelector", field_selector),) if field_selector else ()
        self._times = times or WatchTimes()
        self._list_from = "0" if from_cache else ""
        self._version = ""
        self._random = random.Random()  # noqa: S311 - spreads load, keeps no secret
        self._bad: set[Key] = set()
        self._failures_in_a_row = 0
        self._has_warned = False
        self._synced = threading.Event()
        self._relist = threading.Event()
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._last_contact_s: float | None = None
        self._stream: Stream | None = None

    # -- for every thread ----------------------------------------------------------------------

    def is_synced(self) -> bool:
        """True once listed."""
        return self._synced.is_set()

    def wait_synced(self, timeout_s: float) -> bool:
        """Wait for the first list; False when the time is over."""
        return self._synced.wait(timeout_s)

    def last_contact_age_s(self) -> float | None:
        """Seconds since the server was heard; None before the first answer."""
        with self._lock:
            heard_s = self._last_contact_s
        return None if heard_s is None else max(0.0, self._clock.monotonic() - heard_s)

    def version(self) -> int:
        """`cache` shows every change up to this resourceVersion; 0 where that can't be told."""
        version = self._version
        return int(version) if version.isdecimal() else 0

    def counts(self) -> WatchCounts:
        """What happened since the start."""
        with self._lock:
            return WatchCounts(**self._counts)

    def relist(self) -> None:
        """Take a fresh list before anything else counts; not synced until it is there."""
        self._synced.clear()
        self._relist.set()
        self.interrupt()

    def interrupt(self) -> None:
        """End the read that `run` waits in; call it after setting `run`'s stop event."""
        with self._lock:
            stream = self._stream
        if stream is not None:
            stream.interrupt()

    # -- the thread ----------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        """Keep current until stopped; no failure ends it."""
        while not stop.is_set():
            wait_s = 0.0
            try:
                if self._relist.is_set():
                    self._relist.clear()
                    self._version = self._list_from = ""
                    self._failures_in_a_row = 0  # the next wait is short again
                if not self._version:
                    self._list(stop)
                if not stop.is_set() and not self._relist.is_set():
                    self._watch(stop)
            except KubeError as error:
                was_ended = stop.is_set() or self._relist.is_set()
                wait_s = 0.0 if was_ended else self._failed(error)
            except Exception as error:
                # the last line of a thread: whatever it was, it is logged and we list anew
                log.exception("watch_broken", extra=kv(resource=self._kind.resource))
                self._version = ""
                wait_s = self._failed(KubeError(str(error)))
            self._pause(stop, wait_s)

    def _pause(self, stop: threading.Event, wait_s: float) -> None:
        """Wait until stopped; a `relist` ends the wait, for somebody waits for it."""
        while wait_s > 0 and not self._relist.is_set() and not stop.wait(min(wait_s, _WAKE_S)):
            wait_s -= _WAKE_S

    def _failed(self, error: KubeError) -> float:
        """Note a failure and say how long to wait; the log hears the first of a row."""
        self._failures_in_a_row += 1
        self._count("failures")
        if isinstance(error, Gone) or self._failures_in_a_row >= _FRESH_LIST_AFTER:
            self._version = self._list_from = ""
        longest_s = self._times.first_wait_s * 2.0 ** min(self._failures_in_a_row - 1, 20)
        longest_s = min(longest_s, self._times.longest_wait_s)
        wait_s = longest_s * self._random.uniform(0.5, 1.0)
        wait_s = max(wait_s, min(error.retry_after_s or 0.0, self._times.longest_wait_s))
        level = logging.DEBUG
        if not self._has_warned and not isinstance(error, Gone):
            self._has_warned, level = True, logging.WARNING
        fields = kv(resource=self._kind.resource, error=str(error), retry_s=round(wait_s, 2))
        log.log(level, "watch_interrupted", extra=fields)
        return wait_s

    def _heard(self) -> None:
        """The server served us: the row of failures is over."""
        self._touch()
        if self._has_warned:
            fields = kv(resource=self._kind.resource, failures=self._failures_in_a_row)
            log.info("watch_recovered", extra=fields)
        self._failures_in_a_row, self._has_warned = 0, False

    def _touch(self) -> None:
        with self._lock:
            self._last_contact_s = self._clock.monotonic()

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + 1

    # -- list ----------------------------------------------------------------------------------

    def _list(self, stop: threading.Event) -> None:
        found: dict[Key, T] = {}
        query: Query = (*self._selector, ("limit", str(PAGE_LIMIT)))
        if self._list_from:
            query = (*query, ("resourceVersion", self._list_from))
        while not stop.is_set():
            page = read_list(self._kube.list_page(self._kind.path, self._kind.resource, query))
            self._read_items(page.items, found)
            if not page.next_token:
                self._finish_list(found, page.resource_version)
                return
            query = (*self._selector, ("limit", str(PAGE_LIMIT)), ("continue", page.next_token))

    def _finish_list(self, found: dict[Key, T], version: str) -> None:
        self._count("lists")
        self._bad &= found.keys()
        self.cache.replace(found)
        self._advance(version)
        self._heard()
        if not self._relist.is_set():
            self._synced.set()
        self.cache.tell()

    def _read_items(self, items: Iterable[bytes], found: dict[Key, T]) -> None:
        for raw in items:
            try:
                one = self._kind.decode(raw)
            except WireError as error:
                meta = self._note_bad(raw, error)
                known = self.cache.find(*meta.key) if meta else None
                if meta is not None and known is not None:
                    found[meta.key] = known
            else:
                found[self._kind.key_of(one)] = one

    def _note_bad(self, raw: bytes, error: WireError) -> ObjectMeta | None:
        """Count an object that can't be read and log it once; who it is, if that can be read.

        Its last readable state stays: forgetting a pod would give its cards away.
        """
        self._count("undecodable")
        try:
            meta = read_meta(raw)
        except KubeError:
            meta = None
        key = meta.key if meta else ("", "?")
        if key not in self._bad:
            self._bad.add(key)
            fields = kv(resource=self._kind.resource, name="/".join(key), error=str(error))
            log.warning("object_not_understood", extra=fields)
        return meta

    # -- watch ---------------------------------------------------------------------------------

    def _watch(self, stop: threading.Event) -> None:
        """Follow one WATCH request to its end.

        Raises:
            KubeError: it ended badly; Gone when only a new list helps.
        """
        server_s = max(1, round(self._times.server_timeout_s * self._random.uniform(0.9, 1.0)))
        query: Query = (
            *self._selector,
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", self._version),
            ("timeoutSeconds", str(server_s)),
        )
        began_s, frames = self._clock.monotonic(), 0
        kind, silence_s = self._kind, server_s + self._times.grace_s
        with self._kube.watch(kind.path, kind.resource, query, silence_s) as stream:
            self._touch()
            self._count("watches")
            self._hold(stream)
            try:
                # looked at after `_hold`, so that an `interrupt` before it is not lost
                is_over = stop.is_set() or self._relist.is_set()
                lines = iter(()) if is_over else stream.lines()
                for line in lines:
                    if stop.is_set() or self._relist.is_set():
                        return
                    self._take(read_frame(line))
                    frames += 1
            finally:
                self._hold(None)
        was_ended = stop.is_set() or self._relist.is_set()
        if not frames and self._clock.monotonic() - began_s < _HASTY_S and not was_ended:
            raise KubeError(f"the watch of {kind.resource} ended at once")
        self._heard()

    def _hold(self, stream: Stream | None) -> None:
        with self._lock:
            self._stream = stream

    def _take(self, frame: WatchFrame) -> None:
        if frame.kind == "ERROR":
            said = decode_status(frame.raw)
            failure = Gone if said.code == 410 else KubeError
            raise failure(f"watch of {self._kind.resource}: {said.message}", said.code or 500)
        self._heard()
        if frame.kind == "BOOKMARK":
            self._advance(read_meta(frame.raw).resource_version)
            return
        if frame.kind == "DELETED":
            meta = read_meta(frame.raw)
            self._bad.discard(meta.key)
            self.cache.put(meta.key, None)
            self._advance(meta.resource_version)
        else:
            self._take_object(frame.raw)
        self.cache.tell()

    def _take_object(self, raw: bytes) -> None:
        try:
            one = self._kind.decode(raw)
        except WireError as error:
            meta = self._note_bad(raw, error)
            self._advance(meta.resource_version if meta else "")
            return
        self.cache.put(self._kind.key_of(one), one)
        self._advance(one.resource_version)

    def _advance(self, version: str) -> None:
        """Where to go on from; lists after an interruption are asked for from there as well."""
        if version:
            self._version = self._list_from = version
