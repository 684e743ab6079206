"""Every container gets its own slice, and nothing else, over kubelet's and the API's own wires."""

from __future__ import annotations

import random

import pytest

from hami_node.model import ContainerKind
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import decode_register
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


def test_stop_publishes_the_cards_as_unhealthy_and_ends_with_zero(rig: Rig) -> None:
    assert rig.stop() == 0
    assert [card.healthy for card in decode_register(rig.register_text)] == [False] * 4
    assert names.NODE_IDENTITY not in rig.notes
    assert not list(rig.plugins.glob("hami-*.sock"))


def test_burst_all_bound_before_each_pod_gets_its_own_slice(rig: Rig) -> None:
    wanted = {}
    for n in range(20):
        name, memory = f"p{n:02}", 1000 + 37 * n
        box = Box(memory_mib=memory, cores=n + 1)
        part = Part(uuid=uuid(n % 4), memory_mib=memory, cores=n + 1)
        rig.place(name, [box], {"main": [part]})
        wanted[name] = part
    order = list(wanted)
    random.Random(1).shuffle(order)
    for name in order:
        answer = rig.admit(name)
        assert answer.is_admitted, answer.refusal
        part, env = wanted[name], inside(answer)
        assert env[nvidia_names.ENV_VISIBLE_DEVICES] == part.uuid
        assert env[f"{nvidia_names.ENV_MEMORY_LIMIT}_0"] == f"{part.memory_mib}m"
        assert env[nvidia_names.ENV_CORE_LIMIT] == str(part.cores)
        assert [ids.rpartition("-")[0] for ids in answer.device_ids["main"]] == [part.uuid]
        assert (rig.bind_phase(name), rig.waits(name)) == (names.PHASE_SUCCESS, "")


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


def test_sidecar_with_a_card_is_served_like_a_container(rig: Rig) -> None:
    boxes = [
        Box(name="side", memory_mib=700, kind=ContainerKind.SIDECAR),
        Box(name="main", memory_mib=800),
    ]
    reserved = {
        "side": [Part(uuid=uuid(1), memory_mib=700)],
        "main": [Part(uuid=uuid(2), memory_mib=800)],
    }
    rig.place("p", boxes, reserved)
    answer = rig.admit("p")
    assert inside(answer, "side")[f"{nvidia_names.ENV_MEMORY_LIMIT}_0"] == "700m"
    assert inside(answer, "main")[f"{nvidia_names.ENV_MEMORY_LIMIT}_0"] == "800m"


def test_over_commit_is_refused_with_card_free_asked_and_hint(rig: Rig) -> None:
    part = Part(uuid=uuid(1), memory_mib=30000)
    rig.place("a", [Box(memory_mib=30000)], {"main": [part]})
    assert rig.admit("a").is_admitted
    rig.place("b", [Box(memory_mib=30000)], {"main": [part]}, is_locked=True)
    refusal = rig.admit("b").refusal
    for word in ("FailedPrecondition", "default/b/main", f"card 1 ({uuid(1)})", "free 10960 MiB"):
        assert word in refusal
    assert "asked 30000 MiB" in refusal
    assert "delete and recreate the pod" in refusal
    assert "\n" not in refusal
    assert rig.bind_phase("b") == names.PHASE_FAILED
    eventually(lambda: not rig.lock_text)
    eventually(lambda: rig.events("AllocationRefused"))
    assert "free 10960 MiB" in rig.events("AllocationRefused")[0]
    assert rig.bind_phase("a") == names.PHASE_SUCCESS
    rig.place("c", [Box(memory_mib=10960)], {"main": [Part(uuid=uuid(1), memory_mib=10960)]})
    assert rig.admit("c").is_admitted


def test_ended_pod_gives_its_slice_back(rig: Rig) -> None:
    part = Part(uuid=uuid(0), memory_mib=40960)
    for name in ("a", "b"):
        rig.place(name, [Box(memory_mib=40960)], {"main": [part]})
        assert rig.admit(name).is_admitted
        rig.end(name)


@pytest.mark.parametrize(
    ("box", "part", "words"),
    [
        (Box(memory_mib=100), {"memory_mib": 9000}, "more memory than the container asks for"),
        (Box(memory_mib=100), {"memory_mib": 0}, "lifts the memory limit"),
        (Box(memory_mib=100, cores=5), {"memory_mib": 100, "cores": 80}, "more cores than"),
        (Box(memory_mib=100, cores=5), {"memory_mib": 100, "cores": 0}, "lifts the core limit"),
        (Box(memory_percent=10), {"memory_mib": 5000}, "more memory than the container asks for"),
    ],
    ids=["memory", "no-memory-limit", "cores", "no-core-limit", "percent"],
)
def test_pod_annotated_by_hand_with_more_than_its_limits_gets_nothing(
    rig: Rig, box: Box, part: dict[str, int], words: str
) -> None:
    rig.place("forged", [box], {"main": [Part(uuid=uuid(0), **part)]})
    answer = rig.admit("forged")
    assert not answer.responses
    assert words in answer.refusal
    assert rig.bind_phase("forged") == names.PHASE_FAILED


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({}, "it did not come through the scheduler"),
        ({nvidia_names.POD_ALLOCATED: "rubbish,1;"}, "its reservation can't be read"),
        (
            {nvidia_names.POD_ALLOCATED: f"{uuid(0)},NVIDIA,1,1:{uuid(1)},NVIDIA,1,1:;"},
            "asks for 1 cards, its reservation has 2",
        ),
        (
            {
                nvidia_names.POD_ALLOCATED: f"{uuid(0)},NVIDIA,1000,0:;",
                nvidia_names.POD_TO_ALLOCATE: ";",
            },
            "used up before",
        ),
        (
            {
                nvidia_names.POD_ALLOCATED: "GPU-other,NVIDIA,1000,0:;",
                nvidia_names.POD_TO_ALLOCATE: "GPU-other,NVIDIA,1000,0:;",
            },
            "the reserved card is not on this node: card GPU-other",
        ),
    ],
    ids=["none", "unreadable", "other-count", "used-up", "card-of-another-node"],
)
def test_pod_without_a_reservation_of_its_own_is_refused_by_name(
    rig: Rig, annotations: dict[str, str], words: str
) -> None:
    rig.place("good", [Box(memory_mib=1000)], {"main": [Part(uuid=uuid(0), memory_mib=1000)]})
    rig.bind("bare", [Box(memory_mib=1000)], annotations)
    answer = rig.admit("bare")
    assert "default/bare/main" in answer.refusal
    assert words in answer.refusal
    assert rig.bind_phase("bare") == names.PHASE_FAILED
    eventually(lambda: rig.events("AllocationRefused"))
    assert rig.admit("good").is_admitted


