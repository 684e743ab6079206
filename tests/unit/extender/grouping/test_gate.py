"""A group gets its cards as a whole, or nothing; two groups never wait for each other."""

from __future__ import annotations

import random

import pytest

from hami_node.engine.fleet.fleet import Unfinished
from hami_node.errors import KubeError
from hami_node.extender.grouping.gate import HOLD_S
from hami_node.extender.grouping.rests import MAX_BROKEN_S, MAX_REFUSED_S
from hami_node.extender.releaser import Releaser
from hami_node.extender.state.unbound.held_rooms import PREFIX
from hami_node.extender.state.unbound.later_failures import SETTLING_S
from hami_node.simulate.store import Json
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.fakes.pods import Box
from tests.unit.extender.desk import MEMORY_MIB, Desk
from tests.unit.extender.test_releaser import given_up


def add(desk: Desk, name: str, group: str, minimum: int | str, *, cards: int = 1) -> None:
    notes = {names.POD_GROUP: group, names.POD_GROUP_MIN: str(minimum)}
    desk.add_pod(name, Box(cards=cards, memory_mib=MEMORY_MIB), annotations=notes)


def group(desk: Desk, name: str, count: int, minimum: int | None = None) -> list[str]:
    """The names of its pods, which the watch shows."""
    pods = [f"{name}{at}" for at in range(count)]
    for pod in pods:
        add(desk, pod, name, minimum or count)
    desk.sync()
    return pods


def look(desk: Desk, seconds: float = 0.0) -> None:
    desk.clock.advance(seconds)
    Releaser(desk.state, desk.writer, desk.clock, desk.fence, desk.groups).look()
    desk.sync()


def rooms(desk: Desk) -> int:
    return sum(key.startswith(PREFIX) for key in desk.held())


def bind(desk: Desk, name: str) -> None:
    assert desk.bind(name, str(desk.state.reservation_of(f"uid-{name}"))) == ""
    desk.sync()


@pytest.fixture
def desk() -> Desk:
    """Two nodes with two cards each."""
    return Desk("n1", "n2", cards=2)


def test_group_that_fits_gets_all_it_needs(desk: Desk) -> None:
    pods = group(desk, "a", 4)
    for at, name in enumerate(pods):
        assert desk.choose(name)
        assert rooms(desk) == 3 - at
    for name in pods:
        bind(desk, name)
    look(desk)
    assert desk.held() == dict.fromkeys(pods, MEMORY_MIB)
    assert desk.groups._promises == {}


def test_group_that_is_too_large_gets_nothing_and_is_told_why(desk: Desk) -> None:
    pods = group(desk, "a", 5)
    error = desk.ask(pods[0])["Error"]
    assert "default/a of 5 does not fit as a whole: 4 more have to get cards at once" in error
    assert "there is room for 3" in error
    assert desk.held() == {}


def test_second_group_gets_nothing_while_the_first_one_is_on_its_way(desk: Desk) -> None:
    first, second = group(desk, "a", 3), group(desk, "b", 3)
    for name in (first[0], second[0], second[1], first[1], second[2], first[2]):
        desk.choose(name)
        desk.clock.advance(1.0)
    assert desk.held() == dict.fromkeys(first, MEMORY_MIB)


def test_second_group_runs_after_the_first(desk: Desk) -> None:
    first, second = group(desk, "a", 4), group(desk, "b", 4)
    for name in first:
        assert desk.choose(name)
        bind(desk, name)
    assert not desk.choose(second[0])
    for name in first:
        desk.delete_pod(name)
    desk.sync()
    look(desk, 1.0)
    assert all(desk.choose(name) for name in second)


def test_plain_pods_don_t_take_what_is_held(desk: Desk) -> None:
    pods = group(desk, "a", 4)
    desk.choose(pods[0])
    desk.add_pod("plain", memory_mib=100)
    assert not desk.choose("plain")
    assert all(desk.choose(name) for name in pods)


