"""The objects that a watch keeps: snapshots for readers, changes for listeners."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from hami_node.logs import kv
from hami_node.ports import Listener

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
        self._objects: dict[Key, T] = {}
        self._sorted: tuple[T, ...] | None = ()
        self._listeners: list[Listener] = []
        self._on_change: list[OnChange[T]] = []

    def objects(self) -> tuple[T, ...]:
        """All objects, sorted by (namespace, name)."""
        with self._lock:
            if self._sorted is None:
                self._sorted = tuple(self._objects[key] for key in sorted(self._objects))
            return self._sorted

    def __len__(self) -> int:
        """How many objects there are."""
        return len(self._objects)

    def find(self, namespace: str, name: str) -> T | None:
        """The object with this name, or None."""
        with self._lock:
            return self._objects.get((namespace, name))

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` after every list and every change. Subscribe before the watch runs."""
        self._listeners.append(listener)

    def follow(self, on_change: OnChange[T]) -> None:
        """Call `on_change` for every change, before the listeners. Use before the watch runs."""
        self._on_change.append(on_change)

    # -- for the watch's thread ----------------------------------------------------------------

    def replace(self, found: Mapping[Key, T]) -> None:
        """Take a whole list; its differences are reported, deleted objects first."""
        for key in [key for key in self._objects if key not in found]:
            self.put(key, None)
        for key, item in found.items():
            known = self._objects.get(key)
            if known is None or known.resource_version != item.resource_version:
                self.put(key, item)

    def put(self, key: Key, after: T | None) -> None:
        """Store or (None) remove an object; a new object under an old name is two changes."""
        with self._lock:
            before = self._objects.pop(key, None)
            if after is not None:
                self._objects[key] = after
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

    def _report_change(self, before: T | None, after: T | None) -> None:
        for on_change in self._on_change:
            self._guarded(on_change, before, after)

    def _guarded(self, call: Callable[..., None], *args: T | None) -> None:
        """An error in a listener must not end the watch."""
        try:
            call(*args)
        except Exception:
            log.exception("watch_listener_failed", extra=kv(resource=self._resource))
