"""Notice when the content of a configuration file changes, however it was replaced."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

from hami_node.logs import kv
from hami_node.ports import Clock

log = logging.getLogger(__name__)

SETTLE_S: Final = 0.2
"""Editors and ConfigMap volumes replace files in several steps."""
CHECK_INTERVAL_S: Final = 10.0
"""Files are checked even without a notification: a folder that is mounted again sends none."""
MAX_BYTES: Final = 4 * 1024 * 1024


class ConfigWatch:
    """Compares content. `run` is the thread's body.

    Every reload happens in that thread, one after the other, and content that changes after it was
    compared is noticed by the next comparison: the last state of the files is the one in force.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        on_change: Callable[[], None],
        on_request: Callable[[], None] = lambda: None,
        *,
        clock: Clock,
    ) -> None:
        """Compare with the files as they are now, whether they exist yet or not.

        `on_change` runs in the watching thread after each change, and before `on_request` for each
        `request`.
        """
        self._paths, self._clock = tuple(paths), clock
        self._seen = self._digests()
        self._on_change, self._on_request = on_change, on_request
        self._wake, self._requested = threading.Event(), threading.Event()

    def run(self, stop: threading.Event) -> None:
        """Watch until stopped."""
        observer = self._watch_folders()
        self._wake.set()  # a file may have changed since it was read for the first time
        while not stop.is_set():
            if self._clock.wait(self._wake, CHECK_INTERVAL_S):
                self._wake.clear()
                if not self._requested.is_set():
                    self._clock.wait(stop, SETTLE_S)
            if not stop.is_set():
                self._compare()
        if observer is not None:
            observer.stop()
            observer.join(1.0)

    def _compare(self) -> None:
        is_requested = self._requested.is_set()
        self._requested.clear()
        now = self._digests()  # before the files are read: what changes in between is seen again
        if now != self._seen or is_requested:
            self._seen = now
            self._on_change()
        if is_requested:
            self._on_request()

    def _watch_folders(self) -> BaseObserver | None:
        """Subscribe to changes; without inotify the files are only polled."""
        folders = sorted({path.parent for path in self._paths if path.parent.is_dir()})
        if not folders:
            return None
        observer = Observer()
        try:
            for folder in folders:
                observer.schedule(_Waker(self._wake), str(folder))
            observer.start()
        except OSError as e:
            hint = "raise fs.inotify.max_user_instances; files are polled until then"
            log.warning("config_not_watched", extra=kv(error=str(e), hint=hint))
            return None
        return observer

    def request(self) -> None:
        """Read the files again now, whether they changed or not."""
        self._requested.set()
        self._wake.set()

    def wake(self) -> None:
        """Check now."""
        self._wake.set()

    def _digests(self) -> tuple[str, ...]:
        return tuple(digest_of(path) for path in self._paths)


class _Waker(FileSystemEventHandler):
    """Sets an event on any change."""

    def __init__(self, wake: threading.Event) -> None:
        super().__init__()
        self._event = wake

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Wake the watch, but not for reads, which are its own."""
        if event.event_type not in ("opened", "closed_no_write"):
            self._event.set()


def digest_of(path: Path) -> str:
    """Tells one content of a file from another, and why it can't be read."""
    try:
        with path.open("rb") as file:
            return hashlib.sha256(file.read(MAX_BYTES)).hexdigest()
    except OSError as e:
        return f"unreadable: {e.errno}"
