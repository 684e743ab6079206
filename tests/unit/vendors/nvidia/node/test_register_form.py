"""`registerFormat: auto` beside schedulers of every generation, over minutes and days."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hami_node.model import Node
from hami_node.node.vendor_cards import CardRecord
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.choices import HandshakeMode, RegisterFormat
from hami_node.vendors.nvidia.codec import decode_register, encode_csv9, encode_json
from hami_node.vendors.nvidia.node.publication import NvidiaPublication
from hami_node.vendors.nvidia.node.register_form import form_of
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.publication import CardSources
from hami_node.wire import names
from hami_node.wire.times import format_dashed
from tests.fakes.cards import card
from tests.fakes.clock import FakeClock
from tests.fakes.records import FakeRecord
from tests.reliability import shows

JSON, CSV9, CSV7 = RegisterFormat.JSON, RegisterFormat.CSV9, RegisterFormat.CSV7
CARDS = (card(0), card(1))
HEARTBEAT_S, LOOK_S = 30, 15
TIMES = (0, 7, 7 + LOOK_S)
"""Seconds of each half minute: a report, and two looks of a scheduler."""
MINUTE, HOUR = 60, 3600
REGISTER, HANDSHAKE = nvidia_names.NODE_REGISTER, nvidia_names.NODE_HANDSHAKE


READ_BY = (names.READ_BY_EXTENDER, f"{names.READ_BY_COUNTING_INITS}Requesting_2027-01-15 07:00:00")
"""What our extender says of itself, an older one and today's."""


@dataclass
class Scheduler:
    """A HAMi scheduler: skips a node that it can't read, and keeps what it knew.

    Attributes:
        reads: the form that it can read.
        answers_always: as up to 2.8; later ones answer when the cards have changed.
        answers_at_once: it looks when the node has changed, not only every 15 s.
    """

    reads: RegisterFormat
    answers_always: bool = True
    answers_at_once: bool = True
    is_away: bool = False
    knows: int = 0

    def look(self, node: dict[str, str], clock: FakeClock) -> None:
        text = node.get(REGISTER, "")
        if self.is_away or form_of(text) is not self.reads:
            return
        if node.get(HANDSHAKE, "").startswith("Requesting"):
            self.knows = self.knows or len(CARDS)
            return
        cards = len(decode_register(text))
        if self.answers_always or cards != self.knows:
            node[HANDSHAKE] = f"Requesting_{format_dashed(clock.now())}"
        self.knows = cards

    def restart(self) -> None:
        """A new process knows no node; the first one it sees is a changed one."""
        self.knows = 0


