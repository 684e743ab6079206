"""Processes that are measured: each is a process group of its own, and none outlives the run."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

_END_S: Final = 10.0
_ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """SIGTERM and the like end this process as an error does: everything is cleaned up, once."""

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        for each in _ENDING:
            signal.signal(each, signal.SIG_IGN)  # cleaning up is not to be interrupted
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def free_port() -> int:
    """A TCP port of this machine that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Use:
    """What a process has used: seconds of processor time so far, and resident memory now, MiB."""

    cpu_s: float
    rss_mib: float
    peak_mib: float


class Running:
    """A process, and the log that it writes."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name, self.process, self.log = name, process, log

    @property
    def pid(self) -> int:
        return self.process.pid

    def use(self) -> Use:
        """From /proc. Check: ps -o time,rss -p PID."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        status = Path(f"/proc/{self.pid}/status").read_text()
        return Use(
            cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS,
            rss_mib=field_mib(status, "VmRSS"),
            peak_mib=field_mib(status, "VmHWM"),
        )

    def log_tail(self, lines: int = 12) -> str:
        """The last lines that it wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the group; kill what does not end in time."""
        for each in (number, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.pid, each)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_END_S)
                break
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # what the process itself left in its group


def is_good(url: str, context: ssl.SSLContext | None = None) -> bool:
    """Whether a page is served with 200.

    Raises:
        OSError: it is not served, or with an error.
    """
    with urllib.request.urlopen(url, timeout=30, context=context) as answer:  # noqa: S310 - ours
        return bool(answer.status == 200)


def field_mib(status: str, name: str) -> float:
    """A field of /proc/PID/status, MiB; 0 where it is not there."""
    for line in status.splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    return 0.0


def launched(
    name: str, command: Sequence[str], folder: Path, env: Mapping[str, str] | None = None
) -> Running:
    """Start a program in a group of its own; its output goes to NAME.log in that folder."""
    path = folder / f"{name}.log"
    with path.open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
    return Running(name, process, path)


def wait_for(what: str, probe: Callable[[], object], limit_s: float, *watched: Running) -> None:
    """Wait until the probe is true; its OSErrors count as not yet.

    Raises:
        RuntimeError: it stayed false, or one of the processes ended; with the ends of their logs.
    """
    deadline_s, seen = time.monotonic() + limit_s, "false"
    while time.monotonic() < deadline_s:
        try:
            if probe():
                return
        except OSError as error:
            seen = str(error)
        dead = [item.name for item in watched if item.process.poll() is not None]
        if dead:
            seen = f"{', '.join(dead)} ended"
            break
        time.sleep(0.05)
    tails = "\n".join(f"--- {item.name}\n{item.log_tail()}" for item in watched)
    raise RuntimeError(f"{what}: not within {limit_s:.0f} s ({seen})\n{tails}")
