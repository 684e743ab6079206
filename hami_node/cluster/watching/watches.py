"""Objects of the API server, kept current by one LIST and then WATCH.

A watch is resumed where it broke, however long that took; only a history that is gone (410) needs
a new list. A daemon's list names the last version that it knows, and no limit: the API server
answers that from its cache, while a limit or no version makes it read all pods of the cluster from
etcd. The server ends every watch after the time that we request, so a watch that lasts longer is
dead; bookmarks don't help, because a quiet cluster sends none for hours. An object that can't be
decoded affects that object only.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic

from hami_node.cluster.calls import Query
from hami_node.cluster.client import KubeClient
from hami_node.cluster.transport.connection import PAGE_LIMIT, Stream, decode_status
from hami_node.cluster.watching.frames import (
    ObjectMeta,
    WatchFrame,
    read_frame,
    read_list,
    read_meta,
)
from hami_node.cluster.watching.object_cache import Key, ObjectCache, T, WatchedKind
from hami_node.errors import AnswerTooLarge, Gone, KubeError, WireError
from hami_node.logs import kv
from hami_node.model import version_number
from hami_node.ports import Clock

log = logging.getLogger(__name__)

PAGE_BYTES: Final = 32 << 20
"""500 usual pods have 5 MiB, 500 nodes 25; users may make pods of a MiB and more."""
_FEWER: Final = 8

SendPage = Callable[[Query, int | None], bytes]
"""Asks for a page with that query, of so many bytes at most."""


class Pages:
    """Of one list, one after another."""

    def __init__(self, send: SendPage, selector: Query) -> None:
        """Send through `send` what `selector` selects."""
        self._send, self._selector = send, selector
        self._limit = PAGE_LIMIT

    def fetch(self, token: str = "") -> bytes:
        """The page with this continue token; "" for the first.

        Raises:
            KubeError: it could not be fetched.
        """
        where: Query = (("continue", token),) if token else ()
        while True:
            query: Query = (*self._selector, ("limit", str(self._limit)), *where)
            try:
                body = self._send(query, PAGE_BYTES if self._limit > 1 else None)
            except AnswerTooLarge:
                self._limit = max(self._limit // _FEWER, 1)
                continue
            if 4 * len(body) < PAGE_BYTES:
                self._limit = min(self._limit * 2, PAGE_LIMIT)
            return body


class PageAhead:
    """One request in a thread of its own; who no longer wants the page leaves it to end by itself.

    The request has to be bounded in time.
    """

    def __init__(self, fetch: Callable[[], bytes]) -> None:
        """Begin."""
        self._fetch = fetch
        self._found: bytes | KubeError = KubeError("the page was not fetched")
        self._thread = threading.Thread(target=self._run, name="list-page", daemon=True)
        self._thread.start()

    def body(self) -> bytes:
        """Wait for the page.

        Raises:
            KubeError: it could not be fetched.
        """
        self._thread.join()
        if isinstance(self._found, KubeError):
            raise self._found
        return self._found

    def _run(self) -> None:
        try:
            self._found = self._fetch()
        except KubeError as error:
            self._found = error


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why nothing new arrives, and since when, seconds on the monotonic clock."""

    error: KubeError
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTimes:
    """Waits and limits in seconds.

    Attributes:
        server_timeout_s: the server ends a watch after this time, up to a tenth less at random.
        grace_s: a silent watch that lasts this much longer is dead. (TCP detects a dead peer
            earlier.)
        first_wait_s: the wait after a failure is random: from a tenth of this to three times the
            wait before, which is this at first. So the daemons of a large cluster come back spread
            over seconds, the first time too.
        longest_wait_s: the upper limit of a wait.
    """

    server_timeout_s: float = 120.0
    grace_s: float = 10.0
    first_wait_s: float = 1.0
    longest_wait_s: float = 15.0


OF_FEW: Final = WatchTimes(first_wait_s=0.2, longest_wait_s=2.0)
"""For the few watches of an extender: their load is small, and pods wait for them."""


