"""The objects that a watch keeps: snapshots for readers, changes for listeners."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final, Generic, Protocol, TypeVar

from hami_node.logs import kv
from hami_node.model import Node, Pod
from hami_node.ports import Listener
from hami_node.wire.objects import decode_node, decode_pod
from hami_node.wire.quotas import ResourceQuota, decode_resource_quota

log = logging.getLogger(__name__)


Key = tuple[str, str]
"""(namespace, name); the namespace of a node is ""."""


class Versioned(Protocol):
    """What every watched object has."""

    @property
    def uid(self) -> str:
        """Distinguishes an object from a later object of the same name."""

    @property
    def resource_version(self) -> str:
        """Changes with every write."""


T = TypeVar("T", bound=Versioned)

OnChange = Callable[[T | None, T | None], None]
"""Called with an object (before, after), in order, by the watch's thread; None means absent."""


class ObjectCache(Generic[T]):
    """Objects by key. One thread writes, any thread reads; listeners are called without a lock."""

    def __init__(self, resource: str) -> None:
        """Start empty; `resource` is for the log."""
        self._resource = resource
        self._lock = threading.Lock()
        self._objects: dict[str, dict[str, T]] = {}  # by namespace, name: no key for each object
        self._sorted: tuple[T, ...] | None = ()
        self._listeners: list[Listener] = []
        self._on_change: list[OnChange[T]] = []

    def objects(self) -> tuple[T, ...]:
        """All objects, sorted by (namespace, name)."""
        with self._lock:
            if self._sorted is None:
                self._sorted = tuple(
                    named[name]
                    for _, named in sorted(self._objects.items())
                    for name in sorted(named)
                )
            return self._sorted

    def unsorted(self) -> list[T]:
        """All objects in no order: sorting a whole cluster's holds every thread up."""
        with self._lock:
            copies = [list(named.values()) for named in self._objects.values()]
        return list(chain.from_iterable(copies))

    def __len__(self) -> int:
        """How many objects there are."""
        with self._lock:
            return sum(map(len, self._objects.values()))

    def find(self, namespace: str, name: str) -> T | None:
        """The object with this name, or None."""
        with self._lock:
            return self._known((namespace, name))

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` after every list and every change. Subscribe before the watch runs."""
        self._listeners.append(listener)

    def follow(self, on_change: OnChange[T]) -> None:
        """Call `on_change` for every change, before the listeners. Use before the watch runs."""
        self._on_change.append(on_change)

    # -- for the watch's thread ----------------------------------------------------------------

    def replace(self, found: Mapping[Key, T]) -> None:
        """Take a whole list; its differences are reported, deleted objects first."""
        gone = [
            (namespace, name)
            for namespace, named in self._objects.items()
            for name in named
            if (namespace, name) not in found
        ]
        for key in gone:
            self.put(key, None)
        for key, item in found.items():
            known = self._known(key)
            if known is None or known.resource_version != item.resource_version:
                self.put(key, item)

    def put(self, key: Key, after: T | None) -> None:
        """Store or (None) remove an object; a new object under an old name is two changes."""
        with self._lock:
            before = self._exchange(key, after)
            self._sorted = None
        if before is not None and after is not None and before.uid != after.uid:
            self._report_change(before, None)
            before = None
        if before is not None or after is not None:
            self._report_change(before, after)

    def notify(self) -> None:
        """Call the listeners."""
        for listener in self._listeners:
            self._guarded(listener)

    def _known(self, key: Key) -> T | None:
        namespace, name = key
        named = self._objects.get(namespace)
        return None if named is None else named.get(name)

    def _exchange(self, key: Key, after: T | None) -> T | None:
        """Store or remove an object; what was there before."""
        namespace, name = key
        named = self._objects.setdefault(namespace, {})
        before = named.pop(name, None)
        if after is not None:
            named[name] = after
        elif not named:
            del self._objects[namespace]
        return before

    def _report_change(self, before: T | None, after: T | None) -> None:
        for on_change in self._on_change:
            self._guarded(on_change, before, after)

    def _guarded(self, call: Callable[..., None], *args: T | None) -> None:
        """An error in a listener must not end the watch."""
        try:
            call(*args)
        except Exception:
            log.exception("watch_listener_failed", extra=kv(resource=self._resource))


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
