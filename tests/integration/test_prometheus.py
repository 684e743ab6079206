"""A real Prometheus before the real daemon and the real extender: every query has its answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pytest

from hami_node.simulate.kube_scheduler import Bound, ExtenderClient, schedule_pod
from tests.bench.daemon_rig import CARDS, NODE, RESOURCE, SLOTS, DaemonRig, running_daemon
from tests.fakes.regions import recorded_region
from tests.fakes.waiting import eventually
from tests.faults.process import port_of
from tests.integration.extender_process import Replica
from tests.monitoring.prometheus import (
    Prometheus,
    alerts_in_error,
    firing,
    running_prometheus,
    target,
    without_series,
)
from tests.nvml_stub.control import UUIDS, card
from tests.unit.extender.test_legacy_pages import WANTED as OF_SCHEDULER
from tests.unit.metrics.test_legacy import WANTED as OF_MONITOR

pytestmark = pytest.mark.programs

LIMIT_S: Final = 40.0
NOT_HERE: Final = {
    "hami_node_container_memory_used_bytes{part": "no card is divided",
    "hami_node_card_parts": "no card is divided",
    "hami_node_card_mode_info": "no card is divided",
    "hami_node_container_part_info": "no card is divided",
    "hami_node_container_part_xid_events": "no card is divided",
    "hami_node_part_call_failures": "no card is divided",
    "hami_node_record_rebuilt": "the record is whole",
    "hami_node:record_lost": "the record is whole",
    "hami_node_resource_taken": "no other plugin is there",
    "hami_node_extender_nodes_backed_off": "no node is backed off",
    "hami_node_extender_resizes": "nobody resizes a pod",
    "hami_node_extender_card_slots) == 0": "every card is offered",
    "ALERTS": "asked for below",
}
"""Series, or parts of a query, that can't occur here, with the reason."""


@dataclass(frozen=True, slots=True)
class Scene:
    """All programs, with pods that hold, use, wait and are refused."""

    rig: DaemonRig
    replica: Replica
    prometheus: Prometheus


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    flags = ("--usage-interval-s", "0.2", "--usage-metrics", "both", "--legacy-metrics", "true")
    folder = tmp_path_factory.mktemp("prometheus")
    with running_daemon(*flags) as rig:
        eventually(lambda: rig.kubelet.allocatable(RESOURCE) == CARDS * SLOTS, LIMIT_S)
        replica = Replica(
            folder / "extender", rig.api, "--card-metrics=both", "--legacy-metrics=true"
        )
        try:
            replica.wait_ready()
            configs = [
                target("daemon", f"127.0.0.1:{port_of(rig)}", namespace="hami-system", pod="d-1"),
                target(
                    "extender", f"127.0.0.1:{replica.metrics}", namespace="hami-system", pod="e-1"
                ),
            ]
            with running_prometheus(folder, configs) as server:
                one = Scene(rig, replica, server)
                play(one)
                yield one
        finally:
            replica.end()


