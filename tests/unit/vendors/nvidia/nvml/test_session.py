"""Opening NVML, and opening it again, with growing pauses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hami_node.errors import DriverUnavailable
from hami_node.vendors.nvidia.driver import DriverLibrary
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
