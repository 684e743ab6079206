"""Every container gets its own slice, and nothing else, over kubelet's and the API's own wires."""

from __future__ import annotations

import pytest

from hami_node.model import ContainerKind
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.fakes.cards import uuid
from tests.fakes.pods import Box, Generation, Part
from tests.fakes.waiting import eventually
from tests.integration.rig import GPU, Rig, inside

ALL = [pytest.param(generation, id=generation.value) for generation in Generation]


def test_start_registers_lists_and_reports_every_slot(rig: Rig) -> None:
    devices = rig.kubelet.devices(GPU)
    assert sorted(devices) == sorted(f"{uuid(i)}-{n}" for i in range(4) for n in range(10))
    assert all(uuid(i) in rig.register_text for i in range(4))
    eventually(lambda: nvidia_names.NODE_HANDSHAKE in rig.notes)
    assert rig.notes[nvidia_names.NODE_HANDSHAKE].startswith("Reported ")
    assert rig.notes[names.NODE_IDENTITY] == names.IDENTITY_POD_RESOURCES
    assert rig.notes[names.NODE_SIMULATED] == "true"


@pytest.mark.parametrize("generation", ALL)
def test_pod_of_many_containers_each_gets_its_own_slice(rig: Rig, generation: Generation) -> None:
    boxes = [
        Box(name="setup", cards=0, kind=ContainerKind.INIT),
        Box(name="fetch", memory_mib=1000, kind=ContainerKind.INIT),
        Box(name="proxy", cards=0),
        Box(name="train", cards=2, memory_mib=5000, cores=20),
        Box(name="serve", memory_mib=1500),
    ]
    reserved = {
        "fetch": [Part(uuid=uuid(0), memory_mib=1000)],
        "train": [
            Part(uuid=uuid(3), memory_mib=5000, cores=20),
            Part(uuid=uuid(1), memory_mib=5000, cores=20),
        ],
        "serve": [Part(uuid=uuid(2), memory_mib=1500)],
    }
    rig.place("p", boxes, reserved, generation)
    answer = rig.admit("p")
    assert answer.is_admitted, answer.refusal
    has_init_slot = generation in (Generation.V2_10, Generation.V2_10_COMPACT)
    fetch = inside(answer, "fetch")
    assert fetch[nvidia_names.ENV_VISIBLE_DEVICES] == uuid(0 if has_init_slot else 2)
    assert inside(answer, "train")[nvidia_names.ENV_VISIBLE_DEVICES] == f"{uuid(1)},{uuid(3)}"
    assert inside(answer, "train")[f"{nvidia_names.ENV_MEMORY_LIMIT}_1"] == "5000m"
    assert inside(answer, "serve")[nvidia_names.ENV_VISIBLE_DEVICES] == uuid(2)
    assert inside(answer, "serve")[f"{nvidia_names.ENV_MEMORY_LIMIT}_0"] == "1500m"
    assert "proxy" not in answer.responses
    assert (rig.bind_phase("p"), rig.waits("p")) == (names.PHASE_SUCCESS, "")


def test_over_commit_is_refused_with_card_free_asked_and_hint(rig: Rig) -> None:
    part = Part(uuid=uuid(1), memory_mib=30000)
    rig.place("a", [Box(memory_mib=30000)], {"main": [part]})
    assert rig.admit("a").is_admitted
    rig.place("b", [Box(memory_mib=30000)], {"main": [part]}, is_locked=True)
    refusal = rig.admit("b").refusal
    for word in ("FailedPrecondition", "default/b/main", f"card 1 ({uuid(1)})", "free 10960 MiB"):
        assert word in refusal
    assert "asked 30000 MiB" in refusal
    assert refusal.count("delete and recreate the pod") == 1
    assert "\n" not in refusal
    assert rig.bind_phase("b") == names.PHASE_FAILED
    eventually(lambda: not rig.lock_text)
    eventually(lambda: rig.events("AllocationRefused"))
    assert "free 10960 MiB" in rig.events("AllocationRefused")[0]
    assert rig.bind_phase("a") == names.PHASE_SUCCESS
    rig.serve_one("c", 1, 10960)


