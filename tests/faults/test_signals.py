"""Signals in bursts and at bad moments, to the real processes: orderly ends, nothing left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fakes.api_server import FaultyApiServer
from tests.fakes.processes import processes_of, started
from tests.fakes.waiting import eventually
from tests.integration.rig import Rig
from tests.reliability import shows

LIMIT_S = 30.0
ROUNDS = 2
BURST = 1_000
HAMI_NODE = (sys.executable, "-m", "hami_node")


@contextmanager
def process_of(
    log: Path, program: str, flags: Mapping[str, object]
) -> Iterator[subprocess.Popen[bytes]]:
    """A program of the product whose log goes to a file; killed in the end if it still runs."""
    process = started(log, program, flags)
    try:
        yield process
    finally:
        process.kill()
        process.wait(LIMIT_S)


def wait_for(log: Path, words: str) -> None:
    """Until the log has these words."""
    eventually(lambda: words in log.read_text(), LIMIT_S)


def flood(process: subprocess.Popen[bytes], *numbers: signal.Signals) -> None:
    """A thousand signals within milliseconds, whether the process still lives or not."""
    for i in range(BURST):
        os.kill(process.pid, numbers[i % len(numbers)])


@shows(
    "N13",
    fault="a thousand SIGTERM and SIGINT within milliseconds, to the daemon",
    happens="it ends in good order with code 0, each time",
)
def test_daemon_ends_under_a_burst_of_signals(node: Rig) -> None:
    chance, log = random.Random(13), node.root / "log"
    for number in range(ROUNDS):
        with process_of(log, "run", node.flags()) as process:
            wait_for(log, "event=starting" if number % 2 else "event=serving")
            time.sleep(chance.uniform(0.0, 0.2))
            flood(process, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
            assert process.wait(LIMIT_S) == 0, log.read_text()
        assert "event=stopped" in log.read_text()
        assert list(node.plugins.glob("hami-*.sock")) == []


@shows(
    "N13",
    fault="a thousand SIGTERM and SIGINT within milliseconds, to the extender",
    happens="it ends in good order with code 0, each time",
)
def test_extender_ends_under_a_burst_of_signals(tmp_path: Path) -> None:
    log = tmp_path / "log"
    chance = random.Random(13)
    with FaultyApiServer() as api:
        flags: dict[str, object] = {
            "kubeconfig": api.write_kubeconfig(tmp_path / "kubeconfig"),
            "http-bind": "127.0.0.1:0",
            "metrics-address": "off",
        }
        for _ in range(ROUNDS):
            with process_of(log, "extender", flags) as process:
                wait_for(log, "event=extender_served")
                time.sleep(chance.uniform(0.0, 0.2))
                flood(process, signal.SIGTERM, signal.SIGINT)
                assert process.wait(LIMIT_S) == 0, log.read_text()
            assert "event=stopped" in log.read_text()


@contextmanager
def demo_in(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path, Path]]:
    """The demo as a process, the folder for its temporary files, and the file of its output."""
    work, output = folder / "t", folder / "output"
    work.mkdir()
    with output.open("wb") as file:
        demo = subprocess.Popen(
            [*HAMI_NODE, "demo"],
            env={**os.environ, "TMPDIR": str(work)},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield demo, work, output
    finally:
        demo.kill()
        demo.wait(LIMIT_S)


def interrupt(demo: subprocess.Popen[bytes], chance: random.Random) -> None:
    """Ctrl-C, and again and again until it has ended."""
    while demo.poll() is None:
        demo.send_signal(signal.SIGINT)
        time.sleep(chance.uniform(0.0, 0.1))


@shows(
    "N13",
    fault="Ctrl-C at a random moment of the demo, and on and on while it clears up",
    happens="it ends with 130; no folder and no process is left",
)
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 8))]
)
def test_demo_interrupted_at_any_moment_leaves_nothing(short_folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    with demo_in(short_folder) as (demo, work, output):
        eventually(lambda: any(work.iterdir()), LIMIT_S)
        time.sleep(chance.uniform(0.0, 1.0))
        interrupt(demo, chance)
        assert demo.returncode == 130, output.read_text()
        assert list(work.iterdir()) == []
        assert processes_of(work) == []
        assert "Traceback" not in output.read_text()


@shows(
    "N13",
    fault="Ctrl-C only after the demo has begun to clear up",
    happens="it clears up whole and ends with 130",
)
def test_demo_interrupted_while_it_clears_up_leaves_nothing(short_folder: Path) -> None:
    with demo_in(short_folder) as (demo, work, output):
        eventually(lambda: "steps passed" in output.read_text(), LIMIT_S)
        interrupt(demo, random.Random(1))
        assert demo.returncode == 130, output.read_text()
        assert list(work.iterdir()) == []
        assert processes_of(work) == []