class WatchHealth:
    """Written by the watch's thread, read by any.

    Attributes:
        failures_in_a_row: failures since the server last served us.
    """

    def __init__(self, resource: str, clock: Clock, times: WatchTimes) -> None:
        """Start without a response; `resource` is for the log."""
        self.failures_in_a_row, self._last_wait_s = 0, times.first_wait_s
        self._resource, self._clock, self._times = resource, clock, times
        self._random = random.Random()  # noqa: S311 - spreads load, keeps no secret
        self._has_warned = False
        self._lock = threading.Lock()
        self._last_contact_s: float | None = None
        self._trouble: Trouble | None = None

    def trouble(self) -> Trouble | None:
        """The last failure, since the first of its series; None while the server serves us."""
        with self._lock:
            return self._trouble

    def last_contact_age_s(self) -> float | None:
        """Seconds since the server last responded; None before the first response."""
        with self._lock:
            contact_s = self._last_contact_s
        return None if contact_s is None else max(0.0, self._clock.monotonic() - contact_s)

    def touch(self) -> None:
        """Note that the server responded."""
        with self._lock:
            self._last_contact_s = self._clock.monotonic()
            self._trouble = None

    def succeeded(self) -> None:
        """Note that the server served us, which ends a series of failures."""
        self.touch()
        if self._has_warned:
            fields = kv(resource=self._resource, failures=self.failures_in_a_row)
            log.info("watch_recovered", extra=fields)
        self._has_warned = False
        self.reset()

    def reset(self) -> None:
        """Make the next wait after a failure short again."""
        self.failures_in_a_row, self._last_wait_s = 0, self._times.first_wait_s

    def failed(self, error: KubeError) -> float:
        """Note a failure and return how long to wait, seconds; only the first is a warning."""
        self.failures_in_a_row += 1
        if not isinstance(error, Gone):
            with self._lock:
                since_s = self._trouble.since_s if self._trouble else self._clock.monotonic()
                self._trouble = Trouble(error=error, since_s=since_s)
        times = self._times
        longest_s = min(3 * self._last_wait_s, times.longest_wait_s)
        self._last_wait_s = self._random.uniform(min(times.first_wait_s / 10, longest_s), longest_s)
        wait_s = self._last_wait_s + min(error.retry_after_s or 0.0, times.longest_wait_s)
        level = logging.DEBUG
        if not self._has_warned and not isinstance(error, Gone):
            self._has_warned, level = True, logging.WARNING
        fields = kv(resource=self._resource, error=str(error), retry_s=round(wait_s, 2))
        log.log(level, "watch_interrupted", extra=fields)
        return wait_s


_ANY_VERSION_AFTER: Final = (
    5  # lists in a row that did not get our version: restored from a backup, it is in the future
)
_LIST_AFTER_QUIET: Final = 5
"""Watches in a row without a word: for a version of the future a server stays silent."""
_HASTY_S: Final = 0.5  # a watch that ends sooner, without an event, counts as a failure
_STEADY_S: Final = 10.0  # a watch that lasted so long ends a series of failures
_TOO_LARGE: Final = "Too large resource version"  # the API server's words, with status 504
_FROM_CACHE: Final = "0"  # whatever version the server has in its cache

_WAKE_S: Final = 0.25  # a relist ends a wait after a failure within this time


