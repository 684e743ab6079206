"""Lists that kubelet can't take, and a driver that hangs."""

from __future__ import annotations

import time

import pytest

from hami_node.errors import ConfigError
from tests.bench.daemon_rig import DaemonRig
from tests.fakes.cards import uuid
from tests.fakes.waiting import eventually
from tests.faults.process import LIMIT_S, listed
from tests.integration.rig import GPU, Rig
from tests.nvml_stub.control import UUIDS
from tests.reliability import shows

WELL = dict.fromkeys(range(8), True)


@shows(
    "P14",
    fault="cards are split into so many slots that their list passes kubelet's limit of 4 MiB",
    happens="the daemon does not start, and says the largest number of slots that fits",
)
def test_list_that_kubelet_can_not_take_is_refused_with_the_largest_that_fits(node: Rig) -> None:
    with pytest.raises(ConfigError, match=r"use at most \d+"):
        node.start(split_count="100000")
    assert node.kubelet.devices(GPU) == {}


@shows(
    "P14",
    fault="four cards are split into a thousand slots each",
    happens="kubelet has all 4,000, and a pod is served",
)
def test_long_list_arrives_whole(node: Rig) -> None:
    node.card_count = 4
    node.config_path.write_text("nvidia:\n  deviceSplitCount: 10\n", encoding="utf-8")
    node.start()
    node.config_path.write_text("nvidia:\n  deviceSplitCount: 1000\n", encoding="utf-8")
    node.wait_registered(4000)
    assert len(node.kubelet.devices(GPU)) == 4000
    assert f"{uuid(3)}-999" in node.kubelet.devices(GPU)


@shows(
    "P14",
    fault="every call about one card hangs in the driver",
    happens="Allocate answers for another card meanwhile; all are well when the driver answers",
)
def test_driver_that_hangs_does_not_hold_allocate_up(process: DaemonRig) -> None:
    eventually(lambda: listed(process) == WELL, LIMIT_S)
    process.stub.show("hang * 3 60", cards=8)
    time.sleep(1.5)  # the next scan is in the hanging call
    began_s = time.monotonic()
    process.create_pod("beside", UUIDS[0], 100)
    assert process.admit("beside") == ""
    assert time.monotonic() - began_s < 5.0
    process.stub.show(cards=8)
    eventually(lambda: listed(process) == WELL, LIMIT_S)
    process.create_pod("after", UUIDS[3], 100)
    assert process.admit("after") == ""
