"""What the GPU Operator's validator leaves on the node: marks, and where the driver is."""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hami_node.logs import kv
from hami_node.text import cut

log = logging.getLogger(__name__)

TOOLKIT_READY: Final = "toolkit-ready"
DRIVER_READY: Final = "driver-ready"
DRIVER_ROOT: Final = "NVIDIA_DRIVER_ROOT"
_MAX_BYTES: Final = 4096
_MAX_VALUE: Final = 512
_LINE: Final = re.compile(r"(?:export )?([A-Z][A-Z0-9_]{0,63})=(.*)", re.ASCII)
_PLAIN: Final = re.compile(r"[A-Za-z0-9/._+@:-]*", re.ASCII)
"""Values that mean the same to a shell and to us."""
_READ: Final = frozenset(
    {
        "IS_HOST_DRIVER",
        DRIVER_ROOT,
        "DRIVER_ROOT_CTR_PATH",
        "NVIDIA_DEV_ROOT",
        "DEV_ROOT_CTR_PATH",
    }
)


class Validations:
    """The validator's folder; where it is not mounted, nothing is waited for."""

    def __init__(self, folder: Path) -> None:
        """Read `folder` whenever something is asked for."""
        self._folder = folder
        self._logged = ""
        self._last: Mapping[str, str] = {}
        self._was_ready = False

    @property
    def is_mounted(self) -> bool:
        """True where the folder is there."""
        return self._folder.is_dir()

    @property
    def toolkit_mark(self) -> Path:
        """The file that is there once the container toolkit is installed."""
        return self._folder / TOOLKIT_READY

    @property
    def driver_mark(self) -> Path:
        """The file that is there once the driver is installed."""
        return self._folder / DRIVER_READY

    @property
    def awaits_driver(self) -> bool:
        """True where the driver has never been ready since this process runs."""
        self._was_ready = self._was_ready or self.driver_mark.exists()
        return self.is_mounted and not self._was_ready

    def driver_facts(self) -> Mapping[str, str]:
        """What the validator found out about the driver; empty where it has never said.

        What it said last counts while its file is gone, or says less: it removes its files whenever
        its pod ends, and the driver is where it was.

        The file has lines for a shell. It is only read: a line that a shell would have to
        interpret is left out.
        """
        facts = self._facts()
        if facts.get(DRIVER_ROOT, "").startswith("/") and facts.keys() >= self._last.keys():
            self._last, self._was_ready = facts, True
        return self._last or facts

    def _facts(self) -> Mapping[str, str]:
        try:
            text = _content(self.driver_mark)
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as e:
            self._report(str(e))
            return {}
        facts: dict[str, str] = {}
        bad: list[str] = []
        for line in text.splitlines():
            name, value = _fact(line)
            if value is None:
                bad.append(line)
            elif name in _READ:
                facts[name] = value
        self._report("; ".join(cut(line, 60) for line in bad[:3]))
        return facts

    def _report(self, problem: str) -> None:
        """Log what can't be read, once."""
        if problem and problem != self._logged:
            log.warning(
                "driver_ready_not_understood",
                extra=kv(file=str(self.driver_mark), left_out=problem),
            )
        self._logged = problem


def _content(path: Path) -> str:
    """Raises OSError or UnicodeDecodeError: not a regular file, too large, no text."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError("is no regular file")
        data = os.read(handle, _MAX_BYTES + 1)
    finally:
        os.close(handle)
    if len(data) > _MAX_BYTES:
        raise OSError(f"is larger than {_MAX_BYTES} bytes")
    return data.decode("ascii")


def _fact(line: str) -> tuple[str, str | None]:
    """Name and value of a line; no value for one that has to be interpreted."""
    text = line.strip()
    if not text or text.startswith("#"):
        return "", ""
    found = _LINE.fullmatch(text)
    if found is None:
        return "", None
    name, value = found.groups()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    is_plain = len(value) <= _MAX_VALUE and _PLAIN.fullmatch(value)
    return (name, value) if is_plain else ("", None)
