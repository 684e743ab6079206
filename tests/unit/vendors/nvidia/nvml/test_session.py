"""Opening NVML, and opening it again, with growing pauses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hami_node.errors import DriverUnavailable
from hami_node.vendors.nvidia.driver.library import DriverLibrary
from hami_node.vendors.nvidia.nvml.calls import NvmlCalls
from hami_node.vendors.nvidia.nvml.session import LONGEST_PAUSE_S, NvmlSession
from tests.nvml_stub.control import Stub
from tests.unit.vendors.nvidia.nvml.conftest import ManualClock

INIT = "nvmlInitWithFlags"


class SessionRig:
    """A session on this thread, with time that the test moves."""

    def __init__(self, stub: Stub) -> None:
        self.clock = ManualClock()
        self.calls = NvmlCalls(self.clock)
        self.session = NvmlSession(self.clock, DriverLibrary(stub.library))


@pytest.fixture
def rig(stub: Stub) -> Iterator[SessionRig]:
    made = SessionRig(stub)
    yield made
    stub.show()
    made.session.close(made.calls)


def test_open_session_is_not_opened_again(rig: SessionRig, stub: Stub) -> None:
    assert rig.session.ensure_open(rig.calls)
    opened = stub.calls(INIT)
    assert not rig.session.ensure_open(rig.calls)
    assert stub.calls(INIT) == opened


def test_failing_driver_is_asked_after_growing_pauses(rig: SessionRig, stub: Stub) -> None:
    stub.show(f"fail {INIT} * 999")
    start_s, opened, at_s = rig.clock.at_s, stub.calls(INIT), []
    for _ in range(80):
        with pytest.raises(DriverUnavailable, match="code 999"):
            rig.session.ensure_open(rig.calls)
        if stub.calls(INIT) > opened:
            opened = stub.calls(INIT)
            at_s.append(rig.clock.at_s - start_s)
        rig.clock.at_s += 0.5
    assert at_s == [0, 1, 3, 7, 15, 25, 35]
    assert LONGEST_PAUSE_S == 10


def test_session_that_proved_good_may_be_reopened_at_once(rig: SessionRig) -> None:
    rig.session.ensure_open(rig.calls)
    assert not rig.session.may_reopen
    rig.session.proved_good()
    assert rig.session.may_reopen


def test_reopening_closes_what_is_gone_and_opens_anew(rig: SessionRig, stub: Stub) -> None:
    rig.session.ensure_open(rig.calls)
    stub.show("generation 7", "fail nvmlShutdown * 1")
    opened = stub.calls(INIT)
    rig.session.reopen(rig.calls)
    assert stub.calls(INIT) == opened + 1
    assert rig.calls.ask("nvmlDeviceGetCount") == 3


def test_close_of_a_closed_session_asks_nothing(rig: SessionRig, stub: Stub) -> None:
    given_back = stub.calls("nvmlShutdown")
    rig.session.close(rig.calls)
    assert stub.calls("nvmlShutdown") == given_back
