"""The whole daemon under a scheduler of HAMi 2.5 to 2.7, in a fraction of the time."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.choices import RegisterFormat
from hami_node.vendors.nvidia.node.register_form import form_of
from hami_node.wire.times import format_dashed
from tests.fakes.cards import uuid
from tests.fakes.clock import PacedClock
from tests.fakes.pods import NODE, Box, Generation, Part
from tests.fakes.waiting import eventually
from tests.integration.rig import LIMIT_S, Rig
from tests.reliability import shows

HURRY = 50
"""Seconds that pass in a second of the test."""


class Minutes:
    """Time, and a scheduler that answers the handshake of a node whose register it can read."""

    def __init__(self, rig: Rig, reads: RegisterFormat) -> None:
        self.rig, self.reads = rig, reads
        self.clock = PacedClock(HURRY)
        self.is_away = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            notes = self.rig.notes
            is_question = notes.get(nvidia_names.NODE_HANDSHAKE, "").startswith("Reported")
            is_read = form_of(notes.get(nvidia_names.NODE_REGISTER)) is self.reads
            if is_question and is_read and not self.is_away:
                text = f"Requesting_{format_dashed(self.clock.now())}"
                self.rig.api.annotate("nodes", NODE, {nvidia_names.NODE_HANDSHAKE: text})

    def pass_by(self, seconds: float) -> None:
        until = self.clock.now() + seconds
        eventually(lambda: self.clock.now() > until, 60.0)

    def end(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def old(node: Rig) -> Iterator[Minutes]:
    made = Minutes(node, RegisterFormat.CSV9)
    node.clock = made.clock
    try:
        yield made
    finally:
        made.end()


@shows(
    "N15",
    fault="a scheduler of HAMi 2.5 to 2.7; then the daemon restarts and the scheduler is away for "
    "5 minutes",
    happens="the daemon finds the form that it reads, keeps it, and serves pods all the while",
)
def test_daemon_under_an_old_scheduler_finds_its_form_and_serves(node: Rig, old: Minutes) -> None:
    def form() -> RegisterFormat | None:
        return form_of(node.register_text)

    def serve(name: str, card: int) -> None:
        reserved = {"main": [Part(uuid=uuid(card), memory_mib=1000)]}
        node.place(name, [Box(memory_mib=1000)], reserved, Generation.V2_7)
        assert node.admit(name).is_admitted

    node.start()
    assert form() is RegisterFormat.JSON
    serve("before", 0)
    eventually(lambda: form() is RegisterFormat.CSV9, 60.0)
    serve("meanwhile", 1)
    old.pass_by(180.0)
    assert form() is RegisterFormat.CSV9
    old.is_away = True
    old.pass_by(120.0)
    node.restart()
    old.pass_by(180.0)
    assert form() is RegisterFormat.CSV9
    old.is_away = False
    old.pass_by(120.0)
    assert form() is RegisterFormat.CSV9
    serve("after", 2)
    eventually(lambda: node.bind_phase("after") == "success", LIMIT_S)
