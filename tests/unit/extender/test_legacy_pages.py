"""The names that HAMi's scheduler had before 2.9."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hami_node.config.settings import MetricNames
from hami_node.engine.quota import Limits
from hami_node.vendors.nvidia import names as nvidia_names
from tests.fakes.pods import Box
from tests.unit.extender.desk import Desk
from tests.unit.extender.test_card_pages import text_of

MIB = 2**20
CARD = {
    "zone": "vGPU", "nodeid": "n1", "deviceuuid": "GPU-n1-0", "deviceidx": "0",
    "devicetype": "NVIDIA H100",
}  # fmt: skip
SHARE = {
    "zone": "vGPU", "podnamespace": "default", "nodename": "n1", "podname": "gpu",
    "containeridx": "0", "deviceuuid": "GPU-n1-0",
}  # fmt: skip
MEMORY = nvidia_names.RESOURCE_GPU_MEMORY
QUOTA = {"zone": "vGPU", "quotanamespace": "default", "quotaName": MEMORY, "limit": "5000"}
WANTED = {
    "GPUDeviceMemoryLimit": (CARD, 10_000 * MIB),
    "GPUDeviceCoreLimit": (CARD, 100),
    "GPUDeviceMemoryAllocated": (CARD | {"devicecores": "100"}, 2048 * MIB),
    "GPUDeviceSharedNum": (CARD, 1),
    "GPUDeviceCoreAllocated": (CARD, 30),
    "nodeGPUOverview": (CARD | {"devicecores": "100", "devicememorylimit": "10000"}, 2048 * MIB),
    "nodeGPUMemoryPercentage": (CARD, 0.2048),
    "vGPUMemoryAllocated": (SHARE, 2048 * MIB),
    "vGPUCoreAllocated": (SHARE, 30),
    "vGPUPodsDeviceAllocated": (SHARE | {"deviceusedcore": "30"}, 2048 * MIB),
    "vGPUMemoryPercentage": (SHARE, 0.2048),
    "vGPUCorePercentage": (SHARE, 30),
    "QuotaUsed": (QUOTA, 2048),
}
Series = dict[str, list[tuple[dict[str, str], float]]]


@pytest.fixture
def desk() -> Desk:
    """A card, a pod with 2 GiB of it, and a quota."""
    desk = Desk("n1")
    desk.state.set_quota("default", "gpus", Limits(memory_mib=5000))
    desk.add_pod("gpu", Box(name="c", memory_mib=2048, cores=30))
    assert desk.choose("gpu", "n1") == "n1"
    return desk


def series_in(text: str) -> Series:
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def test_every_legacy_name_has_its_labels_and_value(desk: Desk) -> None:
    found = series_in(text_of(desk, MetricNames.OFF, has_legacy=True))
    assert found.keys() == WANTED.keys()
    assert {name: found[name][0] for name in found} == WANTED


def test_nothing_of_them_unless_wanted(desk: Desk) -> None:
    for which in MetricNames:
        assert not series_in(text_of(desk, which)).keys() & WANTED.keys()