def test_limiter_files_missing_container_is_refused_with_a_hint(rig: Rig) -> None:
    rig.take_limiter()
    rig.place("a", [Box(memory_mib=1000)], {"main": [Part(uuid=uuid(0), memory_mib=1000)]})
    refusal = rig.admit("a").refusal
    assert "libvgpu.so" in refusal
    assert "--limiter optional" in refusal
    rig.lay_limiter()
    rig.place("b", [Box(memory_mib=1000)], {"main": [Part(uuid=uuid(0), memory_mib=1000)]})
    assert rig.admit("b").is_admitted


def test_limiter_optional_files_missing_container_is_served_without_mounts(node: Rig) -> None:
    node.take_limiter()
    node.start(limiter="optional")
    node.place("a", [Box(memory_mib=1000)], {"main": [Part(uuid=uuid(0), memory_mib=1000)]})
    answer = node.admit("a")
    assert answer.is_admitted
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


def test_finished_and_refused_pods_in_the_list_are_never_meant(old_kubelet: Rig) -> None:
    rig = old_kubelet
    full = Part(uuid=uuid(0), memory_mib=40000)
    rig.place("holder", [Box(memory_mib=40000)], {"main": [full]})
    assert rig.admit("holder").is_admitted
    for n in range(4):
        rig.place(f"refused{n}", [Box(memory_mib=40000)], {"main": [full]})
        assert not rig.admit(f"refused{n}").is_admitted
        rig.place(
            f"done{n}",
            [Box(memory_mib=100 + n)],
            {"main": [Part(uuid=uuid(1), memory_mib=100 + n)]},
        )
        assert rig.admit(f"done{n}").is_admitted
        rig.set_phase(f"done{n}", "Succeeded")
    for n in range(6):
        memory = 500 + n
        rig.place(
            f"next{n}", [Box(memory_mib=memory)], {"main": [Part(uuid=uuid(2), memory_mib=memory)]}
        )
        answer = rig.admit(f"next{n}")
        assert answer.is_admitted, answer.refusal
        assert inside(answer)[f"{nvidia_names.ENV_MEMORY_LIMIT}_0"] == f"{memory}m"


def test_socket_of_pod_resources_gone_lock_owner_decides(rig: Rig) -> None:
    rig.kubelet._pod_resources_socket.unlink()
    for name, memory in (("a", 1000), ("b", 2000)):
        rig.place(name, [Box(memory_mib=memory)], {"main": [Part(uuid=uuid(0), memory_mib=memory)]})
    answer = rig.admit("a")
    assert "the node is locked for no pod" in answer.refusal
    rig.lock("b")
    rig.place("x", [Box(memory_mib=2000)], {"main": [Part(uuid=uuid(0), memory_mib=2000)]})
    answer = rig.admit("x")
    assert "the node lock, which is default/b's, does not tell" in answer.refusal
    assert "waiting for 1 nvidia.com/gpu: default/b/main, default/x/main" in answer.refusal
    rig.set_phase("b", "Failed")
    rig.place(
        "c", [Box(memory_mib=3000)], {"main": [Part(uuid=uuid(0), memory_mib=3000)]}, is_locked=True
    )
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


def test_init_container_borrows_from_the_first_app_that_covers_it(rig: Rig) -> None:
    boxes = [
        Box(name="setup", memory_mib=2000, kind=ContainerKind.INIT),
        Box(name="small", memory_mib=1000),
        Box(name="large", memory_mib=3000),
    ]
    reserved = {
        "small": [Part(uuid=uuid(1), memory_mib=1000)],
        "large": [Part(uuid=uuid(2), memory_mib=3000)],
    }
    rig.place("p", boxes, reserved, Generation.V2_7)
    answer = rig.admit("p")
    assert answer.is_admitted, answer.refusal
    env = inside(answer, "setup")
    assert (env[nvidia_names.ENV_VISIBLE_DEVICES], env[f"{nvidia_names.ENV_MEMORY_LIMIT}_0"]) == (
        uuid(2),
        "2000m",
    )
