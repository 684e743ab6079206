"""One card that fails costs one card, whatever fails about it."""

from __future__ import annotations

import pytest

from tests.bench.daemon_rig import DaemonRig
from tests.faults.process import wait_health
from tests.nvml_stub.control import UUIDS
from tests.reliability import shows

WELL = dict.fromkeys(range(8), True)
CALLS = (
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetName",
    "*",
)
CODES = {"lost": 15, "unknown": 999}


@shows(
    "P6",
    fault="the driver answers about one card with an error, in any call, of any kind",
    happens="that card is unhealthy for kubelet and in the annotation, the others stay, and it is "
    "well again when the driver answers",
)
@pytest.mark.parametrize("code", CODES.values(), ids=CODES)
def test_card_that_fails_costs_itself_alone_and_heals(process: DaemonRig, code: int) -> None:
    wait_health(process, WELL)
    for number, call in enumerate(CALLS):
        bad = 1 + number
        process.stub.show(f"fail {call} {bad} {code}", cards=8)
        wait_health(process, WELL | {bad: False})
        process.create_pod(f"beside-{number}", UUIDS[0], 100)
        assert process.admit(f"beside-{number}") == ""
        process.stub.show(cards=8)
        wait_health(process, WELL)
    assert process.process.poll() is None
