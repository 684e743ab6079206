"""What the daemon does with approvals: every transition, and a kill at every step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hami_node.errors import KubeError, RecordError
from hami_node.model import ContainerKind
from hami_node.node.holdings.recorded import answer_of, answer_text
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from hami_node.wire.handshake import encode_read_by
from tests.fakes.cards import uuid
from tests.fakes.limited import LimitedContainer
from tests.fakes.pods import NODE
from tests.fakes.waiting import remove
from tests.reliability import shows
from tests.unit.node.resize.desk import CARD_MIB, KilledError, NodeDesk, answer, part


@pytest.fixture
def desk(tmp_path: Path) -> NodeDesk:
    return NodeDesk(tmp_path)


def pass_(desk: NodeDesk) -> None:
    desk.keeper.look()
    desk.check()


# -- up and down -----------------------------------------------------------------------------------
@pytest.mark.parametrize("layout", ["v0a", "v0", "v1.1", "v1.1x", "v1.2"])
def test_more_is_on_record_before_it_is_in_force(tmp_path: Path, layout: str) -> None:
    desk = NodeDesk(tmp_path)
    box = desk.containers["a"]
    box.path.unlink()
    box.start(dict(answer(4000).envs), (uuid(0),), layout)
    assert not box.allocate(6000)
    id_ = desk.approve("a", part(7000, 50))
    desk.fuse.steps.clear()
    pass_(desk)
    assert (box.limit_mib(), box.cores()) == (7000, 50)
    assert box.allocate(6000)
    assert desk.fuse.steps[::2] == [
        "before the ledger",
        "before the limits",
        "before the ledger",
        "before the pod",
    ]
    assert desk.recorded("a") == desk.reserved("a") == f"{part(7000, 50)};"
    assert desk.state("a") == {
        "id": id_,
        "state": "done",
        "why": f"container main has 7000 MiB, 50 % of {uuid(0)}",
    }
    assert [(note.reason, note.is_warning) for note in desk.events] == [("Resized", False)]
    assert desk.results == ["resized"]
    assert desk.words() == {"uid-a": {"main": [id_, "NVIDIA", f"{part(7000, 50)};"]}}


def test_less_is_in_force_before_it_is_on_record(desk: NodeDesk) -> None:
    box = desk.containers["a"]
    box.allocate(900)
    desk.approve("a", part(1000, 10))
    pass_(desk)
    assert (box.limit_mib(), box.cores()) == (1000, 10)
    assert not box.allocate(200)
    assert desk.recorded("a") == desk.reserved("a") == f"{part(1000, 10)};"
    assert desk.state("a")["state"] == "done"


def test_less_than_is_used_is_refused_and_the_old_limit_restored(desk: NodeDesk) -> None:
    box = desk.containers["a"]
    box.allocate(2500)
    id_ = desk.approve("a", part(1000, 10))
    pass_(desk)
    assert (box.limit_mib(), box.cores()) == (4000, 20)
    assert desk.recorded("a") == desk.reserved("a") == f"{part(4000)};"
    assert (desk.state("a")["id"], desk.state("a")["state"]) == (id_, "refused")
    assert "uses 2500 MiB" in desk.state("a")["why"]
    assert "more than the 1000 MiB" in desk.state("a")["why"]
    assert [(note.reason, note.is_warning) for note in desk.events] == [("ResizeRefused", True)]
    assert desk.words()["uid-a"]["main"] == [id_, "NVIDIA", f"{part(4000)};"]


def test_refusal_is_final_although_its_note_was_lost(desk: NodeDesk) -> None:
    box = desk.containers["a"]
    box.allocate(2500)
    desk.approve("a", part(1000, 10))
    pass_(desk)
    entry = desk.ledger.find("uid-a", "main", "NVIDIA")
    assert entry is not None
    desk.ledger.put(replace(entry, resize=None))  # by an older daemon, or rebuilt from the pod
    box.free()
    pass_(desk)
    assert (box.limit_mib(), desk.recorded("a")) == (4000, f"{part(4000)};")
    desk.approve("a", part(900, 10))
    pass_(desk)
    assert (box.limit_mib(), desk.state("a")["state"]) == (900, "done")


def test_forged_refusal_stops_nothing_that_has_begun(desk: NodeDesk) -> None:
    box = unstarted(desk, part(7000))
    forged = desk.state("a") | {"state": "refused"}
    desk.annotate("a", {names.POD_RESIZE_STATE: json.dumps(forged)})
    box.start(dict(answer(4000).envs), (uuid(0),))
    pass_(desk)
    assert box.limit_mib() == 7000
    assert desk.recorded("a") == f"{part(7000)};"


def test_passes_after_the_end_write_nothing(desk: NodeDesk) -> None:
    desk.approve("a", part(7000))
    pass_(desk)
    steps, events = len(desk.fuse.steps), len(desk.events)
    for _ in range(3):
        pass_(desk)
    assert (len(desk.fuse.steps), len(desk.events)) == (steps, events)


def test_pods_without_an_approval_cost_nothing(desk: NodeDesk) -> None:
    desk.fuse.steps.clear()
    pass_(desk)
    assert desk.fuse.steps == []
    assert desk.kube.calls == []


def test_cards_of_one_container_are_one(tmp_path: Path) -> None:
    desk = NodeDesk(tmp_path, cards=2)
    box = desk.containers["a"]
    box.allocate(3000, place=1)
    desk.approve("a", part(1000, 20, 0) + part(1000, 20, 1))
    pass_(desk)
    assert desk.state("a")["state"] == "refused"
    assert [box.limit_mib(place) for place in (0, 1)] == [4000, 4000]
    desk.approve("a", part(7000, 20, 0) + part(7000, 20, 1))
    pass_(desk)
    assert [box.limit_mib(place) for place in (0, 1)] == [7000, 7000]


def test_repeated_call_gets_the_new_limits_and_the_rest_to_the_byte(desk: NodeDesk) -> None:
    desk.approve("a", part(7000, 50))
    pass_(desk)
    entry = desk.ledger.find("uid-a", "main", "NVIDIA")
    assert entry is not None
    assert answer_of(entry) == answer(7000, cores=50)


def test_container_without_a_memory_limit_gets_none(desk: NodeDesk) -> None:
    entry = desk.ledger.find("uid-b", "main", "NVIDIA")
    assert entry is not None
    whole = f"{part(0)};"
    desk.ledger.put(replace(entry, grants=whole))
    desk.annotate("b", {nvidia_names.POD_ALLOCATED: whole})
    desk.containers["b"].tamper(0)
    desk.approve("b", part(3000))
    desk.keeper.look()
    assert "has no memory limit that could change" in desk.state("b")["why"]
    assert desk.containers["b"].limit_mib() == 0


def test_next_decision_follows_the_last(desk: NodeDesk) -> None:
    for new in (part(7000), part(2000, 5), part(6000, 80)):
        desk.approve("a", new)
        pass_(desk)
        assert desk.recorded("a") == desk.reserved("a") == f"{new};"
        assert desk.state("a")["state"] == "done"
    assert desk.containers["a"].limit_mib() == 6000


# -- what is refused -------------------------------------------------------------------------------
@shows(
    "Z4",
    fault="a tenant forges an approval for more than the card has, where no policy protects it",
    happens="the daemon checks the card's live use, refuses, and restores the reservation",
)
def test_forged_approval_never_over_commits(desk: NodeDesk) -> None:
    desk.approve("a", part(7001))
    pass_(desk)
    assert desk.containers["a"].limit_mib() == 4000
    assert "too little free memory: 7000 MiB are left" in desk.state("a")["why"]
    assert desk.recorded("a") == desk.reserved("a") == f"{part(4000)};"


@pytest.mark.parametrize(
    ("fields", "new", "why"),
    [
        ({"uid": "uid-b"}, part(5000), None),
        ({"vendor": "AMD"}, part(5000), "cards of AMD can't be resized"),
        ({"grants": {"other": f"{part(5000)};"}}, part(5000), "no record of what container other"),
        ({"grants": {"main": "x"}}, part(5000), "not the grants of one container"),
        ({"grants": {"main": ";"}}, part(5000), "not the grants of one container"),
        ({"grants": {"main": f"{part(5000, 20, 7)};"}}, part(5000), "names other cards"),
        ({"grants": {"main": f"{part(5000)}{part(5000)};"}}, part(5000), "names other cards"),
        ({"grants": {"main": f"{part(0)};"}}, part(5000), "would lift a limit"),
        ({"grants": {"main": f"{part(5000, 0)};"}}, part(5000), "would lift a limit"),
        ({"grants": {"main": f"{part(5000, 101)};"}}, part(5000, 101), "would lift a limit"),
        ({}, part(5000), "the pod's reservation holds less"),
    ],
)
def test_approval_that_does_not_fit_the_container_changes_nothing(
    desk: NodeDesk, fields: dict[str, object], new: str, why: str | None
) -> None:
    reserved = f"{part(4000)};" if not fields else None
    desk.approve("a", new, reserved=reserved, **fields)
    pass_(desk)
    pass_(desk)
    assert desk.containers["a"].limit_mib() == 4000
    assert desk.recorded("a") == f"{part(4000)};"
    if why is None:
        assert desk.state("a") == {}
    else:
        assert desk.state("a")["state"] == "refused"
        assert why in desk.state("a")["why"]
        assert len(desk.events) == 1


def test_container_without_the_limiter_is_refused(desk: NodeDesk) -> None:
    entry = desk.ledger.find("uid-a", "main", "NVIDIA")
    assert entry is not None
    bare = replace(answer(4000), mounts=())
    desk.ledger.put(replace(entry, answer=answer_text(bare)))
    desk.approve("a", part(5000))
    pass_(desk)
    assert "was started without the limiter" in desk.state("a")["why"]
    assert desk.reserved("a") == f"{part(4000)};"


def test_container_that_disables_control_is_refused(desk: NodeDesk) -> None:
    def change(body: dict[str, object]) -> dict[str, object]:
        body["spec"]["containers"][0]["env"] = [  # type: ignore[index]
            {"name": nvidia_names.ENV_DISABLE_CONTROL, "value": "true"}
        ]
        return body

    desk.kube.store.change("pods", "default", "a", change)
    desk.approve("a", part(5000))
    pass_(desk)
    assert "runs without limits" in desk.state("a")["why"]


@shows(
    "Z5",
    fault="a pod is to be resized on a node whose scheduler is not our extender",
    happens="the pod is told once, by its state and an Event, that a resize needs our extender",
)
def test_without_our_extender_the_pod_is_told_once(desk: NodeDesk) -> None:
    desk.kube.merge_patch_node("n1", {names.NODE_READ_BY: None})
    desk.annotate("a", {names.POD_RESIZE: '{"main": {"gpumem": 5000}}'})
    for _ in range(3):
        pass_(desk)
    desk.restart()
    pass_(desk)
    assert "hami-node's extender" in desk.state("a")["why"]
    assert len(desk.events) == 1
    desk.annotate("a", {names.POD_RESIZE: '{"main": {"gpumem": 6000}}'})
    pass_(desk)
    assert len(desk.events) == 2


def test_approval_that_no_extender_of_ours_wrote_is_none(desk: NodeDesk) -> None:
    desk.kube.merge_patch_node("n1", {names.NODE_READ_BY: None})
    desk.approve("a", part(7000))
    pass_(desk)
    assert desk.containers["a"].limit_mib() == 4000
    assert "hami-node's extender" in desk.state("a")["why"]


def test_with_our_extender_an_undecided_request_is_its_business(desk: NodeDesk) -> None:
    desk.annotate("a", {names.POD_RESIZE: '{"main": {"gpumem": 5000}}'})
    pass_(desk)
    assert desk.state("a") == {}


# -- what waits ------------------------------------------------------------------------------------
@pytest.mark.parametrize("new", [part(7000), part(1000)])
def test_container_that_has_not_used_its_card_yet_is_waited_for(desk: NodeDesk, new: str) -> None:
    box = desk.containers["a"]
    box.path.unlink()
    desk.approve("a", new)
    for _ in range(3):
        pass_(desk)
    assert desk.state("a")["state"] == "waiting"
    assert "is not there yet" in desk.state("a")["why"]
    assert (desk.events, desk.words()) == ([], {})
    box.path.write_bytes(b"")
    pass_(desk)
    box.start(dict(answer(4000).envs), ())
    pass_(desk)
    assert desk.state("a")["state"] == "waiting"
    box.path.unlink()
    box.start(dict(answer(4000).envs), (uuid(0),))
    pass_(desk)
    assert desk.recorded("a") == f"{new};"
    assert desk.state("a")["state"] == "done"


def test_file_that_names_other_cards_is_not_written(desk: NodeDesk) -> None:
    box = desk.containers["a"]
    box.path.unlink()
    box.start(dict(answer(4000).envs), (uuid(5),))
    desk.approve("a", part(7000))
    pass_(desk)
    assert box.limit_mib() == 4000
    assert "does not name" in desk.state("a")["why"]


def test_card_that_is_lost_for_a_moment_is_waited_for(desk: NodeDesk) -> None:
    desk.approve("a", part(2000))
    cards, desk.cards = desk.cards, []
    desk.keeper.look()
    assert desk.state("a")["state"] == "waiting"
    desk.cards = cards
    pass_(desk)
    assert desk.state("a")["state"] == "done"


# -- kept in force ---------------------------------------------------------------------------------
@shows(
    "Z6",
    fault="a resized container changes its own limit, or restarts with a new usage file",
    happens="the next pass writes the limit of the ledger again",
)
@pytest.mark.parametrize("new", [7000, 2000])
def test_limits_are_kept_in_force(desk: NodeDesk, new: int) -> None:
    desk.approve("a", part(new))
    pass_(desk)
    box = desk.containers["a"]
    box.tamper(9000)
    desk.keeper.look()
    assert box.limit_mib() == new
    box.path.unlink()
    desk.keeper.look()
    box.start(dict(answer(4000).envs), (uuid(0),))
    assert box.limit_mib() == 4000
    desk.keeper.look()
    assert box.limit_mib() == new
    assert desk.results == ["resized", "kept", "kept"]
    desk.restart()
    pass_(desk)
    assert desk.results == ["resized", "kept", "kept"]


def test_containers_that_were_never_resized_are_left_alone(desk: NodeDesk) -> None:
    desk.approve("a", part(7000))
    pass_(desk)
    desk.containers["b"].tamper(9000)
    desk.keeper.look()
    assert desk.containers["b"].limit_mib() == 9000


@pytest.mark.parametrize("hides", [False, True])
def test_suspects_are_compared_although_they_were_never_resized(
    desk: NodeDesk, *, hides: bool
) -> None:
    box = desk.containers["b"]
    if hides:
        box.path.unlink()
        box.start(dict(answer(9000).envs), (uuid(7),))
    box.tamper(9000)
    desk.keeper.suspect({("uid-b", "main", "NVIDIA"), ("uid-gone", "main", "NVIDIA")})
    pass_(desk)
    assert box.limit_mib() == 3000
    assert desk.results == ["kept"]
    assert desk.words() == {}
    box.tamper(9000)
    desk.keeper.look()
    assert box.limit_mib() == 9000, "seen once, compared once"


def test_resized_container_that_hides_its_cards_is_kept_as_well(desk: NodeDesk) -> None:
    desk.approve("a", part(2000))
    pass_(desk)
    box = desk.containers["a"]
    for uuids in ((), (uuid(7),), (uuid(7), uuid(6))):
        box.path.unlink()
        box.start(dict(answer(9000).envs), uuids)
        pass_(desk)
        assert box.limit_mib() == 2000


# -- decisions that change under way ---------------------------------------------------------------
def unstarted(desk: NodeDesk, new: str) -> LimitedContainer:
    """An approval that waits, noted already."""
    box = desk.containers["a"]
    box.path.unlink()
    desk.approve("a", new)
    pass_(desk)
    return box


def test_approval_that_is_replaced_gives_way_to_the_next(desk: NodeDesk) -> None:
    box = unstarted(desk, part(7000))
    desk.approve("a", part(5000))
    pass_(desk)
    box.start(dict(answer(4000).envs), (uuid(0),))
    pass_(desk)
    assert box.limit_mib() == 5000
    assert desk.recorded("a") == desk.reserved("a") == f"{part(5000)};"


def test_approval_that_is_removed_is_taken_back(desk: NodeDesk) -> None:
    box = unstarted(desk, part(7000))
    desk.annotate("a", {names.POD_RESIZE_APPROVED: None})
    box.start(dict(answer(4000).envs), (uuid(0),))
    box.tamper(7000)  # as if it had been written when the daemon was killed
    pass_(desk)
    assert box.limit_mib() == 4000
    assert desk.recorded("a") == f"{part(4000)};"


@shows(
    "Z12",
    fault="a tenant forges an approval that fits nothing while a resize is under way",
    happens="the resize is taken back as if its approval were gone; the forged one is refused once",
)
@pytest.mark.parametrize(
    "forged",
    [
        pytest.param({"grants": {"main": f"{part(5000, index=7)};"}}, id="another card"),
        pytest.param({"grants": {"main": f"{part(0)};"}}, id="no limit"),
        pytest.param({"grants": {"main": "?"}}, id="no grants"),
        pytest.param({"grants": {"main": f"{part(5000)};", "x": f"{part(1)};"}}, id="no container"),
        pytest.param({"vendor": "Nobody"}, id="another vendor"),
    ],
)
def test_forged_approval_keeps_no_resize_open(desk: NodeDesk, forged: dict[str, Any]) -> None:
    box = unstarted(desk, part(7000))
    desk.approve("a", part(5000), **forged)
    box.start(dict(answer(4000).envs), (uuid(0),))
    for _ in range(3):
        pass_(desk)
    assert box.limit_mib() == 4000
    assert desk.recorded("a") == f"{part(4000)};"
    assert desk.state("a")["state"] == "refused"
    assert desk.results == ["refused"]


def test_what_is_used_by_then_is_not_taken_back(desk: NodeDesk) -> None:
    box = unstarted(desk, part(7000))
    box.start(dict(answer(7000).envs), (uuid(0),))
    box.allocate(6000)
    desk.annotate("a", {names.POD_RESIZE_APPROVED: None})
    pass_(desk)
    assert box.limit_mib() == 7000
    assert desk.recorded("a") == f"{part(7000)};"


# -- failures --------------------------------------------------------------------------------------
SCENARIOS = {
    "up": (0, part(7000, 70), "done", f"{part(7000, 70)};"),
    "down": (500, part(1000, 10), "done", f"{part(1000, 10)};"),
    "down below use": (2500, part(1000, 10), "refused", f"{part(4000)};"),
    "memory up, cores down": (3500, part(6000, 5), "done", f"{part(6000, 5)};"),
    "memory down, cores up": (500, part(1000, 80), "done", f"{part(1000, 80)};"),
    "no room": (0, part(7001), "refused", f"{part(4000)};"),
}


def steps_of(tmp_path: Path, used: int, new: str) -> int:
    desk = NodeDesk(tmp_path / "whole")
    desk.containers["a"].allocate(used)
    desk.approve("a", new)
    desk.fuse.steps.clear()
    desk.keeper.look()
    return len(desk.fuse.steps)


@shows(
    "Z7",
    fault="the daemon is killed before or after any write of a resize, once or twice",
    happens="the next one ends it the same way; no limit in force was ever above the ledger's",
)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_kill_at_any_step_changes_nothing_in_the_end(tmp_path: Path, scenario: str) -> None:
    used, new, state, held = SCENARIOS[scenario]
    total = steps_of(tmp_path, used, new)
    assert total >= 4
    for first in range(total):
        for second in (None, 0, 1, 2, 3):
            desk = NodeDesk(tmp_path / f"{first}-{second}")
            box = desk.containers["a"]
            box.allocate(used)
            desk.approve("a", new)
            for kill in (first, second):
                desk.fuse.left = kill
                try:
                    desk.keeper.look()
                except KilledError:
                    desk.check()
                    desk.restart()
            desk.fuse.left = None
            pass_(desk)
            assert desk.state("a")["state"] == state
            assert desk.recorded("a") == desk.reserved("a") == held
            _, _, mib, cores = held.removesuffix(":;").split(",")
            assert (box.limit_mib(), box.cores()) == (int(mib), int(cores))
            assert set(desk.words()) == {"uid-a"}
            remove(tmp_path / f"{first}-{second}")  # megabytes each, for a busy disk to sync


@shows(
    "Z8",
    fault="the API server, the disk or the usage file refuses a write of a resize",
    happens="it is tried again by the next pass, and ends the same way",
)
@pytest.mark.parametrize("is_served", [False, True])
def test_pod_that_can_not_be_written_is_written_later(desk: NodeDesk, *, is_served: bool) -> None:
    desk.kube.fail("json_patch_pod", KubeError("gone", 503), is_served=is_served)
    desk.approve("a", part(7000))
    pass_(desk)
    pass_(desk)
    assert desk.state("a")["state"] == "done"
    assert desk.recorded("a") == f"{part(7000)};"


def test_disk_that_refuses_is_tried_again(desk: NodeDesk) -> None:
    desk.file.error = RecordError("full")
    desk.approve("a", part(7000))
    pass_(desk)
    assert desk.containers["a"].limit_mib() == 4000
    desk.file.error = None
    pass_(desk)
    assert desk.state("a")["state"] == "done"


def test_usage_file_that_is_broken_in_between_is_waited_for(desk: NodeDesk) -> None:
    box = desk.containers["a"]
    whole = box.path.read_bytes()
    desk.approve("a", part(1000))
    box.path.write_bytes(whole[:100])
    pass_(desk)
    assert desk.state("a")["state"] == "waiting"
    box.path.write_bytes(whole)
    pass_(desk)
    assert (desk.state("a")["state"], box.limit_mib()) == ("done", 1000)


def test_two_pods_never_get_the_same_memory(desk: NodeDesk) -> None:
    desk.approve("a", part(6000))
    desk.approve("b", part(6000))
    pass_(desk)
    states = sorted(desk.state(name)["state"] for name in ("a", "b"))
    assert states == ["done", "refused"]
    assert sum(box.limit_mib() for box in desk.containers.values()) <= CARD_MIB


# -- several containers ----------------------------------------------------------------------------
@pytest.fixture
def two(tmp_path: Path) -> NodeDesk:
    """`a`, `b`, and `t` with two containers of 1,000 MiB each."""
    desk = NodeDesk(tmp_path)
    desk.run_two("t", 1000)
    return desk


def approve_two(desk: NodeDesk, x: int, y: int) -> None:
    larger = ";".join(part(max(mib, 1000)) for mib in (x, y)) + ";"
    grants = {"x": f"{part(x)};", "y": f"{part(y)};"}
    desk.approve("t", part(x), reserved=larger, grants=grants)


def both(desk: NodeDesk) -> list[int]:
    return [desk.containers[f"t{each}"].limit_mib() for each in "xy"]


def test_request_for_two_containers_is_carried_out_as_a_whole(two: NodeDesk) -> None:
    approve_two(two, 1500, 400)
    pass_(two)
    assert both(two) == [1500, 400]
    assert two.reserved("t") == f"{part(1500)};{part(400)};"
    assert sorted(two.words()["uid-t"]) == ["x", "y"]


def test_neither_changes_where_one_of_them_uses_too_much(two: NodeDesk) -> None:
    two.containers["ty"].allocate(600)
    approve_two(two, 1500, 400)
    pass_(two)
    assert both(two) == [1000, 1000]
    assert "container y uses 600 MiB" in two.state("t")["why"]
    assert two.reserved("t") == f"{part(1000)};{part(1000)};"


def test_neither_changes_while_one_of_them_has_no_file(two: NodeDesk) -> None:
    content = two.containers["ty"].path.read_bytes()
    two.containers["ty"].path.unlink()
    approve_two(two, 1500, 400)
    pass_(two)
    assert two.state("t")["state"] == "waiting"
    assert two.words() == {}
    two.containers["ty"].path.write_bytes(content)
    pass_(two)
    assert both(two) == [1500, 400]


def test_container_that_the_next_approval_leaves_out_goes_back(two: NodeDesk) -> None:
    content = two.containers["tx"].path.read_bytes()
    two.containers["tx"].path.unlink()
    approve_two(two, 1500, 400)
    pass_(two)
    two.approve("t", part(0), reserved=f"{part(1500)};{part(1000)};", grants={"y": f"{part(800)};"})
    two.containers["tx"].path.write_bytes(content)
    pass_(two)
    pass_(two)
    assert both(two) == [1000, 800]
    entry = two.ledger.find("uid-t", "x", "NVIDIA")
    assert entry is not None
    assert entry.grants == f"{part(1000)};"


@pytest.mark.parametrize(
    ("kinds", "grown", "state"),
    [
        ((ContainerKind.SIDECAR, ContainerKind.INIT), "x", "refused"),
        ((ContainerKind.INIT, ContainerKind.SIDECAR), "y", "done"),
    ],
    ids=["beside the init container", "after it"],
)
def test_sidecar_grows_beside_what_its_init_containers_may_take_again(
    desk: NodeDesk, kinds: tuple[ContainerKind, ...], grown: str, state: str
) -> None:
    mark = {names.NODE_READ_BY: encode_read_by("?", counts_inits=True)}
    desk.kube.merge_patch_node(NODE, mark | {nvidia_names.NODE_HANDSHAKE: "?"})
    desk.run_two("t", 1400, kinds)
    slots = {"x": part(1400), "y": part(1400)} | {grown: part(1700)}
    reserved = "".join(f"{slot};" for slot in slots.values())
    desk.approve("t", "", reserved=reserved, grants={grown: f"{part(1700)};"})
    pass_(desk)
    assert desk.state("t")["state"] == state
