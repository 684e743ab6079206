"""Who is meant, while the list, the watch or the API server fail: its own slice, or a refusal."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc
import pytest

from hami_node.errors import AllocationError, KubeletError
from hami_node.model import ContainerKind
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.on_node.answer import ContainerResponse
from hami_node.wire import names
from tests.fakes.cards import uuid
from tests.fakes.pods import Box, Generation, Part, pod_body
from tests.integration.desk import AllocatingDaemon, Fate, Killed, World
from tests.integration.rig import Rig, inside
from tests.reliability import shows

A = {"main": [Part(uuid=uuid(1), memory_mib=1000)]}
B = {"main": [Part(uuid=uuid(2), memory_mib=3000)]}
A_BOX, B_BOX = Box(memory_mib=1000), Box(memory_mib=3000)
B_IDS = [f"{uuid(2)}-0"]


@pytest.fixture
def world() -> Iterator[World]:
    with World() as made:
        yield made


def limit(answer: ContainerResponse) -> str:
    return dict(answer.envs)[f"{nvidia_names.ENV_MEMORY_LIMIT}_0"]


def bind_both(world: World, *, lock: str = "") -> None:
    """`a` and `b` are bound, the watch shows only `a`, and kubelet admits `b`."""
    world.hidden.add("b")
    world.place("a", [A_BOX], A, is_locked=lock == "a")
    del world.listed.held["default", "a"]  # it waits for its admission
    world.place("b", [B_BOX], B, is_locked=lock == "b")


# -- kubelet's list --------------------------------------------------------------------------------
@shows(
    "N1",
    fault="kubelet's list of pods fails once, and the watch does not show the pod yet",
    happens="the list is asked again within the call; the pod gets its own slice",
)
def test_list_fails_once_while_the_watch_lags_the_pod_gets_its_own_slice(world: World) -> None:
    world.desk()
    bind_both(world)
    world.listed.faults = [KubeletError("DEADLINE_EXCEEDED")]
    assert limit(world.allocate("b", B_IDS)) == "3000m"
    assert world.bind_phase("a") == names.PHASE_ALLOCATING


@shows(
    "N1",
    fault="kubelet's list of pods stays unreadable, and the node is locked for nobody",
    happens="the call is refused; the only pod that the watch shows is not taken for it",
)
def test_list_stays_unreadable_without_a_lock_nobody_is_served(world: World) -> None:
    world.desk()
    world.budget_s = 2.0
    bind_both(world)
    world.listed.faults = [KubeletError("gone")] * 1000
    with pytest.raises(AllocationError, match="locked for no pod"):
        world.allocate("b", B_IDS)
    assert world.bind_phase("a") == names.PHASE_ALLOCATING
    assert world.results == ["refused"]


@pytest.mark.parametrize("lock", ["a", "b"])
@shows(
    "N1",
    fault="kubelet's list stays unreadable, the node is locked, and another pod waits too",
    happens="the call is refused, naming both: the lock does not tell who is being admitted",
)
def test_list_stays_unreadable_and_two_wait_the_lock_decides_nothing(
    world: World, lock: str
) -> None:
    world.desk()
    world.budget_s = 2.0
    bind_both(world, lock=lock)
    world.listed.faults = [KubeletError("gone")] * 1000
    with pytest.raises(AllocationError, match="default/a/main, default/b/main"):
        world.allocate("b", B_IDS)


@shows(
    "N1",
    fault="kubelet's socket of pod resources fails, then hangs for a second",
    happens="asked again over the real socket; each pod gets its own slice",
)
@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED"])
def test_socket_fails_and_hangs_each_pod_gets_its_own_slice(rig: Rig, code: str) -> None:
    rig.kubelet.failing_code = grpc.StatusCode[code]
    rig.place("a", [A_BOX], A)
    rig.place("b", [B_BOX], B)
    rig.kubelet.failing_lists = 3
    answer = rig.admit("b")
    assert answer.is_admitted, answer.refusal
    assert inside(answer)[f"{nvidia_names.ENV_MEMORY_LIMIT}_0"] == "3000m"
    rig.kubelet.failing_lists = 3
    answer = rig.admit("a")
    assert answer.is_admitted, answer.refusal
    assert inside(answer)[f"{nvidia_names.ENV_MEMORY_LIMIT}_0"] == "1000m"


@shows(
    "N1",
    fault="kubelet's list stays unreadable, and a pod has just ended whose room the next one needs",
    happens="the node lock tells who is meant, and the room of the ended pod is free",
)
def test_list_stays_unreadable_the_room_of_an_ended_pod_is_free(world: World) -> None:
    desk = world.desk()
    whole = Box(memory_mib=30000)
    reserved = {"main": [Part(uuid=uuid(1), memory_mib=30000)]}
    world.place("x", [whole], reserved)
    world.allocate("x", [f"{uuid(1)}-0"])
    world.api.edit("pods", "x", lambda body: body["status"].update(phase="Succeeded"), "default")
    world.place("y", [whole], reserved)
    desk.wait_seen()
    world.listed.faults = [KubeletError("gone")] * 1000
    assert limit(world.allocate("y", [f"{uuid(1)}-1"])) == "30000m"


# -- a pod that can't be read ----------------------------------------------------------------------
def leave_behind(world: World, name: str) -> None:
    """A pod that kubelet refused by itself: listed before 1.34, its phase not written yet."""
    world.place(name, [A_BOX], A, is_locked=False)


@shows(
    "N2",
    fault="the pod under admission can't be read at first, and a pod that kubelet refused by "
    "itself is still listed, its phase not written yet",
    happens="the pod is read again, and the other one's phase awaited; it gets its own slice",
)
def test_pod_is_unreadable_at_first_the_other_one_is_not_served(world: World) -> None:
    world.desk()
    leave_behind(world, "x")
    world.hidden.add("y")
    world.place("y", [B_BOX], B, is_locked=False)
    world.api.fail_next("get", "pods", 500, 3)
    later = threading.Timer(0.4, lambda: world.kubelet_fails("x", lists_ended_pods=True))
    later.start()
    assert limit(world.allocate("y", B_IDS)) == "3000m"
    later.join()
    assert world.bind_phase("x") == names.PHASE_FAILED


@shows(
    "N2",
    fault="the pod under admission stays unreadable, and another listed pod waits",
    happens="the call is refused, naming the pod; the other one's slice is not given away",
)
@pytest.mark.parametrize("fault", [500, 403, "hang"], ids=str)
def test_pod_stays_unreadable_nobody_is_served(world: World, fault: int | str) -> None:
    world.desk()
    world.budget_s = 1.0
    leave_behind(world, "x")
    world.hidden.add("y")
    world.place("y", [B_BOX], B, is_locked=False)
    world.api.fail_next("get", "pods", fault, 1000)
    with pytest.raises(AllocationError, match="kubelet lists default/y"):
        world.allocate("y", B_IDS)
    assert world.bind_phase("x") == names.PHASE_ALLOCATING


# -- who can't be meant ----------------------------------------------------------------------------
def assert_next_pods_are_served(world: World) -> None:
    for n in range(3):
        world.place(f"y{n}", [B_BOX], B, is_locked=False)
        assert limit(world.allocate(f"y{n}", [f"{uuid(2)}-{n}"])) == "3000m"


@shows(
    "N3",
    fault="a pod runs without device IDs in kubelet's list: its checkpoint was lost, or the pod "
    "has ended and (before 1.34) its phase lags",
    happens="it is no candidate beside a pod that waits: the next pods are served",
)
def test_served_pod_without_ids_does_not_block_the_next(world: World) -> None:
    desk = world.desk()
    world.place("x", [A_BOX], A)
    world.allocate("x", [f"{uuid(1)}-0"])
    world.api.edit("pods", "x", lambda body: body["status"].update(phase="Running"), "default")
    world.listed.held["default", "x"]["main"] = ()
    desk.wait_seen()
    assert_next_pods_are_served(world)


@shows(
    "N3",
    fault="a pod was admitted before kubelet knew the resource: it runs without device IDs",
    happens="it is no candidate: the next pods are served",
)
def test_pod_that_runs_without_a_reservation_does_not_block_the_next(world: World) -> None:
    desk = world.desk()
    body = pod_body("z", [A_BOX], {}, phase="Pending")
    body["status"]["containerStatuses"] = [{"name": "main", "containerID": "containerd://1"}]
    world.api.create("pods", body)
    world.listed.held["default", "z"] = {"main": ()}
    desk.wait_seen()
    assert_next_pods_are_served(world)


@shows(
    "N3",
    fault="an ended pod is replaced by one of the same name, which the watch does not show yet, "
    "while an older pod is left in kubelet's list (before 1.34)",
    happens="the ended pod is read again; the call is refused rather than given the older one's",
)
def test_namesake_behind_an_ended_pod_is_found_beside_another_that_waits(world: World) -> None:
    desk = world.desk()
    world.budget_s = 2.0
    world.place("web-0", [A_BOX], A, is_locked=False)
    world.api.edit("pods", "web-0", lambda body: body["status"].update(phase="Failed"), "default")
    leave_behind(world, "x")
    desk.wait_seen()
    desk.stop.set()
    desk.view.close()  # the watch stops here
    world.api.delete("pods", "web-0", "default")
    body = pod_body("web-0", [B_BOX], dict(world.pod("x").annotations))
    body["metadata"]["uid"] = "uid-new"
    world.api.create("pods", body)
    with pytest.raises(AllocationError, match="default/web-0/main"):
        desk.allocator.allocate([B_IDS], desk.deadline())


@shows(
    "N3",
    fault="the daemon is killed after the pod was patched and before its answer left, and kubelet "
    "asks again",
    happens="the container gets the recorded answer, to the byte",
)
def test_killed_before_the_answer_the_second_call_gets_the_recorded_bytes(world: World) -> None:
    desk = world.desk(Fate(at=_steps_to_patch(), is_after=True))
    world.place("p", [A_BOX], A, is_locked=False)
    with pytest.raises(Killed):
        world.allocate("p", B_IDS)
    world.results.clear()
    (entry,) = desk.ledger.entries()
    desk = world.desk()
    world.place("q", [Box(memory_mib=1, cards=2)], {"main": [*A["main"], *B["main"]]})
    answer = world.allocate("p", B_IDS)
    assert dict(answer.envs)[nvidia_names.ENV_VISIBLE_DEVICES] == uuid(1)
    assert desk.ledger.entries()[0].answer == entry.answer
    assert world.results == ["repeated"]


def _steps_to_patch() -> int:
    fate = Fate()
    with World() as world:
        world.desk(fate)
        world.place("p", [A_BOX], A, is_locked=False)
        world.allocate("p", B_IDS)
    return fate.calls.index("json_patch_pod") + 1


@shows(
    "N3",
    fault="a container was recorded but never answered, and another that asks for as many cards "
    "waits",
    happens="the call is refused, naming both: it is not known for which of them it is",
)
def test_recorded_but_unanswered_beside_one_that_waits_is_ambiguous(world: World) -> None:
    world.desk(Fate(at=_steps_to_patch(), is_after=True))
    world.place("p", [A_BOX], A, is_locked=False)
    with pytest.raises(Killed):
        world.allocate("p", B_IDS)
    world.desk()
    world.budget_s = 2.0
    world.place("q", [B_BOX], B, is_locked=False)
    with pytest.raises(AllocationError, match="default/p/main, default/q/main"):
        world.allocate("q", B_IDS)


@shows(
    "N3",
    fault="before kubelet 1.34 an ended pod stays in its list without device IDs, and its phase is "
    "not written yet",
    happens="the next pod is served, by the real daemon over the real sockets",
)
def test_ended_pod_whose_phase_lags_does_not_block_the_next(old_kubelet: Rig) -> None:
    rig = old_kubelet
    for n in range(4):
        rig.place(f"x{n}", [A_BOX], A)
        assert rig.admit(f"x{n}").is_admitted
    rig.kubelet.forget_ids(*(f"x{n}" for n in range(4)))
    rig.place("y", [B_BOX], B)
    answer = rig.admit("y")
    assert answer.is_admitted, answer.refusal
    assert inside(answer)[f"{nvidia_names.ENV_MEMORY_LIMIT}_0"] == "3000m"


def test_pod_that_was_read_for_the_choice_is_not_read_again_for_the_call(world: World) -> None:
    desk = world.desk()
    bind_both(world)
    world.api.forget_requests()
    chosen = desk.allocator.prefer([f"{uuid(1)}-0", *B_IDS], [], 1, desk.deadline())
    assert chosen == B_IDS
    assert limit(world.allocate("b", chosen)) == "3000m"
    read = [item.name for item in world.api.requests(verb="get", resource="pods")]
    assert read == ["b"]


def test_call_for_two_containers_at_once_never_gets_one_slice_twice(world: World) -> None:
    desk = world.desk()
    boxes = [Box(name="a", memory_mib=1000), Box(name="b", memory_mib=3000)]
    world.place("p", boxes, {"a": A["main"], "b": B["main"]}, is_locked=False)
    with pytest.raises(AllocationError, match="2 containers at once"):
        desk.allocator.allocate([[f"{uuid(1)}-0"], B_IDS], desk.deadline())


def test_ended_pods_that_an_old_kubelet_lists_are_not_read_for_each_call(world: World) -> None:
    desk = world.desk()
    for name in "abcd":
        world.place(name, [A_BOX], A, is_locked=False)
        world.allocate(name, [f"{uuid(1)}-0"])
        world.kubelet_fails(name, lists_ended_pods=True)
        world.listed.held["default", name] = {"main": ()}
    desk.wait_seen()
    world.api.forget_requests()
    for name in "xy":
        world.place(name, [A_BOX], A, is_locked=False)
        world.allocate(name, [f"{uuid(1)}-{name}"])
    read = [item.name for item in world.api.requests(verb="get", resource="pods")]
    assert len(read) <= 4, read


@shows(
    "N3",
    fault="kubelet is killed while an init container is served, and a new one asks again",
    happens="the init container gets its own slice again, not the one after it",
)
def test_answer_for_a_kubelet_that_is_gone_does_not_count_as_given(world: World) -> None:
    desk = world.desk()
    boxes = [Box(name="i", memory_mib=1000, kind=ContainerKind.INIT), B_BOX]
    world.place("p", boxes, {"i": A["main"], "main": B["main"]}, is_locked=False)
    first = desk.allocator.allocate([[f"{uuid(1)}-0"]], desk.deadline())[0]
    world.lifecycle.registrations += 1
    again = desk.allocator.allocate([[f"{uuid(1)}-1"]], desk.deadline())[0]
    assert limit(first) == limit(again) == "1000m"
    own = desk.allocator.allocate([[f"{uuid(1)}-1"]], desk.deadline())[0]
    assert limit(own) == "3000m"


def pulling(world: World) -> AllocatingDaemon:
    """A pod whose only container with cards is an init container that was served."""
    desk = world.desk()
    boxes = [Box(name="i", memory_mib=1000, kind=ContainerKind.INIT), Box(name="main", cards=0)]
    world.place("p", boxes, {"i": A["main"]}, is_locked=False)
    world.listed.held["default", "p"] = {"main": ()}
    desk.allocator.allocate([[f"{uuid(1)}-0"]], desk.deadline())
    world.place("q", [B_BOX], B, is_locked=False)
    return desk


def test_served_init_container_that_has_not_started_does_not_block_the_next(world: World) -> None:
    desk = pulling(world)
    assert limit(desk.allocator.allocate([B_IDS], desk.deadline())[0]) == "3000m"


@pytest.mark.parametrize(
    "forged",
    [
        {nvidia_names.POD_TO_ALLOCATE: ";", names.POD_BIND_PHASE: "success"},
        {names.POD_BIND_PHASE: names.PHASE_FAILED},
    ],
    ids=["used-up", "failed"],
)
def test_pod_without_a_reservation_never_gets_what_a_served_init_container_has(
    world: World, forged: dict[str, str]
) -> None:
    world.budget_s = 2.0
    desk = pulling(world)
    world.api.annotate("pods", "q", forged, "default")
    desk.wait_seen()
    with pytest.raises(AllocationError):
        desk.allocator.allocate([B_IDS], desk.deadline())


@pytest.mark.parametrize("ids", [f"{uuid(1)}-0", f"{uuid(1)}-1"], ids=["same", "others"])
def test_namesake_that_the_watch_has_not_shown_gets_its_own_slice(world: World, ids: str) -> None:
    desk = world.desk()
    world.place("x", [B_BOX], B, is_locked=False)
    notes = dict(world.pod("x").annotations)
    world.api.delete("pods", "x", "default")
    del world.listed.held["default", "x"]
    world.place("web-0", [A_BOX], A, is_locked=False)
    first = desk.allocator.allocate([[f"{uuid(1)}-0"]], desk.deadline())[0]
    world.listed.held["default", "web-0"]["main"] = ()
    desk.wait_seen()
    desk.stop.set()
    desk.view.close()  # its watch shows nothing more
    world.api.delete("pods", "web-0", "default")
    body = pod_body("web-0", [B_BOX], notes)
    body["metadata"]["uid"] = "uid-new"
    world.api.create("pods", body)
    own = desk.allocator.allocate([[ids]], desk.deadline())[0]
    assert (limit(first), limit(own)) == ("1000m", "3000m")


def test_served_pod_that_an_old_kubelet_lists_without_ids_does_not_block_the_next(
    world: World,
) -> None:
    desk = world.desk()
    world.place("p", [A_BOX], A, is_locked=False)
    desk.allocator.allocate([[f"{uuid(1)}-0"]], desk.deadline())
    world.listed.held["default", "p"]["main"] = ()
    world.place("q", [B_BOX], B, is_locked=False)
    assert limit(desk.allocator.allocate([B_IDS], desk.deadline())[0]) == "3000m"


def test_reservation_that_changes_while_it_is_borrowed_serves_nobody(world: World) -> None:
    desk = world.desk()
    boxes = [Box(name="i", memory_mib=1000, kind=ContainerKind.INIT), B_BOX]
    world.place("p", boxes, B, Generation.V2_7, is_locked=False)
    other = {nvidia_names.POD_ALLOCATED: f"{uuid(1)},NVIDIA,9000,0:;"}
    world.disk = lambda _: world.api.annotate("pods", "p", other, "default")
    with pytest.raises(AllocationError, match="its reservation changed while it was served"):
        desk.allocator.allocate([B_IDS], desk.deadline())
    assert desk.ledger.entries() == ()


def test_ids_that_kubelet_gives_twice_serve_nobody_with_anothers_slice(world: World) -> None:
    """Under load kubelet has given a new pod the IDs that it still listed with another."""
    desk = world.desk()
    world.place("old", [A_BOX], {"main": [Part(uuid=uuid(1), memory_mib=1000)]})
    ids = [f"{uuid(1)}-0"]
    world.allocate("old", ids)
    world.place("new", [B_BOX], {"main": [Part(uuid=uuid(1), memory_mib=3000)]})
    with pytest.raises(AllocationError, match=r"shows these devices with default/old/main.*new"):
        desk.allocator.allocate([ids], desk.deadline())
    assert world.pod("new").annotations[nvidia_names.POD_TO_ALLOCATE] != ";"
