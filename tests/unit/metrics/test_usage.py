"""What containers and everybody use of cards, under both names."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from hami_node.config.settings import MetricNames
from hami_node.metrics.daemon import DaemonMetrics
from hami_node.metrics.usage import Shown, Usage, usage_series
from hami_node.ports import ContainerUse, HostUse, UnreadUse
from tests.fakes.cards import card, uuid

NOW_S = 1_800_000_000
USE = ContainerUse(
    namespace="ns", pod="p", container="main", uuid=uuid(3), index=3, position=1,
    memory_bytes=1000, context_bytes=100, module_bytes=50, data_bytes=850,
    core_percent=31, limit_bytes=2000, core_limit_percent=30, last_kernel_s=NOW_S - 4,
)  # fmt: skip
BARE = replace(
    USE, pod="bare", context_bytes=None, module_bytes=None, data_bytes=None,
    core_percent=None, limit_bytes=None, core_limit_percent=None, last_kernel_s=None,
)  # fmt: skip
PART = replace(BARE, pod="p", position=0, part="MIG-1", limit_bytes=4864 << 20, processes=2)
OTHER_PART = replace(PART, position=1, part="MIG-2", memory_bytes=500, processes=None)
OWN = "hami_node_container_"
HOST = HostUse(memory_bytes=5000, core_percent=80, memory_controller_percent=20)
LOST = UnreadUse(namespace="ns", pod="lost", container="main", reason="size")
WHOSE = {"namespace": "ns", "container": "main"}

Series = dict[str, list[tuple[dict[str, str], float]]]


def shown(usage: Usage, prefix: str, names: MetricNames = MetricNames.OWN) -> Series:
    """Labels and value of every series with that prefix, by name, through the exposition format."""
    metrics, models = DaemonMetrics("n1"), {uuid(3): "as registered"}
    how = Shown(node="n1", now_s=NOW_S, names=names, models=models)
    metrics.sources.append(lambda: usage_series(usage, how))
    text = generate_latest(metrics.registry).decode()
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith(prefix):
                found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def test_own_series_of_a_container() -> None:
    found = shown(Usage(containers=(USE,)), "hami_node_container_")
    labels = {**WHOSE, "node": "n1", "pod": "p", "uuid": uuid(3), "index": "3"}
    assert found == {
        "hami_node_container_memory_used_bytes": [(labels, 1000)],
        "hami_node_container_memory_context_bytes": [(labels, 100)],
        "hami_node_container_memory_module_bytes": [(labels, 50)],
        "hami_node_container_memory_data_bytes": [(labels, 850)],
        "hami_node_container_memory_limit_bytes": [(labels, 2000)],
        "hami_node_container_core_use_ratio": [(labels, 0.31)],
        "hami_node_container_core_limit_ratio": [(labels, 0.3)],
        "hami_node_container_last_kernel_age_seconds": [(labels, 4)],
    }


def test_series_of_a_part_name_it_and_those_of_cards_do_not() -> None:
    found = shown(
        Usage(
            containers=(
                BARE,
                PART,
                OTHER_PART,
            )
        ),
        "hami_node_container_",
    )
    used = [(labels.get("part"), value) for labels, value in found[f"{OWN}memory_used_bytes"]]
    assert used == [(None, 1000), ("MIG-1", 1000), ("MIG-2", 500)]
    limits = [(labels["part"], value) for labels, value in found[f"{OWN}memory_limit_bytes"]]
    assert limits == [("MIG-1", 4864 << 20), ("MIG-2", 4864 << 20)]
    assert found[f"{OWN}processes"][0][1] == 2
    assert f"{OWN}core_use_ratio" not in found


def test_cores_of_a_part_are_absent_under_hamis_names_too() -> None:
    found = shown(
        Usage(
            containers=(
                PART,
                OTHER_PART,
            )
        ),
        "hami_",
        MetricNames.HAMI,
    )
    used = {
        labels["vdevice_index"]: value for labels, value in found["hami_vgpu_memory_used_bytes"]
    }
    assert used == {"0": 1000, "1": 500}
    assert "hami_container_device_utilization_ratio" not in found


def test_what_is_not_known_has_no_series() -> None:
    found = shown(Usage(containers=(BARE,)), "hami_node_container_")
    assert list(found) == ["hami_node_container_memory_used_bytes"]


def test_launch_in_the_future_is_just_now() -> None:
    later = replace(USE, last_kernel_s=2**33)
    found = shown(Usage(containers=(later,)), "hami_node_container_last_kernel")
    assert found["hami_node_container_last_kernel_age_seconds"][0][1] == 0


def test_unreadable_container_is_told_with_the_reason() -> None:
    found = shown(Usage(unread=(LOST,)), "hami_node_container_")
    labels = {**WHOSE, "node": "n1", "pod": "lost", "reason": "size"}
    assert found == {"hami_node_container_usage_unreadable": [(labels, 1)]}


def test_own_series_of_a_card_join_with_its_others() -> None:
    found = shown(Usage(hosts=((card(3), HOST),)), "hami_node_card_")
    slots = {"node": "n1", "uuid": uuid(3), "index": "3", "type": "as registered"}
    assert found["hami_node_card_memory_used_bytes"] == [(slots, 5000)]
    assert found["hami_node_card_core_use_ratio"] == [(slots, 0.8)]
    assert found["hami_node_card_memory_controller_use_ratio"] == [(slots, 0.2)]


def test_card_without_a_reading_has_no_series() -> None:
    found = shown(Usage(hosts=((card(3), HostUse()),)), "hami_node_card_")
    assert not [name for name in found if "memory_used" in name or "_use_" in name]


FOUND = Usage(containers=(USE, BARE), unread=(LOST,), hosts=((card(3), HOST),))


def test_names_labels_and_units_of_hamis_monitor() -> None:
    found = shown(FOUND, "hami_", MetricNames.HAMI)
    labels = {**WHOSE, "zone": "vGPU", "vdevice_index": "1", "device_uuid": uuid(3)}
    whose, bare = labels | {"pod": "p"}, labels | {"pod": "bare"}
    assert not [name for name in found if name.startswith("hami_node_container")]
    for name in ("vgpu_memory_used_bytes", "container_device_memory_bytes"):
        assert found[f"hami_{name}"] == [(whose, 1000), (bare, 1000)]
    assert found["hami_vgpu_memory_limit_bytes"] == [(whose, 2000), (bare, 0)]
    assert found["hami_container_device_utilization_ratio"] == [(whose, 31), (bare, 0)]
    assert found["hami_container_last_kernel_elapsed_seconds"] == [(whose, 4)]
    assert found["hami_vgpu_memory_context_bytes"] == [(whose, 100)]
    assert found["hami_vgpu_memory_module_bytes"] == [(whose, 50)]
    assert found["hami_vgpu_memory_buffer_bytes"] == [(whose, 850)]


def test_hamis_names_of_the_host() -> None:
    found = shown(FOUND, "hami_host_", MetricNames.HAMI)
    labels = {
        "zone": "vGPU",
        "device_index": "3",
        "device_uuid": uuid(3),
        "device_type": "NVIDIA-NVIDIA A100-SXM4-40GB",
    }
    assert found == {
        "hami_host_gpu_memory_used_bytes": [(labels | {"node": "n1"}, 5000)],
        "hami_host_gpu_utilization_ratio": [(labels | {"node": "n1"}, 80)],
        "hami_host_gpu_memory_controller_utilization_ratio": [(labels, 20)],
    }


def test_both_and_none() -> None:
    both = shown(FOUND, "hami_", MetricNames.BOTH)
    assert {"hami_node_container_memory_used_bytes", "hami_vgpu_memory_used_bytes"} <= both.keys()
    off = shown(FOUND, "hami_", MetricNames.OFF)
    of_containers = ("hami_vgpu", "hami_host", "hami_container", "hami_node_container")
    assert not [name for name in off if name.startswith(of_containers)]
    assert "hami_node_card_memory_used_bytes" not in off
