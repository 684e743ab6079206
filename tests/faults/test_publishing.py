"""What the node publishes becomes right, then quiet."""

from __future__ import annotations

import time

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from tests.fakes.pods import NODE
from tests.fakes.waiting import eventually
from tests.integration.rig import LIMIT_S, Rig
from tests.reliability import shows


@shows(
    "P5",
    fault="the API server fails the first write of the node at the daemon's start",
    happens="the write is repeated, and the node is registered with its true cards",
)
@pytest.mark.parametrize("outcome", [409, "reset", "reset-after"], ids=str)
def test_first_writes_fail_the_node_is_registered_all_the_same(
    node: Rig, outcome: int | str
) -> None:
    node.api.fail_next("patch", "nodes", outcome)
    node.start(report_interval_s="10")
    eventually(lambda: node.register_text, LIMIT_S)
    assert node.register_text.count("GPU-") == node.card_count


@shows(
    "P5",
    fault="somebody edits or removes what the node registered and the first write fails",
    happens="it is written again as it should be; foreign annotations stay",
)
def test_edited_registration_is_written_again(node: Rig) -> None:
    node.start(report_interval_s="10")
    right = node.register_text
    node.api.fail_next("patch", "nodes", 500)
    for wrong in (None, "[]", right.replace("GPU-", "GPX-"), "{" * 5000):
        node.api.annotate("nodes", NODE, {nvidia_names.NODE_REGISTER: wrong, "foreign": "kept"})
        eventually(lambda: node.register_text == right, LIMIT_S)
    assert node.notes["foreign"] == "kept"


@shows(
    "P5",
    fault="nothing changes on the node, for many report intervals",
    happens="the API server gets no write and no list",
)
def test_quiet_node_sends_no_write_and_no_list(node: Rig) -> None:
    node.start(handshake="on-request", report_interval_s="2")
    node.wait_node_seen()

    def asked_within(seconds: float) -> list[str]:
        node.api.forget_requests()
        time.sleep(seconds)
        return [request.verb for request in node.api.requests() if request.verb != "watch"]

    eventually(lambda: not asked_within(0.5), LIMIT_S)  # what is known later is reported later
    assert asked_within(2.0) == []
