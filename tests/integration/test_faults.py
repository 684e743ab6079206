"""Whatever the API server does at whatever step, and wherever the process dies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hami_node.errors import AllocationError
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.on_node.answer import ContainerResponse
from hami_node.wire import names
from tests.fakes.cards import uuid
from tests.fakes.pods import Box, Part
from tests.integration.desk import AllocatingDaemon, Fate, Killed, World

BOX = Box(memory_mib=3000, cores=30)
MINE = {"main": [Part(uuid=uuid(1), memory_mib=3000, cores=30)]}
IDS = [f"{uuid(0)}-4"]  # another card than the reserved one: an ID is only a token
HTTP = [409, 429, 500]
BROKEN = ["reset", "reset-after", "hang"]


@pytest.fixture
def world() -> Iterator[World]:
    with World() as made:
        yield made


def is_mine(answer: ContainerResponse) -> bool:
    env = dict(answer.envs)
    return (env[nvidia_names.ENV_VISIBLE_DEVICES], env[f"{nvidia_names.ENV_MEMORY_LIMIT}_0"]) == (
        uuid(1),
        "3000m",
    )


def assert_next_pod_works(world: World, desk: AllocatingDaemon) -> None:
    """After the faults: the lock goes, another pod is served, and it alone is charged."""
    world.api.faults.clear()
    desk.wait_seen()
    desk.keeper.look()
    desk.wait_seen()
    assert not world.lock_text
    box = Box(memory_mib=37000, cores=70)
    parts = {"main": [Part(uuid=uuid(1), memory_mib=37000, cores=70)]}
    world.place("next", [box], parts)
    env = dict(world.allocate("next", [f"{uuid(2)}-0"]).envs)
    assert env[nvidia_names.ENV_VISIBLE_DEVICES] == uuid(1)
    assert env[f"{nvidia_names.ENV_MEMORY_LIMIT}_0"] == "37000m"
    assert world.bind_phase("next") == names.PHASE_SUCCESS
    desk.wait_seen()
    desk.keeper.look()
    assert not world.lock_text


# -- one fault -------------------------------------------------------------------------------------
@pytest.mark.parametrize("fault", [*HTTP, *BROKEN], ids=str)
def test_patch_of_the_pod_fails_once_it_is_served_exactly_once(
    world: World, fault: int | str
) -> None:
    desk = world.desk()
    world.place("p", [BOX], MINE)
    world.api.fail_next("patch", "pods", fault)
    assert is_mine(world.allocate("p", IDS))
    assert world.bind_phase("p") == names.PHASE_SUCCESS
    assert world.results == ["ok"]
    assert not world.lock_text
    assert_next_pod_works(world, desk)


@pytest.mark.parametrize("fault", [*HTTP, *BROKEN, 403, 404], ids=str)
@pytest.mark.parametrize("times", [1, 20], ids=["once", "always"])
def test_patch_of_the_lock_fails_the_pod_is_served_and_the_lock_goes_later(
    world: World, fault: int | str, times: int
) -> None:
    desk = world.desk()
    world.place("p", [BOX], MINE)
    world.api.fail_next("patch", "nodes", fault, times)
    assert is_mine(world.allocate("p", IDS))
    assert world.bind_phase("p") == names.PHASE_SUCCESS
    assert_next_pod_works(world, desk)


# -- a fault that stays ----------------------------------------------------------------------------
@pytest.mark.parametrize("fault", [*HTTP, "reset", "hang", 403, 404], ids=str)
def test_patch_of_the_pod_fails_always_it_is_refused_and_the_lock_freed(
    world: World, fault: int | str
) -> None:
    desk = world.desk()
    world.place("p", [BOX], MINE)
    world.api.fail_next("patch", "pods", fault, 20)
    with pytest.raises(AllocationError, match="default/p/main"):
        world.allocate("p", IDS)
    assert world.results == ["refused"]
    assert not world.lock_text
    assert world.reasons == ["AllocationRefused"]
    world.kubelet_fails("p")
    assert_next_pod_works(world, desk)


@pytest.mark.parametrize("verb", ["patch", "create", "*"])
@pytest.mark.parametrize("fault", [409, 500, "reset", "reset-after"], ids=str)
def test_refusal_itself_meets_faults_the_user_still_reads_why(
    world: World, verb: str, fault: int | str
) -> None:
    desk = world.desk()
    too_much = {"main": [Part(uuid=uuid(1), memory_mib=9000, cores=30)]}
    world.place("p", [BOX], too_much)
    world.api.fail_next(verb, "*", fault, 20)
    with pytest.raises(AllocationError, match="more memory than the container asks for"):
        world.allocate("p", IDS)
    world.kubelet_fails("p")
    assert_next_pod_works(world, desk)


def test_reservation_rewritten_while_it_is_served_is_refused(world: World) -> None:
    desk = world.desk()
    world.place("p", [BOX], MINE)
    desk.close()  # the watch stops: what it shows is old from now on
    other = str(Part(uuid=uuid(3), memory_mib=3000, cores=30)) + ";"
    world.api.annotate(
        "pods",
        "p",
        {nvidia_names.POD_ALLOCATED: other, nvidia_names.POD_TO_ALLOCATE: other},
        "default",
    )
    with pytest.raises(AllocationError, match="its reservation was rewritten while it was served"):
        world.allocate("p", IDS)
    assert world.bind_phase("p") == names.PHASE_FAILED


def test_other_pod_of_the_same_name_is_not_touched(world: World) -> None:
    desk = world.desk()
    world.place("p", [BOX], MINE)
    desk.close()
    world.api.delete("pods", "p", "default")
    body_of_another = {"metadata": {"name": "p", "namespace": "default", "uid": "uid-another"}}
    world.api.create("pods", body_of_another)
    with pytest.raises(AllocationError):
        world.allocate("p", IDS)
    assert names.POD_BIND_PHASE not in world.pod("p").annotations


# -- kill -9 ---------------------------------------------------------------------------------------
def steps_of_a_call() -> int:
    """How many calls to collaborators an Allocate makes, and what it owes after the answer."""
    fate = Fate()
    with World() as world:
        world.desk(fate)
        world.place("p", [BOX], MINE)
        world.allocate("p", IDS)
    wanted = {"list", "limiter", "prepare", "save", "json_patch_pod", "json_patch_node"}
    assert wanted <= set(fate.calls)
    return len(fate.calls)


def is_answered(world: World) -> bool:
    """Whether kubelet got the answer before the end."""
    return bool(world.listed.held["default", "p"]["main"])


@pytest.mark.parametrize("lists_ended_pods", [False, True], ids=["1.34", "before-1.34"])
@pytest.mark.parametrize("is_after", [False, True], ids=["before-the-step", "after-the-step"])
def test_killed_at_any_step_the_next_daemon_frees_the_lock_and_serves_the_next_pod(
    is_after: bool, lists_ended_pods: bool
) -> None:
    for step in range(1, steps_of_a_call() + 1):
        with World() as world:
            world.desk(Fate(at=step, is_after=is_after))
            world.place("p", [BOX], MINE)
            with pytest.raises(Killed):
                world.allocate("p", IDS)
            if not is_answered(world):
                world.kubelet_fails("p", lists_ended_pods=lists_ended_pods)
            assert_next_pod_works(world, world.desk())


@pytest.mark.parametrize("is_after", [False, True], ids=["before-the-step", "after-the-step"])
def test_killed_at_any_step_the_call_made_again_gets_its_own_slice(is_after: bool) -> None:
    """As when kubelet was restarted too and admits the same pod once more."""
    for step in range(1, steps_of_a_call() + 1):
        with World() as world:
            world.desk(Fate(at=step, is_after=is_after))
            world.place("p", [BOX], MINE)
            world.place("q", [Box(memory_mib=8, cards=2)], {"main": []}, is_locked=False)
            del world.listed.held["default", "q"]
            with pytest.raises(Killed):
                world.allocate("p", IDS)
            desk = world.desk()
            assert is_mine(world.allocate("p", IDS))
            assert world.bind_phase("p") == names.PHASE_SUCCESS
            desk.wait_seen()
            desk.keeper.look()
            desk.wait_seen()
            assert not world.lock_text
