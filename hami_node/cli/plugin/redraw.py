"""`--watch`: a picture that is drawn again when the cluster has changed.

The objects come from watches, so that the API server is asked once, however long somebody looks.
"""

from __future__ import annotations

import io
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol, TextIO

from hami_node.cli.show.screen import Screen, screen_of
from hami_node.ports import Clock

SOON_S: Final = 1.0
"""A cluster that changes all the time is drawn so often."""
AGES_S: Final = 10.0
"""A terminal is drawn again after so long without a change: ages grow."""
_HOME, _TO_LINE_END, _TO_END, _CLEAR = "\x1b[H", "\x1b[K", "\x1b[J", "\x1b[2J"
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"


class Canvas:
    """Where pictures are drawn: over each other on a terminal, one after the other in a pipe."""

    def __init__(self, stream: TextIO, env: Mapping[str, str], *, is_wide: bool) -> None:
        """Draw nothing yet."""
        self._stream, self._env, self._is_wide = stream, env, is_wide
        self.is_live = stream.isatty() and env.get("TERM", "dumb") != "dumb"
        self._last = ""

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Hide the cursor meanwhile."""
        if not self.is_live:
            yield
            return
        self._write(_HIDE + _CLEAR)
        try:
            yield
        finally:
            self._write(_SHOW)

    def screen(self) -> tuple[Screen, io.StringIO]:
        """A screen like the stream, and what it writes to."""
        seen = screen_of(self._stream, env=self._env, is_wide=self._is_wide)
        kept = io.StringIO()
        return seen.to(kept), kept

    def draw(self, picture: str) -> None:
        """Show a picture; in a pipe only one that differs from the last."""
        if not self.is_live:
            if picture != self._last:
                self._write(picture)
            self._last = picture
            return
        height = shutil.get_terminal_size((80, 24)).lines
        lines = picture.rstrip("\n").split("\n")
        if len(lines) > height - 1:
            more = len(lines) - height + 2
            lines = [*lines[: height - 2], f"({more} more lines: select some with -l, or a name)"]
        self._write(_HOME + "".join(f"{line}{_TO_LINE_END}\n" for line in lines) + _TO_END)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


class _Parts(Protocol):
    """What is used of the command's parts."""

    @property
    def clock(self) -> Callable[[], Clock]:
        """Measures how long a picture takes."""

    @property
    def env(self) -> Callable[[], Mapping[str, str]]:
        """The environment."""


def follow(
    picture: Callable[[Screen], None], changed: threading.Event, parts: _Parts, *, is_wide: bool
) -> None:
    """Draw until interrupted: after each change, and now and then.

    Args:
        picture: writes the whole picture.
        changed: set after each change of what the picture shows.
        parts: clock and environment.
        is_wide: nothing is left out.
    """
    clock, canvas = parts.clock(), Canvas(sys.stdout, parts.env(), is_wide=is_wide)
    pause = threading.Event()
    with canvas.opened():
        while True:
            changed.clear()
            began_s = clock.monotonic()
            screen, kept = canvas.screen()
            picture(screen)
            canvas.draw(kept.getvalue())
            pause.wait(max(SOON_S, clock.monotonic() - began_s))  # half of a core at most
            changed.wait(AGES_S - SOON_S if canvas.is_live else None)