def test_group_waits_until_its_pods_exist(desk: Desk) -> None:
    # nobody holds cards of others with a number
    add(desk, "a0", "a", 4)
    assert "has 1 of 4 pods: 3 more have to be created" in desk.ask("a0")["Error"]
    assert desk.held() == {}


def test_more_pods_than_the_minimum_are_ordinary(desk: Desk) -> None:
    pods = group(desk, "a", 5, minimum=2)
    assert [bool(desk.choose(name)) for name in pods] == [True] * 4 + [False]
    assert rooms(desk) == 0


def test_extra_member_may_come_instead_of_the_expected_one(desk: Desk) -> None:
    pods = group(desk, "a", 5, minimum=4)
    assert all(desk.choose(name) for name in reversed(pods[1:]))
    assert rooms(desk) == 0


def test_pod_that_is_filtered_again_takes_nobody_s_room(desk: Desk) -> None:
    pods = group(desk, "a", 4)
    assert desk.choose(pods[0])
    assert desk.choose(pods[0])
    with desk.state.binding(desk.pod(pods[0])):
        assert "is being bound" in desk.ask(pods[0])["Error"]
    assert rooms(desk) == 3


def test_members_that_don_t_come_cost_the_group_its_cards(desk: Desk) -> None:
    pods = group(desk, "a", 4)
    desk.choose(pods[0])
    desk.choose(pods[1])
    look(desk, HOLD_S - 1)
    assert len(desk.held()) == 4
    look(desk, 2)
    assert desk.held() == {}
    assert "others have a turn" in desk.ask(pods[0])["Error"]
    assert desk.choose(group(desk, "b", 4)[0])


def test_member_that_fails_gives_back_the_cards_of_all_that_are_not_bound(desk: Desk) -> None:
    pods = group(desk, "a", 4)
    for name in pods[:3]:
        desk.choose(name)
    bind(desk, pods[0])
    given_up(desk, pods[1])
    desk.sync()
    look(desk, SETTLING_S)
    assert desk.held() == {pods[0]: MEMORY_MIB}
    assert names.POD_NODE not in desk.notes_of(pods[2])
    desk.clock.advance(60.0)
    assert all(desk.choose(name) for name in pods[1:])


def test_member_whose_binding_fails_gives_back_the_cards_of_all(desk: Desk) -> None:
    pods = group(desk, "a", 4)
    for name in pods[:3]:
        desk.choose(name)
    desk.kube.fail("bind_pod", KubeError("no", 403))
    assert desk.bind(pods[0], str(desk.state.reservation_of(f"uid-{pods[0]}")))
    desk.sync()
    look(desk)
    assert desk.held() == {}
    assert "others have a turn" in desk.ask(pods[1])["Error"]


def test_member_that_is_being_bound_keeps_its_cards(desk: Desk) -> None:
    pods = group(desk, "a", 3)
    for name in pods[:2]:
        desk.choose(name)
    given_up(desk, pods[1])
    desk.sync()
    with desk.state.binding(desk.pod(pods[0])):
        look(desk, SETTLING_S)
        assert desk.held() == {pods[0]: MEMORY_MIB}


def test_slow_binding_of_a_group_that_is_all_there_is_waited_for(desk: Desk) -> None:
    pods = group(desk, "a", 3)
    for name in pods:
        desk.choose(name)
    look(desk, 3 * HOLD_S)
    assert len(desk.held()) == 3


def test_deleted_member_s_room_goes_to_the_one_in_its_place(desk: Desk) -> None:
    pods = group(desk, "a", 4)
    desk.choose(pods[0])
    desk.delete_pod(pods[3])
    add(desk, "new", "a", 4)
    desk.sync()
    assert all(desk.choose(name) for name in [*pods[1:3], "new"])
    assert rooms(desk) == 0