@dataclass
class World:
    """A node with our daemon, second by second."""

    folder: Path
    schedulers: list[Scheduler] = field(default_factory=list)
    mode: HandshakeMode = HandshakeMode.ALWAYS
    clock: FakeClock = field(default_factory=FakeClock)
    node: dict[str, str] = field(default_factory=dict)
    seconds: int = 0
    forms: list[tuple[int, RegisterFormat]] = field(default_factory=list)
    seen: dict[str, str] | None = None

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A new process of the daemon."""
        sources = CardSources(
            cards=lambda: CARDS, records=lambda name: CardRecord(self.folder / "record", name)
        )
        settings = NvidiaSettings(handshake=self.mode)
        self.seen = None
        self.publication = NvidiaPublication(sources, lambda: settings)

    @property
    def form(self) -> RegisterFormat | None:
        return form_of(self.node.get(REGISTER))

    def run(self, seconds: int) -> None:
        """Something happens at the times of a report or a look, and in the second after news."""
        end = self.seconds + seconds
        while self.seconds < end:
            before = dict(self.node)
            if before != self.seen or self.seconds % HEARTBEAT_S in TIMES:
                self.act(before)
            self.seen = before
            step = 1 if self.node != before else self.until_next(end)
            self.seconds += step
            self.clock.advance(step)

    def until_next(self, end: int) -> int:
        waits = ((at - self.seconds) % HEARTBEAT_S or HEARTBEAT_S for at in TIMES)
        return min(end - self.seconds, *waits)

    def act(self, before: dict[str, str]) -> None:
        node = Node(name="n1", annotations=dict(self.node))
        changes = dict(self.publication.desired(node, self.clock.now()))
        if self.seconds % HEARTBEAT_S == 0:
            changes |= self.publication.heartbeat(node, self.clock.now())
        self.node = {k: v for k, v in {**self.node, **changes}.items() if v is not None}
        for scheduler in self.schedulers:
            has_news = scheduler.answers_at_once and self.node != before
            if has_news or self.seconds % LOOK_S == 7:
                scheduler.look(self.node, self.clock)
        if self.form is not None and (not self.forms or self.forms[-1][1] is not self.form):
            self.forms.append((self.seconds, self.form))


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., World]:
    return lambda *schedulers, **changes: World(tmp_path, list(schedulers), **changes)


Make = Callable[..., World]
SPEEDS = pytest.mark.parametrize("at_once", [True, False], ids=["at once", "every 15 s"])


@shows(
    "N15",
    fault="the scheduler is HAMi's of 2.5 to 2.7, which can't read JSON",
    happens="within two minutes the daemon writes csv9, and stays with it over its restarts",
)
@SPEEDS
def test_scheduler_that_reads_csv9_only_is_found_out_and_served(world: Make, at_once: bool) -> None:
    old = Scheduler(CSV9, answers_at_once=at_once)
    made = world(old)
    made.run(3 * MINUTE)
    assert made.form is CSV9
    assert old.knows == 2
    assert [form for _, form in made.forms] == [JSON, CSV9]
    assert made.forms[1][0] <= 100
    for _ in range(3):
        made.start()
        made.run(2 * HOUR)
    assert len(made.forms) == 2


@shows(
    "N15",
    fault="the scheduler is away for 5 minutes",
    happens="the form of the register annotation stays what it was",
)
@pytest.mark.parametrize("answers_always", [True, False])
@pytest.mark.parametrize("form", [JSON, CSV9])
@pytest.mark.parametrize("is_restarted", [True, False])
def test_scheduler_that_is_away_changes_nothing(
    world: Make, form: RegisterFormat, is_restarted: bool, answers_always: bool
) -> None:
    scheduler = Scheduler(form, answers_always=answers_always or form is CSV9)
    made = world(scheduler)
    made.run(10 * MINUTE)
    forms = list(made.forms)
    assert made.form is form
    scheduler.is_away = True
    made.run(2 * MINUTE)
    if is_restarted:
        made.start()
    made.run(3 * MINUTE)
    scheduler.restart()
    scheduler.is_away = False
    made.run(HOUR)
    assert made.forms == forms
    assert scheduler.knows == 2


@shows(
    "N15",
    fault="a scheduler of 2.9 or later answers a node's handshake once and is silent from then on",
    happens="the register annotation stays JSON, for days and over restarts of the daemon",
)
def test_scheduler_that_answers_once_keeps_json(world: Make) -> None:
    made = world(Scheduler(JSON, answers_always=False))
    for _ in range(4):
        made.run(8 * HOUR)
        made.start()
    assert [form for _, form in made.forms] == [JSON]


@shows(
    "N15",
    fault="no scheduler answers the handshake",
    happens="csv9 is tried for a minute after 1 min, 10 min, 1 h and then every 6 h; in between it "
    "is JSON",
)
def test_nobody_answers_csv9_is_tried_ever_more_rarely(world: Make) -> None:
    made = world()
    made.run(14 * HOUR)
    starts = [second for second, form in made.forms if form is CSV9]
    ends = [second for second, form in made.forms[1:] if form is JSON]
    waits = [start - end for start, end in zip(starts, [0, *ends], strict=False)]
    assert [wait // 60 for wait in waits] == [1, 10, 60, 360, 360]
    assert all(60 <= end - start <= 90 for start, end in zip(starts, ends, strict=False))
    assert made.form is JSON


def test_restart_does_not_start_the_attempts_anew(world: Make) -> None:
    made = world()
    made.run(3 * MINUTE)
    for _ in range(20):
        made.start()
        made.run(5 * MINUTE)
    assert [form for _, form in made.forms] == [JSON, CSV9, JSON]


@shows(
    "N15",
    fault="csv9 is tried while a scheduler that reads JSON has only just come",
    happens="it keeps the node, and the form goes back to JSON for good",
)
@pytest.mark.parametrize("comes_at_s", range(50, 160, 13))
@SPEEDS
def test_scheduler_that_reads_json_comes_at_any_moment(
    world: Make, comes_at_s: int, at_once: bool
) -> None:
    new = Scheduler(JSON, answers_at_once=at_once, is_away=True, answers_always=False)
    made = world(new)
    made.run(comes_at_s)
    new.is_away = False
    made.run(5 * MINUTE)
    assert made.form is JSON
    assert new.knows == 2
    made.run(3 * HOUR)
    forms = list(made.forms)
    made.run(9 * HOUR)
    assert made.forms == forms
    assert [form for _, form in made.forms].count(CSV9) <= 2


@shows(
    "N15",
    fault="HAMi's scheduler is upgraded from 2.7 to 2.8 or later under our daemon",
    happens="after ten minutes without an answer the form goes to JSON and stays",
    lost="new pods with cards wait for these minutes",
)
@pytest.mark.parametrize("answers_always", [True, False])
def test_upgrade_of_the_scheduler_is_followed(world: Make, answers_always: bool) -> None:
    made = world(Scheduler(CSV9))
    made.run(HOUR)
    new = Scheduler(JSON, answers_always=answers_always)
    made.schedulers = [new]
    made.run(13 * MINUTE)
    assert made.form is JSON
    assert new.knows == 2
    forms = list(made.forms)
    made.run(24 * HOUR)
    assert made.forms == forms


@pytest.mark.parametrize(
    ("form", "standing"), [(CSV9, encode_csv9(CARDS)), (JSON, encode_json(CARDS))]
)
def test_form_of_the_plugin_before_us_is_kept_without_a_gap(
    world: Make, form: RegisterFormat, standing: str
) -> None:
    scheduler = Scheduler(form, answers_always=form is CSV9)
    made = world(scheduler)
    made.node = {REGISTER: standing, HANDSHAKE: "Requesting_2027-01-15 07:59:59"}
    made.run(HOUR)
    assert [found for _, found in made.forms] == [form]


@shows(
    "N15",
    fault="our own extender reads the node, and is away or slow",
    happens="no other form than JSON is ever written",
)
@pytest.mark.parametrize("mark", READ_BY)
def test_node_that_our_extender_reads_never_leaves_json(world: Make, mark: str) -> None:
    made = world()
    made.node = {names.NODE_READ_BY: mark}
    made.run(8 * HOUR)
    made.start()
    made.run(HOUR)
    assert [form for _, form in made.forms] == [JSON]


@pytest.mark.parametrize("is_restarted", [True, False])
def test_mark_that_goes_makes_way_for_another_scheduler(world: Make, is_restarted: bool) -> None:
    made = world()
    made.node = {names.NODE_READ_BY: names.READ_BY_EXTENDER}
    made.run(HOUR)
    del made.node[names.NODE_READ_BY]
    if is_restarted:
        made.start()
    made.schedulers = [Scheduler(CSV9)]
    made.run(3 * MINUTE)
    assert made.form is CSV9


@pytest.mark.parametrize("mode", [HandshakeMode.ON_REQUEST, HandshakeMode.OFF])
def test_without_a_handshake_of_ours_nothing_is_tried(world: Make, mode: HandshakeMode) -> None:
    made = world(mode=mode)
    made.node = {HANDSHAKE: "Reported 2027-01-15 07:59:59.0 +0000 UTC"}
    made.run(2 * HOUR)
    assert [form for _, form in made.forms] == [JSON]


@pytest.mark.parametrize("payload", [b"", b"[]", b'{"form": "csv7"}', b'{"form": 1}', b"\xff"])
def test_record_of_another_meaning_is_an_empty_one(payload: bytes) -> None:
    record = FakeRecord(payload)
    publication = NvidiaPublication(
        CardSources(cards=lambda: CARDS, records=lambda name: record), NvidiaSettings
    )
    made = publication.desired(Node(name="n1"), 0.0)
    assert made[REGISTER] == encode_json(CARDS)


def test_record_that_cant_be_read_yet_is_asked_again_and_not_replaced() -> None:
    record = FakeRecord(b'{"form": "csv9", "is_answered": true}')
    record.is_hanging = True
    publication = NvidiaPublication(
        CardSources(cards=lambda: CARDS, records=lambda name: record), NvidiaSettings
    )
    node = Node(name="n1", annotations={names.NODE_READ_BY: names.READ_BY_EXTENDER})
    assert publication.desired(node, 0.0)[REGISTER] == encode_json(CARDS)
    assert record.saves == 0
    record.is_hanging = False
    assert publication.desired(Node(name="n1"), 1.0)[REGISTER] == encode_csv9(CARDS)
