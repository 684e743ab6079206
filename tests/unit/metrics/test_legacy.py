"""The names that HAMi's monitor had before 2.9."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from hami_node.config.settings import MetricNames
from hami_node.metrics.daemon import DaemonMetrics
from hami_node.metrics.usage import Shown, Usage, rounded_down, usage_series
from hami_node.ports import ContainerUse, HostUse
from tests.fakes.cards import card, uuid

NOW_S = 1_800_000_000
USE = ContainerUse(
    namespace="ns", pod="p", container="main", uuid=uuid(3), index=3, position=1,
    memory_bytes=1024, context_bytes=128, module_bytes=64, data_bytes=768,
    core_percent=31, limit_bytes=2000, core_limit_percent=30, last_kernel_s=NOW_S - 4,
)  # fmt: skip
HOST = HostUse(memory_bytes=5000, core_percent=80, memory_controller_percent=20)
FOUND = Usage(containers=(USE,), hosts=((card(3), HOST),))
CONTAINER = {
    "zone": "vGPU", "podnamespace": "ns", "podname": "p", "ctrname": "main", "vdeviceid": "1",
    "deviceuuid": uuid(3),
}  # fmt: skip
AMOUNTS = {"context": "128", "module": "64", "data": "768", "offset": "64"}
CARD = {
    "zone": "vGPU", "nodeid": "n1", "deviceidx": "3", "deviceuuid": uuid(3),
    "devicetype": "NVIDIA-NVIDIA A100-SXM4-40GB",
}  # fmt: skip
WANTED = {
    "vGPU_device_memory_usage_in_bytes": (CONTAINER, 1024),
    "vGPU_device_memory_limit_in_bytes": (CONTAINER, 2000),
    "Device_utilization_desc_of_container": (CONTAINER, 31),
    "Device_last_kernel_of_container": (CONTAINER, 4),
    "Device_memory_desc_of_container": (CONTAINER | AMOUNTS, 1024),
    "vGPU_device_memory_context_size_bytes": (CONTAINER, 128),
    "vGPU_device_memory_module_size_bytes": (CONTAINER, 64),
    "vGPU_device_memory_buffer_size_bytes": (CONTAINER, 768),
    "HostGPUMemoryUsage": (CARD, 5000),
    "HostCoreUtilization": (CARD, 80),
}
Series = dict[str, list[tuple[dict[str, str], float]]]


def shown(usage: Usage, names: MetricNames = MetricNames.OWN, *, has_legacy: bool = True) -> Series:
    """Every series that is not under one of our names, through the exposition format."""
    metrics = DaemonMetrics("n1")
    how = Shown(node="n1", now_s=NOW_S, names=names, has_legacy=has_legacy, models={})
    metrics.sources.append(lambda: usage_series(usage, how))
    found: Series = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            if not sample.name.startswith("hami_node_"):
                found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def test_every_legacy_name_has_its_labels_and_value() -> None:
    assert shown(FOUND) == {name: [series] for name, series in WANTED.items()}


def test_nothing_of_them_unless_wanted() -> None:
    assert shown(FOUND, has_legacy=False) == {}


@pytest.mark.parametrize("names", MetricNames)
def test_they_are_beside_any_other_names_and_never_twice(names: MetricNames) -> None:
    found = shown(FOUND, names)
    others = shown(FOUND, names, has_legacy=False)
    assert not others.keys() & WANTED.keys()
    assert found.keys() == others.keys() | WANTED.keys()
    assert all(len(series) == 1 for series in found.values())


def test_what_is_not_known_is_as_hami_shows_it() -> None:
    bare = replace(
        USE, context_bytes=None, module_bytes=None, data_bytes=None, core_percent=None,
        limit_bytes=None, last_kernel_s=None,
    )  # fmt: skip
    found = shown(Usage(containers=(bare,), hosts=((card(3), HostUse()),)))
    assert found["vGPU_device_memory_limit_in_bytes"] == [(CONTAINER, 0)]
    assert found["Device_utilization_desc_of_container"] == [(CONTAINER, 0)]
    amounts = {"context": "0", "module": "0", "data": "0", "offset": "1024"}
    assert found["Device_memory_desc_of_container"] == [(CONTAINER | amounts, 1024)]
    assert found.keys() == {
        "vGPU_device_memory_usage_in_bytes",
        "vGPU_device_memory_limit_in_bytes",
        "Device_utilization_desc_of_container",
        "Device_memory_desc_of_container",
    }


def test_parts_that_claim_more_than_the_whole_leave_nothing() -> None:
    odd = replace(USE, memory_bytes=10)
    (labels, value) = shown(Usage(containers=(odd,)))["Device_memory_desc_of_container"][0]
    assert (labels["offset"], value) == ("0", 10)


def test_amounts_in_labels_change_seldom_and_stay_near() -> None:
    amounts = range(80 << 30, 81 << 30, 1 << 20)
    rounded = {rounded_down(amount) for amount in amounts}
    assert len(rounded) == 1
    everything = {rounded_down(amount) for amount in range(0, 1 << 20, 7)}
    assert len(everything) < 100
    assert all(amount * 0.8 <= rounded_down(amount) <= amount for amount in range(1, 5000))