def test_group_that_breaks_again_and_again_rests_longer_and_longer(desk: Desk) -> None:
    pods = group(desk, "a", 4)
    rests = []
    for _ in range(6):
        assert desk.choose(pods[0])
        look(desk, HOLD_S + 1)
        assert desk.held() == {}
        begun_s = desk.clock.monotonic()
        while "others have a turn" in str(desk.ask(pods[0])["Error"]):
            desk.clock.advance(1.0)
        desk.groups.clear()
        desk.state.release("uid-" + pods[0])
        rests.append(desk.clock.monotonic() - begun_s)
    assert rests == sorted(rests)
    assert rests[0] >= HOLD_S
    assert rests[-1] == pytest.approx(MAX_BROKEN_S, abs=2.0)


def of_run(desk: Desk, names_: list[str], run: str) -> None:
    """They belong to the Job with this uid."""

    def owned(body: Json) -> Json:
        owner = {"uid": run, "controller": True}
        return body | {"metadata": body["metadata"] | {"ownerReferences": [owner]}}

    for name in names_:
        desk.kube.store.change("pods", "default", name, owned)
    desk.sync()


def test_pods_of_an_earlier_run_don_t_complete_a_group(desk: Desk) -> None:
    ended = group(desk, "a", 4)
    of_run(desk, ended, "first")
    for name in ended:
        assert desk.choose(name)
        bind(desk, name)
        desk.edit_pod(name, status={"phase": "Succeeded"})
    desk.sync()
    look(desk)
    pods = [f"again{at}" for at in range(4)]
    for pod in pods:
        add(desk, pod, "a", 4)
    of_run(desk, pods, "second")
    assert desk.choose(pods[0])
    look(desk)
    assert rooms(desk) == 3
    assert all(desk.choose(name) for name in pods[1:])


def test_groups_of_two_namespaces_are_two_groups(desk: Desk) -> None:
    pods = group(desk, "a", 2)
    other = {"metadata": {"name": "x", "namespace": "other", "uid": "x"}}
    other["metadata"]["annotations"] = desk.notes_of(pods[0])  # type: ignore[assignment]
    other |= {"spec": desk.kube.store.read("pods", "default", pods[0])["spec"]}
    desk.kube.store.create("pods", "other", other)
    assert "other/a has 1 of 2 pods" in desk.ask(other)["Error"]
    assert desk.choose(pods[0])


@pytest.mark.parametrize("minimum", ["four", "0", "1001", ""])
def test_wrong_minimum_is_refused_on_every_node(desk: Desk, minimum: str) -> None:
    add(desk, "a0", "a", minimum)
    answer = desk.ask("a0")
    assert set(answer["FailedAndUnresolvableNodes"]) == {"n1", "n2"}
    assert names.POD_GROUP_MIN in answer["FailedAndUnresolvableNodes"]["n1"]


def test_members_that_don_t_agree_are_refused(desk: Desk) -> None:
    add(desk, "a0", "a", 2)
    add(desk, "a1", "a", 3)
    desk.sync()
    why = desk.ask("a0")["FailedAndUnresolvableNodes"]["n1"]
    assert "has to have one minimum: a1 says 3, this pod 2" in why


def test_member_without_cards_needs_no_room(desk: Desk) -> None:
    notes = {names.POD_GROUP: "a", names.POD_GROUP_MIN: "3"}
    desk.add_pod("launcher", Box(cards=0), annotations=notes)
    add(desk, "a0", "a", 3)
    add(desk, "a1", "a", 3)
    desk.sync()
    assert desk.choose("a0")
    assert rooms(desk) == 1


def test_member_is_trialled_with_its_own_request(desk: Desk) -> None:
    add(desk, "a0", "a", 2)
    add(desk, "a1", "a", 2, cards=3)
    desk.sync()
    assert "there is room for 0" in desk.ask("a0")["Error"]
    assert desk.held() == {}


def test_new_leader_holds_nothing_of_the_former_one(desk: Desk) -> None:
    desk.choose(group(desk, "a", 4)[0])
    desk.groups.clear()
    assert rooms(desk) == 0


def test_pod_that_is_gone_by_then_leaves_nothing(desk: Desk) -> None:
    pods = group(desk, "a", 4)
    stored = desk.kube.store.read("pods", "default", pods[0])
    desk.delete_pod(pods[0])
    desk.ask(stored)
    desk.sync()
    look(desk, HOLD_S + 1)
    assert desk.held() == {}


