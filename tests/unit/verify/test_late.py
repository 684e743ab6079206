"""A node is late after the same silence, whichever command is asked."""

from __future__ import annotations

import dataclasses
import time

import pytest

from hami_node.cli.show import tables
from hami_node.cli.show.screen import Styled
from hami_node.inspection.views import NodeView
from hami_node.view.rows import is_late
from hami_node.wire.times import format_rfc3339
from tests.fakes.installed import Installed
from tests.reliability import shows
from tests.unit.verify.calling import findings, states
from tests.unit.verify.faults import annotated

NODE = NodeView(
    name="n", is_ready=True, cards=1, is_simulated=False, handshake="Reported",
    handshake_age_s=1, lock="", allocatable="10", identity="pod-resources", hand_over="",
)  # fmt: skip


@shows(
    "E6",
    fault="a node's daemon has not reported for a while, and people ask several commands",
    happens="`top`, `nodes`, `inspect`, `verify` and the view call it late after the same 90 s",
)
@pytest.mark.parametrize(("silent_s", "late"), [(60, False), (80, False), (100, True), (170, True)])
def test_every_command_calls_a_node_late_after_the_same_silence(
    cluster: Installed, silent_s: int, late: bool
) -> None:
    now_s = time.time()
    annotated(handshake=f"Reported {format_rfc3339(now_s - silent_s)}")(cluster)
    wrong = [name for name, _ in states(findings(cluster), "wrong")]
    cell = tables.handshake(dataclasses.replace(NODE, handshake_age_s=silent_s))
    assert ("handshake" in wrong) is late
    assert (isinstance(cell, Styled) and cell.style == "yellow") is late
    assert is_late("Reported", now_s - silent_s, now_s) is late
