"""Who counts as a holder of cards: running pods in full, namesakes and deleted pods not at all."""

from __future__ import annotations

from typing import Any

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from tests.fakes.cards import MEMORY_MIB, uuid
from tests.fakes.pods import Box, Part, layout, pod_body, reservation
from tests.fakes.waiting import eventually
from tests.integration.desk import World
from tests.integration.rig import GPU, LIMIT_S, Rig, inside
from tests.reliability import shows

MOST_MIB = MEMORY_MIB - 1000
FORMER = "example.com/vgpu"


def body_of(name: str, card: int, *, resource: str = GPU, **changes: Any) -> dict[str, Any]:
    """A bound pod with a reservation of most of a card; `changes` are made to its metadata."""
    boxes = [Box(memory_mib=MOST_MIB)]
    text = layout(boxes, {"main": [Part(uuid=uuid(card), memory_mib=MOST_MIB)]})
    body = pod_body(name, boxes, reservation(text))
    limits = body["spec"]["containers"][0]["resources"]["limits"]
    limits[resource] = limits.pop(GPU)
    body["metadata"] |= changes
    return body


def create(rig: Rig, body: dict[str, Any]) -> str:
    """Create the pod; the daemon has seen it afterwards."""
    name = str(body["metadata"]["name"])
    rig.api.create("pods", body)
    rig.wait_seen(name)
    return name


def assert_refused(rig: Rig, name: str, card: int, **options: Any) -> None:
    answer = rig.admit(create(rig, body_of(name, card, **options)))
    assert not answer.is_admitted
    assert "free" in answer.refusal, answer.refusal


def assert_served(rig: Rig, name: str, card: int, **options: Any) -> None:
    answer = rig.admit(create(rig, body_of(name, card, **options)))
    assert answer.is_admitted, answer.refusal
    assert inside(answer)[nvidia_names.ENV_VISIBLE_DEVICES] == uuid(card)


@shows(
    "N6",
    fault="the resource of the cards is renamed (resourceCountName) under running pods",
    happens="they count as before, with or without the record",
)
@pytest.mark.parametrize("has_record", [True, False], ids=["record", "no-record"])
def test_resource_is_renamed_and_running_pods_still_count(node: Rig, has_record: bool) -> None:
    node.config_path.write_text(f"nvidia:\n  resourceCountName: {FORMER}\n", encoding="utf-8")
    node.resource = FORMER
    node.start()
    assert_served(node, "old", 1, resource=FORMER)
    node.stop()
    if not has_record:
        (node.record / "grants.record").unlink()
    node.config_path.write_text("nvidia: {}\n", encoding="utf-8")
    node.resource = GPU
    node.start()
    assert_refused(node, "greedy", 1)
    eventually(lambda: node.granted(1) == MOST_MIB * 2**20, LIMIT_S)
    node.set_phase("old", "Succeeded")
    assert_served(node, "next", 1)


@shows(
    "N6",
    fault="a pod runs, its to-allocate annotation was never cleared, and the record is lost",
    happens="its reservation counts in full",
)
def test_running_pod_whose_slot_was_never_emptied_counts(rig: Rig) -> None:
    body = body_of("old", 1)
    reserved = dict(body["metadata"]["annotations"])
    assert_served(rig, "old", 1)
    rig.set_phase("old", "Running")
    rig.stop()
    (rig.record / "grants.record").unlink()
    rig.api.edit(
        "pods", "old", lambda pod: pod["metadata"]["annotations"].update(reserved), "default"
    )
    rig.start()
    assert_refused(rig, "greedy", 1)
    assert_served(rig, "other", 2)


def test_pod_that_waits_holds_nothing_yet(rig: Rig) -> None:
    create(rig, body_of("waits", 1))
    assert_served(rig, "quick", 1)


@shows(
    "N16",
    fault="a pod is deleted by force, and no Allocate comes after it",
    happens="within seconds the metrics no longer count it",
)
def test_deleted_pod_leaves_the_metrics_by_itself(rig: Rig) -> None:
    assert_served(rig, "p", 1)
    eventually(lambda: rig.granted(1) > 0, LIMIT_S)
    rig.kubelet.remove("default", "p")
    rig.api.delete("pods", "p", "default")
    eventually(lambda: rig.granted(1) == 0, LIMIT_S)
    assert rig.metric("allocation_memory_bytes", pod="p") is None
    eventually(lambda: rig.metric("record_entries", source="served") == 0, LIMIT_S)