def test_nothing_is_remembered_of_members_that_are_gone(desk: Desk) -> None:
    pods = group(desk, "a", 4)
    assert desk.choose(pods[0])
    members = desk.groups.members
    assert members._requests.keys() == {f"uid-{pod}" for pod in pods[1:]}
    desk.edit_pod(pods[1], annotations={"example.com/note": "x"})
    shown = desk.shown_pods[f"default/{pods[1]}"]
    desk.sync()
    members.request_of(shown)  # as it was before
    for pod in pods[2:]:
        desk.delete_pod(pod)
    desk.sync()
    assert (members._requests, members._listed) == ({}, 0)


def test_members_that_list_many_cards_are_not_all_remembered(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hami_node.extender.grouping.members.MAX_LISTED", 5)
    pods = group(desk, "a", 4)
    for pod in pods[1:]:
        desk.edit_pod(pod, annotations={nvidia_names.NOUSE_GPU_UUID: "GPU-x,GPU-y,GPU-z"})
    desk.sync()
    assert desk.choose(pods[0])
    members = desk.groups.members
    assert (len(members._requests), members._listed) == (1, 3)
    assert all(desk.choose(pod) for pod in pods[1:])


@pytest.mark.parametrize("seed", range(10))
def test_random_groups_are_placed_whole_and_leave_nothing(seed: int) -> None:
    rng = random.Random(seed)
    desk = Desk("n1", "n2", "n3", cards=2)
    sizes = {f"g{at}-": rng.randint(2, 7) for at in range(3)}
    pods = {pod: name for name, size in sizes.items() for pod in group(desk, name, size)}
    placed: set[str] = set()
    for _ in range(150):
        pod = rng.choice(list(pods))
        match rng.randrange(8):
            case 0:
                look(desk, rng.choice([0.3, 5.0, 40.0]))
            case 1 if pod in placed and not desk.pod(pod).node_name:
                given_up(desk, pod, str(rng.random()))
                desk.sync()
            case 2 if desk.state.reservation_of(f"uid-{pod}") and not desk.pod(pod).node_name:
                desk.bind(pod, desk.state.reservation_of(f"uid-{pod}"))
                desk.sync()
            case _ if not desk.pod(pod).node_name:
                if desk.choose(pod):
                    placed.add(pod)
        held = desk.held()
        for name, size in sizes.items():
            members = [p for p in pods if pods[p] == name]
            own = sum(p in held or f"{PREFIX}uid-{p}" in held for p in members)
            is_begun = name in {key.partition("/")[2] for key in desk.groups._promises}
            assert not is_begun or own == size
            if size > 6:
                assert own == 0, "the group can never run"
        assert len(held) <= 6
    for pod in pods:
        desk.delete_pod(pod)
    desk.sync()
    look(desk, HOLD_S + 1)
    assert desk.held() == {}
    assert desk.groups._promises == {}


def test_call_that_looks_for_room_for_too_long_gives_all_back_and_says_so(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = group(desk, "a", 4)
    monkeypatch.setattr("hami_node.extender.grouping.gate.HOLDING_S", -1.0)
    error = desk.ask(pods[0])["Error"]
    assert "default/a of 4 takes long to place" in error
    assert "room was found for 1" in error
    assert desk.held() == {}
    monkeypatch.undo()
    desk.clock.advance(MAX_REFUSED_S)
    assert all(desk.choose(name) for name in pods)


def test_member_that_takes_long_to_place_gives_all_back_until_the_next_call(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = group(desk, "a", 4)
    monkeypatch.setattr(desk.state.held, "_hold", lambda *_: Unfinished())
    error = desk.ask(pods[0])["Error"]
    assert "takes long to place" in error
    assert "room was found for 0" in error
    assert desk.held() == {}
    monkeypatch.undo()
    desk.clock.advance(MAX_REFUSED_S)
    assert all(desk.choose(name) for name in pods)
