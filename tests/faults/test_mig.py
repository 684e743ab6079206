"""Cards in MIG mode: nothing of theirs is touched, and they cost only themselves."""

from __future__ import annotations

import signal

from tests.bench.daemon_rig import DaemonRig
from tests.fakes.waiting import eventually
from tests.faults.process import LIMIT_S, page, port_of, wait_health
from tests.nvml_stub.control import UUIDS, card
from tests.reliability import shows


@shows(
    "P9",
    fault="two cards are in MIG mode, one more enters it while the daemon runs",
    happens="they are unhealthy with the reason, no call changes a card, and the others serve",
)
def test_cards_in_mig_mode_are_not_offered_and_not_touched(process: DaemonRig) -> None:
    port = port_of(process)
    for divided in ({1, 2}, {1, 2, 5}, {5}):
        modes = {number: "enabled" if number in divided else "disabled" for number in range(8)}
        process.stub.write(*(card(number, mig=mode) for number, mode in modes.items()))
        wait_health(process, {number: number not in divided for number in range(8)})
    eventually(lambda: "MIG" in page(port)[1], LIMIT_S)
    process.create_pod("divided", UUIDS[5], 100)
    refusal = process.admit("divided")
    assert "unhealthy" in refusal
    assert "MIG" in refusal
    process.create_pod("whole", UUIDS[0], 100)
    assert process.admit("whole") == ""
    assert process.stub.mig.changes() == ()
    assert "Function Not Found" not in process.log
    process.process.send_signal(signal.SIGTERM)
    assert process.process.wait(LIMIT_S) == 0