class ResourceWatch(Generic[T]):
    """Keeps the objects of a kind in `cache`. `run` is the thread's body."""

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
        """Prepare; nothing is sent before `run`.

        Args:
            kube: the API.
            kind: `PODS` or `NODES`.
            clock: measures how long ago the server last responded.
            field_selector: `spec.nodeName=...` or `metadata.name=...`; "" takes all.
            from_cache: take lists from the API server's cache, in one piece; False takes them
                from etcd in pages, which keeps our memory small for whole clusters and is meant
                for few clients.
            times: waits and limits.
        """
        self.cache: ObjectCache[T] = ObjectCache(kind.resource)
        self._sender, self._kind, self._clock = kube.sender, kind, clock
        self._selector: Query = (("fieldSelector", field_selector),) if field_selector else ()
        self._times = times or WatchTimes()
        self._health = WatchHealth(kind.resource, clock, self._times)
        self._is_paged = not from_cache
        self._list_from = "" if self._is_paged else _FROM_CACHE
        self._version = ""
        self._failed_lists = self._quiet_watches = 0
        self._lists_begun = self._lists_taken = 0
        self._random = random.Random()  # noqa: S311 - spreads load, keeps no secret
        self._bad: set[Key] = set()
        self._synced = threading.Event()
        self._relist = threading.Event()
        self._lock = threading.Lock()
        self._stream: Stream | None = None

    # -- for every thread ----------------------------------------------------------------------

    def is_synced(self) -> bool:
        """True once listed."""
        return self._synced.is_set()

    def last_contact_age_s(self) -> float | None:
        """Seconds since the server last responded; None before the first response."""
        return self._health.last_contact_age_s()

    def trouble(self) -> Trouble | None:
        """Why nothing new arrives; None while the server serves us."""
        return self._health.trouble()

    def version(self) -> int:
        """`cache` has every change up to this resourceVersion; 0 when that is unknown."""
        return version_number(self._version)

    def size(self) -> int:
        """How many objects are in the cache."""
        return len(self.cache)

    def lists_begun(self) -> int:
        """How many lists were begun; each asks for what is there at that moment."""
        return self._lists_begun

    def last_list(self) -> int:
        """The number, from 1, of the list that `cache` was made from; 0 before the first."""
        return self._lists_taken

    def newest_version(self) -> int:
        """Ask for the version of these objects that is stored now; 0 when that is unknown.

        Raises:
            KubeError: the API server does not say.
        """
        query: Query = (*self._selector, ("limit", "1"))
        page = self._sender.list_page(self._kind.path, self._kind.resource, query)
        return version_number(read_list(page).resource_version)

    def relist(self) -> None:
        """List again before anything else; not synced until that is done."""
        with self._lock:
            self._relist.set()
            self._synced.clear()
        self.interrupt()

    def interrupt(self) -> None:
        """End the read that `run` waits in; call it after setting `run`'s stop event."""
        with self._lock:
            stream = self._stream
        if stream is not None:
            stream.interrupt()

    # -- the thread ----------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        """Keep the objects current until stopped; no failure ends it."""
        while not stop.is_set():
            wait_s = 0.0
            try:
                if self._relist.is_set():
                    self._relist.clear()
                    self._version = self._list_from = ""
                    self._health.reset()
                if not self._version:
                    self._list(stop)
                if not stop.is_set() and not self._relist.is_set():
                    self._watch(stop)
            except KubeError as error:
                was_ended = stop.is_set() or self._relist.is_set()
                wait_s = 0.0 if was_ended else self._failed(error)
            except Exception as error:
                # a thread must not die: whatever failed is logged, and we list again
                log.exception("watch_broken", extra=kv(resource=self._kind.resource))
                self._version = ""
                wait_s = self._failed(KubeError(str(error)))
            self._pause(stop, wait_s)

    def _pause(self, stop: threading.Event, wait_s: float) -> None:
        """Wait until stopped; a `relist` ends the wait, because a caller waits for it."""
        while wait_s > 0 and not self._relist.is_set():
            if self._clock.wait(stop, min(wait_s, _WAKE_S)):
                return
            wait_s -= _WAKE_S

    def _failed(self, error: KubeError) -> float:
        """Note a failure, choose the next list if one is needed; how long to wait, seconds."""
        if self._version:
            if isinstance(error, Gone) or _TOO_LARGE in str(error):
                self._version = ""  # the list asks for it: nothing older than what we have seen
        elif isinstance(error, Gone):
            self._list_from = ""
        elif self._list_from:
            self._failed_lists += 1
            if self._failed_lists >= _ANY_VERSION_AFTER:
                self._list_from = _FROM_CACHE
        return self._health.failed(error)

    # -- list ----------------------------------------------------------------------------------

    def _list(self, stop: threading.Event) -> None:
        found: dict[Key, T] = {}
        self._lists_begun += 1
        pages = Pages(self._send_page, self._selector)
        body = pages.fetch() if self._is_paged else self._whole_list()
        while not stop.is_set():
            page = read_list(body)
            if not page.next_token:
                self._read_items(page.items, found)
                self._finish_list(found, page.resource_version)
                return
            ahead = PageAhead(partial(pages.fetch, page.next_token))
            self._read_items(page.items, found)
            body = ahead.body()

    def _whole_list(self) -> bytes:
        query = self._selector
        if self._list_from:
            query = (*query, ("resourceVersion", self._list_from))
        return self._send_page(query)

    def _send_page(self, query: Query, most_bytes: int | None = None) -> bytes:
        return self._sender.list_page(self._kind.path, self._kind.resource, query, most_bytes)

    def _finish_list(self, found: dict[Key, T], version: str) -> None:
        self._bad &= found.keys()
        self.cache.replace(found)
        self._advance(version)
        self._lists_taken = self._lists_begun
        self._failed_lists = self._quiet_watches = 0
        self._health.touch()
        with self._lock:  # a `relist` meanwhile must not be taken for done
            if not self._relist.is_set():
                self._synced.set()
        self.cache.notify()

    def _read_items(self, items: Iterable[bytes], found: dict[Key, T]) -> None:
        for raw in items:
            try:
                item = self._kind.decode(raw)
            except WireError as error:
                meta = self._note_bad(raw, error)
                known = self.cache.find(*meta.key) if meta else None
                if meta is not None and known is not None:
                    found[meta.key] = known
            else:
                found[self._kind.key_of(item)] = item

    def _note_bad(self, raw: bytes, error: WireError) -> ObjectMeta | None:
        """Log an object that can't be decoded, once; returns its metadata if that can be read.

        Its last readable state stays: without it a pod's cards would count as free.
        """
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
        """Follow a WATCH request to its end.

        Raises:
            KubeError: it failed; Gone when only a new list helps.
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
        with self._sender.watch(kind.path, kind.resource, query, silence_s) as stream:
            self._health.touch()
            self._hold(stream)
            try:
                # checked after `_hold`, so that an `interrupt` before it is not lost
                is_over = stop.is_set() or self._relist.is_set()
                lines = iter(()) if is_over else stream.lines()
                for line in lines:
                    if stop.is_set() or self._relist.is_set():
                        return
                    self._take(read_frame(line))
                    frames += 1
            except KubeError:
                if self._clock.monotonic() - began_s >= _STEADY_S:
                    self._health.reset()
                raise
            finally:
                self._hold(None)
        was_ended = stop.is_set() or self._relist.is_set()
        if not frames and self._clock.monotonic() - began_s < _HASTY_S and not was_ended:
            raise KubeError(f"the watch of {kind.resource} ended at once")
        self._health.succeeded()
        self._note_end(is_quiet=not frames)

    def _note_end(self, *, is_quiet: bool) -> None:
        """After a watch that ended in order: a long silence may hide another history."""
        self._quiet_watches = self._quiet_watches + 1 if is_quiet else 0
        if self._quiet_watches >= _LIST_AFTER_QUIET:
            self._version = ""

    def _hold(self, stream: Stream | None) -> None:
        with self._lock:
            self._stream = stream

    def _take(self, frame: WatchFrame) -> None:
        if frame.kind == "ERROR":
            status = decode_status(frame.raw)
            failure = Gone if status.code == 410 else KubeError
            raise failure(f"watch of {self._kind.resource}: {status.message}", status.code or 500)
        self._health.succeeded()
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
        self.cache.notify()

    def _take_object(self, raw: bytes) -> None:
        try:
            item = self._kind.decode(raw)
        except WireError as error:
            meta = self._note_bad(raw, error)
            self._advance(meta.resource_version if meta else "")
            return
        self.cache.put(self._kind.key_of(item), item)
        self._advance(item.resource_version)

    def _advance(self, version: str) -> None:
        """Note where to resume; lists after an interruption start from there as well."""
        if version:
            self._version = self._list_from = version