@shows(
    "N16",
    fault="a pod is deleted by force while the daemon is down",
    happens="the next daemon asks the API server and kubelet, and then frees its cards",
)
def test_pod_deleted_while_the_daemon_is_down_is_freed(rig: Rig) -> None:
    assert_served(rig, "p", 1)
    rig.stop()
    rig.kubelet.remove("default", "p")
    rig.api.delete("pods", "p", "default")
    rig.start()
    assert_served(rig, "next", 1)


@shows(
    "N16",
    fault="a pod is deleted by force and made again under its name (StatefulSet)",
    happens="the new pod is charged for its own grants only, and the old one's cards are free for "
    "others as soon as kubelet does not list its device IDs any more",
)
def test_namesake_of_a_deleted_pod_is_not_charged_for_it(rig: Rig) -> None:
    assert_served(rig, "p-0", 1)
    rig.kubelet.remove("default", "p-0")
    rig.api.delete("pods", "p-0", "default")
    assert_served(rig, "p-0", 2, uid="uid-new")
    assert_served(rig, "next", 1)
    eventually(lambda: rig.granted(2) == MOST_MIB * 2**20, LIMIT_S)
    assert_refused(rig, "greedy", 2)


def test_namesake_waits_while_the_old_containers_still_run(rig: Rig) -> None:
    assert_served(rig, "p-0", 1)
    rig.api.delete("pods", "p-0", "default")  # kubelet still lists its IDs
    create(rig, body_of("p-0", 1, uid="uid-new"))
    assert_refused(rig, "greedy", 1)
    eventually(lambda: rig.granted(1) == MOST_MIB * 2**20, LIMIT_S)


@shows(
    "N16",
    fault="kubelet has just started and lists no pods, while one of them runs",
    happens="the pod's cards stay taken",
)
def test_empty_list_of_kubelet_frees_nothing(rig: Rig) -> None:
    assert_served(rig, "old", 1)
    rig.kubelet.remove("default", "old")
    assert_refused(rig, "greedy", 1)
    rig.stop()
    rig.start()
    assert_refused(rig, "greedy-too", 1)


@shows(
    "N16",
    fault="the namesake of a deleted pod is admitted while the watch still shows the old one",
    happens="it gets its own slice, and the old one's cards are free",
)
@pytest.mark.parametrize("device_id", [f"{uuid(2)}-1", f"{uuid(1)}-0"], ids=["other-id", "same-id"])
def test_namesake_is_admitted_before_the_watch_shows_it(device_id: str) -> None:
    with World() as world:
        desk = world.desk()
        boxes = [Box(memory_mib=MOST_MIB)]
        world.place("p-0", boxes, {"main": [Part(uuid=uuid(1), memory_mib=MOST_MIB)]})
        world.allocate("p-0", [f"{uuid(1)}-0"])
        world.api.edit(
            "pods", "p-0", lambda body: body["status"].update(phase="Running"), "default"
        )
        desk.wait_seen()
        desk.stop.set()
        desk.view.close()  # the watch is silent from here on
        world.api.delete("pods", "p-0", "default")
        world.api.create("pods", body_of("p-0", 2, uid="uid-new"))
        world.listed.held["default", "p-0"] = {"main": ()}
        answer = world.allocate("p-0", [device_id])
        shown = desk.view.pod("default", "p-0")
        assert shown is not None
        assert shown.uid == "uid-p-0", "the watch has shown the new pod"
        assert dict(answer.envs)[nvidia_names.ENV_VISIBLE_DEVICES] == uuid(2)
        world.api.create("pods", body_of("next", 1))
        world.listed.held["default", "next"] = {"main": ()}
        answer = world.allocate("next", [f"{uuid(1)}-3"])
        assert dict(answer.envs)[nvidia_names.ENV_VISIBLE_DEVICES] == uuid(1)