def test_limiter_files_missing_container_is_refused_with_a_hint(rig: Rig) -> None:
    rig.take_limiter()
    rig.place_one("a")
    refusal = rig.admit("a").refusal
    assert "libvgpu.so" in refusal
    assert "--limiter optional" in refusal
    rig.lay_limiter()
    rig.serve_one("b")


def test_limiter_optional_files_missing_container_is_served_without_mounts(node: Rig) -> None:
    node.take_limiter()
    node.start(limiter="optional")
    answer = node.serve_one("a")
    mounted = [mount.container_path for mount in answer.responses["main"].mounts]
    assert not any(path.endswith(("libvgpu.so", "ld.so.preload")) for path in mounted)
    eventually(lambda: node.metric("limiter_missing") == 1)


def test_disable_control_is_served_without_the_preload_and_reported(rig: Rig) -> None:
    box = Box(memory_mib=1000, env={nvidia_names.ENV_DISABLE_CONTROL: "true"})
    rig.place("a", [box], {"main": [Part(uuid=uuid(0), memory_mib=1000)]})
    answer = rig.admit("a")
    mounted = [mount.container_path for mount in answer.responses["main"].mounts]
    assert "/etc/ld.so.preload" not in mounted
    eventually(lambda: rig.events("LimiterDisabled"))


def test_socket_of_pod_resources_gone_lock_owner_decides(rig: Rig) -> None:
    rig.kubelet._pod_resources_socket.unlink()
    for name, memory in (("a", 1000), ("b", 2000)):
        rig.place_one(name, 0, memory)
    answer = rig.admit("a")
    assert "the node is locked for no pod" in answer.refusal
    rig.lock("b")
    rig.place_one("x", 0, 2000)
    answer = rig.admit("x")
    assert "the node lock, which is default/b's, does not tell" in answer.refusal
    assert "waiting for 1 nvidia.com/gpu: default/b/main, default/x/main" in answer.refusal
    rig.set_phase("b", "Failed")
    rig.place_one("c", 0, 3000, is_locked=True)
    rig.wait_node_seen()
    served = rig.admit("c")
    assert served.is_admitted, served.refusal
    assert inside(served)[f"{nvidia_names.ENV_MEMORY_LIMIT}_0"] == "3000m"
    eventually(lambda: not rig.lock_text)


@pytest.mark.parametrize("generation", ALL)
def test_init_container_and_app_on_one_card_are_not_counted_twice(
    rig: Rig, generation: Generation
) -> None:
    boxes = [
        Box(name="one", memory_mib=20000, kind=ContainerKind.INIT),
        Box(name="two", memory_mib=30000, kind=ContainerKind.INIT),
        Box(name="main", memory_mib=30000),
    ]
    reserved = {
        "one": [Part(uuid=uuid(1), memory_mib=20000)],
        "two": [Part(uuid=uuid(1), memory_mib=30000)],
        "main": [Part(uuid=uuid(1), memory_mib=30000)],
    }
    rig.place("p", boxes, reserved, generation)
    answer = rig.admit("p")
    assert answer.is_admitted, answer.refusal
    limits = {
        box.name: inside(answer, box.name)[f"{nvidia_names.ENV_MEMORY_LIMIT}_0"] for box in boxes
    }
    assert limits == {"one": "20000m", "two": "30000m", "main": "30000m"}


def test_init_container_that_asks_more_than_any_reservation_is_refused(rig: Rig) -> None:
    boxes = [
        Box(name="setup", memory_mib=2000, kind=ContainerKind.INIT),
        Box(name="main", memory_mib=1000),
    ]
    reserved = {"main": [Part(uuid=uuid(1), memory_mib=1000)]}
    rig.place("p", boxes, reserved, Generation.V2_7)
    assert "no app container's reservation covers what it asks for" in rig.admit("p").refusal
