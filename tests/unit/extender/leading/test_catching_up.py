"""What a new leader waits for, watch by watch, on a clock that the test moves."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from hami_node.errors import KubeError
from hami_node.extender.leading.catching_up import (
    QUIET_S,
    CatchingUp,
    Following,
    Seen,
    Source,
)
from hami_node.model import version_number
from tests.fakes.clock import FakeClock, RealClock
from tests.fakes.waiting import eventually
from tests.reliability import shows


@dataclass
class Watch:
    """A watch of a large cluster, at version 100; its lists and changes are the test's."""

    objects: int = 20_000
    shown: int = 100
    stored: int | KubeError = 100
    synced: bool = True
    begun: int = 1
    taken: int = 1
    relists: int = 0

    def is_synced(self) -> bool:
        return self.synced

    def size(self) -> int:
        return self.objects

    def lists_begun(self) -> int:
        return self.begun

    def last_list(self) -> int:
        return self.taken

    def version(self) -> int:
        return self.shown

    def newest_version(self) -> int:
        if isinstance(self.stored, KubeError):
            raise self.stored
        return self.stored

    def relist(self) -> None:
        self.relists += 1
        self.synced = False

    def list(self) -> None:
        """A list that begins and ends now."""
        self.begun += 1
        self.taken, self.synced = self.begun, True


@dataclass
class Echo:
    """An object of our own; `shown` is what the watch has shown of it."""

    marks: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    works: bool = True

    def touch(self, mark: str) -> Seen | None:
        self.marks.append(mark)
        return (lambda: mark in self.shown) if self.works else None


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def wait(following: Following, clock: FakeClock, seconds: float) -> None:
    end_s = clock.monotonic() + seconds
    while clock.monotonic() < end_s:
        following.hurry()
        clock.advance(0.05)
    following.hurry()


@pytest.mark.parametrize(
    "stored",
    [0, 99, KubeError("lost"), version_number("1" * 21), version_number("1" * 5000)],
    ids=["unknown", "another history", "no answer", "21 digits", "5000 digits"],
)
def test_version_that_proves_nothing_is_replaced_by_a_list(
    stored: int | KubeError, clock: FakeClock
) -> None:
    """A backup that was restored has versions from long ago: ours would be above each of them."""
    watch = Watch(stored=stored)
    following = Following(Source(watch), clock)
    following.begin("m")
    assert watch.relists == 1
    assert not following.is_current()
    watch.list()
    assert following.is_current()


@shows(
    "E10",
    fault="a new leader's watch hangs, so that what proves it current never comes",
    happens="that kind alone is listed again after 1.5 s",
)
def test_quiet_watch_is_listed_again(clock: FakeClock) -> None:
    watch, echo = Watch(), Echo()
    following = Following(Source(watch, echo.touch), clock)
    following.begin("m")
    wait(following, clock, QUIET_S - 0.1)
    assert watch.relists == 0
    wait(following, clock, 0.2)
    assert watch.relists == 1
    wait(following, clock, 60.0)
    assert watch.relists == 1, "a list that runs is waited for"


def test_term_begins_once_all_are_current_and_never_after_its_end() -> None:
    watches, echo = (Watch(), Watch()), Echo()
    begun: list[int] = []
    stop = threading.Event()
    sources = [Source(watches[0], echo.touch), Source(watches[1], echo.touch)]
    catching_up = CatchingUp(sources, RealClock(), begun.append)
    thread = threading.Thread(target=catching_up.run, args=(stop,), daemon=True)
    thread.start()
    try:
        catching_up.begin(1)
        eventually(lambda: len(echo.marks) == 2)
        catching_up.end()
        echo.shown += echo.marks
        catching_up.begin(2)
        eventually(lambda: len(echo.marks) == 4)
        assert begun == [], "the marks of the first term prove nothing in the second"
        echo.shown += echo.marks
        eventually(lambda: begun == [2])
        assert echo.marks[0] != echo.marks[2]
    finally:
        stop.set()
        thread.join(5.0)
