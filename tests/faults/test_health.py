"""Health goes both ways, and kubelet, annotation and metric say the same."""

from __future__ import annotations

import random

from tests.bench.daemon_rig import DaemonRig
from tests.fakes.waiting import eventually
from tests.faults.process import LIMIT_S, listed, measured, page, port_of, registered
from tests.nvml_stub.control import UUIDS, card
from tests.reliability import shows

WELL = dict.fromkeys(range(8), True)


def agree(rig: DaemonRig, port: int, wanted: dict[int, bool]) -> None:
    eventually(lambda: listed(rig) == registered(rig) == measured(port) == wanted, LIMIT_S)


@shows(
    "P7",
    fault="cards are lost and come back at random, several at a time",
    happens="kubelet's list, the annotation and the metric agree on each, without a restart",
)
def test_three_places_agree_on_cards_that_come_and_go(process: DaemonRig) -> None:
    port, dice = port_of(process), random.Random(3)
    for _ in range(3):
        lost = set(dice.sample(range(8), dice.randint(1, 5)))
        process.stub.show(*(f"fail * {number} 15" for number in lost), cards=8)
        agree(process, port, {number: number not in lost for number in range(8)})
    process.stub.show(cards=8)
    agree(process, port, WELL)
    assert process.process.poll() is None


@shows(
    "P7",
    fault="applications fail with the XIDs that are their own doing (13, 31, 43, 45)",
    happens="the cards stay healthy and the errors are counted",
)
def test_errors_of_applications_take_no_card(process: DaemonRig) -> None:
    port = port_of(process)
    agree(process, port, WELL)
    codes = (13, 31, 43, 45)
    process.stub.show(*(f"xid {n} {n % 8} {code}" for n, code in enumerate(codes, 1)), cards=8)
    eventually(lambda: all(f'xid="{code}"}} 1.0' in page(port)[1] for code in codes), LIMIT_S)
    agree(process, port, WELL)
    process.create_pod("p", UUIDS[5], 100)
    assert process.admit("p") == ""


@shows(
    "P7",
    fault="the driver asks for a reset of one card, and its answers are otherwise well",
    happens="the card is unhealthy everywhere while the driver asks",
)
def test_card_that_needs_a_reset_is_unhealthy_everywhere(process: DaemonRig) -> None:
    port = port_of(process)
    lines = [card(number) for number in range(8)]
    lines[2] = card(2, recovery=1)
    process.stub.write(*lines)
    agree(process, port, WELL | {2: False})
    process.create_pod("p", UUIDS[2], 100)
    assert "unhealthy" in process.admit("p")
