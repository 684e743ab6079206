"""A program of the demo: the product's own command line as a process, and its log."""

from __future__ import annotations

import http.client
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import hami_node
from hami_node.config.settings import declarations
from hami_node.config.sources import (
    CONFIG_FILE_ENV,
    ENV_PREFIX,
    NODE_CONFIG_FILE_ENV,
    ignored_env,
)
from hami_node.setting_types import Blocks

STOP_S: Final = 6.0
"""How long a program may take to shut down before it is killed."""
LOG_LINES: Final = 12

_SILENT_PROXIES: Final = frozenset({"http_proxy", "https_proxy", "all_proxy"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A running program.

    Attributes:
        title: its name for people: "the extender".
        started_s: monotonic time.
    """

    title: str
    process: subprocess.Popen[bytes]
    log_file: Path
    started_s: float

    @classmethod
    def start(
        cls,
        title: str,
        command: Sequence[str],
        env: Mapping[str, str],
        log_file: Path,
        started_s: float,
    ) -> Self:
        """Start a process that logs into that file and runs in the file's folder."""
        with log_file.open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - our own command, no shell
                command,
                env=env,
                cwd=log_file.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the demo, which ends its programs
            )
        return cls(title=title, process=process, log_file=log_file, started_s=started_s)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self.process.poll()

    def log(self) -> str:
        """The whole log."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def logged(self, event: str) -> str | None:
        """The last line of an event; None before it happened."""
        lines = [line for line in self.log().splitlines() if f" event={event} " in f"{line} "]
        return lines[-1] if lines else None

    def last_lines(self) -> tuple[str, ...]:
        """The end of the log, for people."""
        return tuple(self.log().splitlines()[-LOG_LINES:])

    def port_of(self, event: str) -> int | None:
        """The port that an event names; None before it happened."""
        found = re.search(r" port=(\d+)", self.logged(event) or "")
        return int(found[1]) if found else None

    def metrics_port(self) -> int | None:
        """Where a daemon serves /metrics; None before it does."""
        return self.port_of("metrics_served")

    def metrics(self, card: str) -> dict[str, float]:
        """Series without labels of their own and those of one card, by name; {} if unreachable."""
        port = self.metrics_port()
        if port is None:
            return {}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=STOP_S)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        except OSError:
            return {}
        finally:
            connection.close()
        found = re.findall(r"^(\w+)\{([^}]*)\} (\S+)$", text, re.MULTILINE)
        return {
            name: float(value)
            for name, labels, value in found
            if labels.count("=") == 1 or f'uuid="{card}"' in labels
        }

    def stop(self) -> None:
        """Terminate it; kill it if it does not end."""
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_S)


def program_env(base: Mapping[str, str], blocks: Blocks) -> dict[str, str]:
    """The environment without settings of the product and without proxies, which change the demo.

    The programs import the same package as this process, installed or not.
    """
    settings = declarations(blocks).values()
    known = {variable for setting in settings for variable in setting.names.env}
    known |= {CONFIG_FILE_ENV, NODE_CONFIG_FILE_ENV, *ignored_env(blocks)}
    kept = {
        name: value
        for name, value in base.items()
        if name not in known
        and not name.startswith(ENV_PREFIX)
        and name.lower() not in _SILENT_PROXIES
    }
    folders = [str(Path(hami_node.__file__).parent.parent), kept.get("PYTHONPATH", "")]
    return kept | {"PYTHONPATH": ":".join(filter(None, folders)), "PYTHONUNBUFFERED": "1"}