def play(scene: Scene) -> None:
    """Everything that gives series."""
    rig, extender = scene.rig, ExtenderClient(port=scene.replica.decisions)
    amounts = {RESOURCE: str(CARDS * SLOTS)}
    rig.api.edit("nodes", NODE, lambda body: body["status"].update(allocatable=amounts))
    eventually(lambda: "event=cards_offered" in scene.replica.log(), LIMIT_S)
    for name, memory_mib in (("a", 3000), ("b", 3000), ("unreadable", 1000), ("wide", 10**6)):
        create(rig, name, memory_mib)
    for name in ("a", "b", "unreadable"):
        outcome = schedule_pod(rig.api, extender, name, "default")
        assert isinstance(outcome, Bound), outcome
        eventually(lambda pod=name: rig.admit(pod) == "", LIMIT_S)  # type: ignore[misc]
    assert not isinstance(schedule_pod(rig.api, extender, "wide", "default"), Bound)
    create(rig, "refused", 1000)
    rig.api.edit("pods", "refused", lambda body: body["spec"].update(nodeName=NODE), "default")
    eventually(lambda: rig.admit("refused") != "", LIMIT_S)
    containers = rig.root / "hook" / "vgpu" / "containers"
    for name, content in (
        ("a", recorded_region("v1.1-8be6d90-busy").content),
        ("b", recorded_region("v1.2-8f3a89c-2000-of-3000").content),
        ("unreadable", b"not a region"),
    ):
        uid = rig.api.read("pods", name, "default")["metadata"]["uid"]
        folder = containers / f"{uid}_c"
        (folder / f"{folder.name}.cache").write_bytes(content)
    sick = [f"xid 1 {CARDS - 1} 79", "xid 2 0 31"]
    scene.rig.stub.write(*(card(i, used_mib=1000, busy=10) for i in range(CARDS)), *sick)
    wanted = (
        "hami_node_container_usage_unreadable",
        "hami_node_container_last_kernel_age_seconds",
        "hami_node_card_unhealthy",
        "hami_node_extender_waiting_pods",
        "hami_node:allocate_refused:increase15m",
        "hami_node:driver_errors:increase15m",
        "hami_node:slices_free:sum",
        'rate(hami_node_extender_decisions_total{call="bind"}[1m])',
    )
    for query in wanted:
        scene.prometheus.wait_for(query, LIMIT_S)


def create(rig: DaemonRig, name: str, memory_mib: int) -> None:
    limits = {RESOURCE: "1", "nvidia.com/gpumem": str(memory_mib), "nvidia.com/gpucores": "30"}
    rig.api.create(
        "pods",
        {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "schedulerName": "hami-scheduler",
                "containers": [{"name": "c", "resources": {"limits": limits}}],
            },
            "status": {"phase": "Pending"},
        },
    )


def excused(query: str) -> bool:
    return any(name in query for name in NOT_HERE)


def test_every_query_of_dashboards_rules_and_alerts_is_answered_with_series(scene: Scene) -> None:
    server = scene.prometheus
    assert without_series(server, excused) == []
    assert alerts_in_error(server) == []


def test_both_programs_are_scraped_whole(scene: Scene) -> None:
    server = scene.prometheus
    assert {each["health"] for each in server.targets()} == {"up"}, server.targets()
    for words in ("Error on ingesting", "duplicate", "out of order"):
        assert words not in server.log()
    (labels, _), *_ = server.series("hami_node_container_memory_used_bytes")
    assert labels["namespace"] == "default", "a target's namespace must not replace the pod's"
    assert not server.series("{exported_pod!=''}")


def test_what_is_wrong_here_becomes_an_alert_and_what_is_right_does_not(scene: Scene) -> None:
    wrong = {
        "HamiCardUnhealthy", "HamiDriverErrors", "HamiPodsRefusedByNode", "HamiUsageUnreadable",
        "HamiContainerIdle", "HamiMemoryFragmented",
    }  # fmt: skip
    eventually(lambda: wrong <= firing(scene.prometheus), LIMIT_S)
    assert firing(scene.prometheus) == wrong


def test_names_of_hami_are_all_there(scene: Scene) -> None:
    server = scene.prometheus
    current = (
        *("hami_gpu_memory_limit_bytes", "hami_gpu_memory_allocated_bytes"),
        *("hami_gpu_core_allocated_ratio", "hami_gpu_shared_count"),
        *("hami_node_gpu_memory_allocated_ratio", "hami_host_gpu_memory_used_bytes"),
        *("hami_host_gpu_utilization_ratio", "hami_vgpu_memory_used_bytes"),
        *("hami_vgpu_memory_limit_bytes", "hami_container_device_utilization_ratio"),
    )
    legacy = {*OF_MONITOR, *OF_SCHEDULER} - {"QuotaUsed"}  # there is no quota
    for name in (*current, *legacy):
        assert server.series(name), name


def test_cards_of_both_programs_join(scene: Scene) -> None:
    found = scene.prometheus.series(
        "hami_node_extender_card_slots * on (node, uuid) group_left (index) hami_node_card_info"
    )
    assert {labels["uuid"] for labels, _ in found} == set(UUIDS[:CARDS])
