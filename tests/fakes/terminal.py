"""A program on a terminal of 80 columns and 24 lines."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence


class Terminal:
    """Runs a program; what it writes is kept."""

    def __init__(
        self, command: str, args: Sequence[str], env: Mapping[str, str], columns: int = 80
    ) -> None:
        self._screen, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self._process = subprocess.Popen(
            (command, *args),
            env=dict(env),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        os.set_blocking(self._screen, False)
        self._seen = b""

    @property
    def text(self) -> str:
        """All that was written so far."""
        try:
            while part := os.read(self._screen, 1 << 16):
                self._seen += part
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno != errno.EIO:  # the program has ended
                raise
        return self._seen.decode("utf-8", "replace")

    def exit_code(self, limit_s: float) -> int:
        """Wait for the program's end."""
        return self._process.wait(limit_s)

    def close(self) -> None:
        """End the program, if it has not ended."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._screen >= 0:
            os.close(self._screen)
            self._screen = -1
