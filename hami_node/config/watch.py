"""Notice when the content of a configuration file changes, however it was replaced."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from hami_node.ports import Clock

LOOK_S: Final = 1.0
"""How often the files are read: they are small, and what is mounted may send no notification."""
MAX_BYTES: Final = 4 * 1024 * 1024


class ConfigWatch:
    """Compares content, look by look; `run` is the body of a thread that does nothing else.

    Every reload happens in a look, one after the other, and content that changes after it was
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

        `on_change` runs in the look that finds a change, and before `on_request` for each
        `request`.
        """
        self._paths, self._clock = tuple(paths), clock
        self._last = self._digests()
        self._in_force: tuple[str, ...] | None = self._last
        self._on_change, self._on_request = on_change, on_request
        self._wake, self._requested = threading.Event(), threading.Event()

    def run(self, stop: threading.Event) -> None:
        """Watch until stopped."""
        while not stop.is_set():
            self.look()
            self._clock.wait(self._wake, LOOK_S)
            self._wake.clear()

    def look(self) -> None:
        """Compare once. Never twice at the same time."""
        is_requested = self._requested.is_set()
        self._requested.clear()
        now = self._digests()  # before the files are read: what changes in between is seen again
        is_settled = now == self._last  # editors and ConfigMap volumes replace in several steps
        self._last = now
        if is_requested or (is_settled and now != self._in_force):
            self._in_force = (
                None  # until it is applied: one that failed is tried again, whatever comes
            )
            try:
                self._on_change()
            finally:
                if is_requested:
                    self._on_request()
            self._in_force = now

    def request(self) -> None:
        """Read the files again now, whether they changed or not."""
        self._requested.set()
        self._wake.set()

    def wake(self) -> None:
        """Check now."""
        self._wake.set()

    def _digests(self) -> tuple[str, ...]:
        return tuple(digest_of(path) for path in self._paths)


def digest_of(path: Path) -> str:
    """Tells one content of a file from another, and why it can't be read."""
    try:
        with path.open("rb") as file:
            return hashlib.sha256(file.read(MAX_BYTES)).hexdigest()
    except OSError as e:
        return f"unreadable: {e.errno}"
