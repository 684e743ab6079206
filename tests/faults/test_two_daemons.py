"""Two daemons on one node, each a real process: one serves, the other waits for its turn."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.processes import started
from tests.fakes.waiting import eventually
from tests.faults.process import page
from tests.faults.test_record import assert_old_keeps_its_card, assert_serves, entries
from tests.integration.rig import LIMIT_S, Rig, launch
from tests.reliability import shows


@pytest.fixture
def first(node: Rig) -> Iterator[subprocess.Popen[bytes]]:
    """It has served the pod `old` most of card 1."""
    process = launch(node)
    try:
        assert_serves(node, "old", 1)
        yield process
    finally:
        process.kill()
        process.wait(LIMIT_S)


class Second:
    """The other one, and what it says."""

    def __init__(self, node: Rig) -> None:
        node.config_path.write_text("nvidia: {}", encoding="utf-8")
        self.path = node.root / "log-of-the-second"
        flags = node.flags() | {
            "metrics-address": "127.0.0.1:0",
            "probe-address": "127.0.0.1:0",
            "config-file": node.config_path,
        }
        self.process = started(self.path, "run", flags)

    @property
    def log(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def probe(self, path: str) -> tuple[int, str]:
        """The answer of the server that started last."""
        return page(int(re.findall(r"event=probe_served port=(\d+)", self.log)[-1]), path)


@pytest.fixture
def second(node: Rig, first: subprocess.Popen[bytes]) -> Iterator[Second]:
    found = Second(node)
    try:
        eventually(lambda: "daemon_waits" in found.log, LIMIT_S)
        yield found
    finally:
        found.process.kill()
        found.process.wait(LIMIT_S)


def state_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Which files are there, and when each was written."""
    found = {str(path): path.stat() for path in folder.rglob("*")}
    return {name: (status.st_ino, status.st_mtime_ns) for name, status in found.items()}


@shows(
    "R10",
    fault="a second daemon starts on the node, as in an update that runs two for a while",
    happens="it waits, alive and not ready, and says so; it registers and writes nothing; it "
    "serves with the record of the first as soon as that has ended, killed or not",
)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_second_daemon_waits_and_takes_over(
    node: Rig, first: subprocess.Popen[bytes], second: Second, how: signal.Signals
) -> None:
    registrations, before = len(node.kubelet.registrations), state_of(node.plugins)
    eventually(lambda: "event=probe_served" in second.log, LIMIT_S)
    assert second.probe("/healthz") == (200, "ok\n")
    status, text = second.probe("/readyz")
    assert status == 503
    assert f"another hami-node serves this node and holds {node.record}" in text
    assert len(node.kubelet.registrations) == registrations
    assert state_of(node.plugins) == before
    assert_serves(node, "while it waits", 0)

    first.send_signal(how)
    first.wait(LIMIT_S)
    eventually(lambda: len(node.kubelet.registrations) > registrations, LIMIT_S)
    node.wait_registered()
    eventually(lambda: second.probe("/readyz")[0] == 200, LIMIT_S)
    assert set(entries(node)) == {"old", "while it waits"}
    node.end("while it waits")
    assert_old_keeps_its_card(node)


def test_daemon_that_waits_ends_when_it_is_told(
    first: subprocess.Popen[bytes], second: Second
) -> None:
    second.process.terminate()
    assert second.process.wait(LIMIT_S) == 0
    assert first.poll() is None
