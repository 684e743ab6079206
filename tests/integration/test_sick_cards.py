"""Cards that have to be reset, with the whole daemon on the stand-in for the driver's library."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import decode_register
from hami_node.wire import names
from tests.fakes.pods import NODE
from tests.fakes.waiting import eventually
from tests.integration.rig import GPU, LIMIT_S, SLOTS, Rig
from tests.nvml_stub.control import UUIDS, Stub, sequence
from tests.reliability import shows


@pytest.fixture
def rig(driver: Stub) -> Iterator[Rig]:
    driver.show()
    made = Rig(cards=3)
    try:
        made.start(backend="nvml", report_interval_s="2")
        yield made
    finally:
        made.close()


def sick(rig: Rig) -> set[str]:
    """The cards that the node object shows as unhealthy, agreed upon by kubelet."""
    cards = decode_register(rig.notes.get(nvidia_names.NODE_REGISTER, ""))
    bad = {str(card.uuid) for card in cards if not card.healthy}
    return bad if rig.kubelet.allocatable(GPU) == (3 - len(bad)) * SLOTS else {"disagreed"}


def said(rig: Rig) -> dict[str, str]:
    """Why cards are unhealthy, as the node object says it to people."""
    return json.loads(rig.notes.get(names.NODE_CLOSED_CARDS, "{}"))  # type: ignore[no-any-return]


@shows(
    "N9",
    fault="a card has to be reset (XID 79); the daemon is restarted; an operator clears the card",
    happens="kubelet and the node object show it unhealthy over the restart, and healthy "
    "after the word",
)
def test_card_that_needs_a_reset_is_out_until_an_operator_clears_it(rig: Rig, driver: Stub) -> None:
    heard = driver.calls("nvmlEventSetWait_v2")
    eventually(lambda: driver.calls("nvmlEventSetWait_v2") > heard, LIMIT_S)
    driver.show(f"xid {next(sequence)} 1 79")
    eventually(lambda: sick(rig) == {UUIDS[1]}, LIMIT_S)
    rig.stop()
    rig.card_count = 2  # healthy ones
    rig.start(backend="nvml", report_interval_s="2")
    eventually(lambda: sick(rig) == {UUIDS[1]}, LIMIT_S)
    reason = rig.cards[1].unhealthy_reason
    assert f"{names.NODE_CLEAR_ERRORS}={UUIDS[1]}" in reason
    eventually(lambda: said(rig) == {UUIDS[1]: reason}, LIMIT_S)
    rig.api.annotate("nodes", NODE, {names.NODE_CLEAR_ERRORS: UUIDS[1]})
    eventually(lambda: sick(rig) == set(), LIMIT_S)
    eventually(lambda: said(rig) == {}, LIMIT_S)
    eventually(lambda: names.NODE_CLEAR_ERRORS not in rig.notes, LIMIT_S)


@shows(
    "N11",
    fault="a card's name, UUID or size is nonsense while the daemon serves",
    happens="kubelet and the node object show that card unhealthy, and healthy once it makes sense",
)
@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo"]
)
def test_nonsense_about_a_card_costs_that_card(rig: Rig, driver: Stub, function: str) -> None:
    driver.show(f"garbage {function} 1 255")
    eventually(lambda: sick(rig) == {UUIDS[1]}, LIMIT_S)
    driver.show()
    eventually(lambda: sick(rig) == set(), LIMIT_S)
    assert rig.daemon is not None
    assert not rig.daemon.threads.died
