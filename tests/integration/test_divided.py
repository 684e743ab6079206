"""Allocate on divided cards: parts are made before the answer, in time, and named on the pod."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from hami_node.errors import AllocationError
from hami_node.model import ContainerKind, Device
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.mig.layout import (
    MigLayout,
    MigPlacement,
    MigProfile,
    MigTemplate,
)
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.on_node.answer import ContainerResponse, MadePart
from hami_node.wire import names
from tests.fakes.cards import card, uuid
from tests.fakes.parts import FakeParts, PartResponder
from tests.fakes.pods import Box, Generation, Part
from tests.integration.desk import Fate, Killed, World
from tests.reliability import shows

ROWS = nvidia_names.POD_MIG_ALLOCATIONS
SMALL = MigProfile(
    name="1g.5gb",
    memory_mib=4864,
    cores=15,
    slice_count=1,
    placements=tuple(MigPlacement(start=start, size=1) for start in range(7)),
)
MIDDLE = MigProfile(
    name="2g.10gb",
    memory_mib=9856,
    cores=29,
    slice_count=2,
    placements=tuple(MigPlacement(start=start, size=2) for start in (0, 2, 4)),
)
GEOMETRY = (
    MigTemplate(name="2g.10gb", memory_mib=10240, cores=29, count=3),
    MigTemplate(name="1g.5gb", memory_mib=5120, cores=15, count=1),
)
BOX = Box(memory_mib=4000)
PART = Part(uuid=uuid(0), memory_mib=4864, cores=15)
IDS = [f"{uuid(1)}-4"]


def divided(index: int, layout: MigLayout) -> Device:
    return card(index, mode=Mode.MIG, memory_mib=40192, detail=layout)


@pytest.fixture
def world() -> Iterator[World]:
    with World() as made:
        profiles, templates = MigLayout(profiles=(SMALL, MIDDLE)), MigLayout(templates=(GEOMETRY,))
        made.cards = (divided(0, profiles), divided(1, templates), card(2))
        made.responder = PartResponder()
        yield made


@pytest.fixture
def parts(world: World) -> Iterator[FakeParts]:
    world.parts = made = FakeParts()
    yield made
    made.free.set()


def row(start: int = 6, container: int = 0, **changes: object) -> dict[str, object]:
    base: dict[str, object] = {
        "containerIndex": container,
        "deviceIndex": 0,
        "gpuUUID": uuid(0),
        "profile": "1g.5gb",
        "placement": {"start": start, "size": 1},
    }
    return base | changes


def rows(*these: Mapping[str, object]) -> dict[str, str]:
    return {ROWS: json.dumps(these, separators=(",", ":"))}


def place(world: World, name: str, start: int = 6, **more: Any) -> None:
    """A pod of 2.10 with one instance of five GiB."""
    world.place(name, [BOX], {"main": [PART]}, annotations=rows(row(start)), **more)


def shown(world: World, pod: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(world.pod(pod).annotations[ROWS])
    return found


def parts_in(answer: ContainerResponse) -> str:
    return dict(answer.envs)["PARTS"]


def phase(world: World, pod: str) -> str:
    return world.pod(pod).annotations[names.POD_BIND_PHASE]


# -- both generations ------------------------------------------------------------------------------
def test_part_is_made_before_the_answer_and_named_in_its_row(
    world: World, parts: FakeParts
) -> None:
    world.desk()
    place(world, "p")
    assert parts_in(world.allocate("p", IDS)) == "PART-1"
    (now,) = shown(world, "p")
    assert now == row() | {"migUUID": "PART-1", "gpuInstanceID": 1, "computeInstanceID": 0}
    assert phase(world, "p") == names.PHASE_SUCCESS
    assert parts.made == {("uid-p", "main"): (MadePart(uuid="PART-1", numbers=(1, 0)),)}


def test_part_of_a_geometry_leaves_the_pod_without_rows(world: World, parts: FakeParts) -> None:
    world.desk()
    part = Part(uuid=f"{uuid(1)}[0-3]", memory_mib=5120, cores=15)
    world.place("p", [BOX], {"main": [part]}, Generation.V2_7)
    assert parts_in(world.allocate("p", IDS)) == "PART-1"
    assert ROWS not in world.pod("p").annotations
    assert phase(world, "p") == names.PHASE_SUCCESS


def test_whole_card_asks_nobody_for_a_part(world: World, parts: FakeParts) -> None:
    world.desk()
    part = Part(uuid=uuid(2), memory_mib=4000)
    world.place("p", [BOX], {"main": [part]})
    world.allocate("p", IDS)
    assert not parts.left_s


def test_two_containers_each_have_their_own_row_in_their_own_call(
    world: World, parts: FakeParts
) -> None:
    world.desk()
    boxes = [Box(name="a", memory_mib=4000), Box(name="b", memory_mib=4000)]
    both = rows(row(6, 0), row(5, 1))
    world.place("p", boxes, {"a": [PART], "b": [PART]}, annotations=both)
    before = world.pod("p").annotations[ROWS]
    world.allocate("p", IDS, "a")
    first, second = shown(world, "p")
    assert first["migUUID"] == "PART-1"
    assert "migUUID" not in second
    now = world.pod("p").annotations[ROWS]
    assert before[before.index('{"containerIndex":1') :] in now, "the other row is as it was"
    world.allocate("p", [f"{uuid(1)}-5"], "b")
    assert [it["migUUID"] for it in shown(world, "p")] == ["PART-1", "PART-2"]


# -- init containers -------------------------------------------------------------------------------
def test_init_container_without_a_slot_gets_the_part_of_its_lender(
    world: World, parts: FakeParts
) -> None:
    desk = world.desk()
    part = Part(uuid=f"{uuid(1)}[0-3]", memory_mib=5120, cores=15)
    boxes = [Box(name="i", memory_mib=4000, kind=ContainerKind.INIT), BOX]
    world.place("p", boxes, {"main": [part]}, Generation.V2_7)
    assert parts_in(world.allocate("p", IDS, "i")) == "PART-1"
    del world.listed.held["default", "p"]["i"]  # kubelet lists no init containers
    usage = desk.live.cards(world.cards)[uuid(1)]
    assert not usage.contradiction
    assert parts_in(world.allocate("p", IDS)) == "PART-1"
    assert not desk.live.cards(world.cards)[uuid(1)].contradiction
    other = Part(uuid=f"{uuid(1)}[0-0]", memory_mib=10240, cores=29)
    world.place("next", [BOX], {"main": [other]}, Generation.V2_7)
    assert parts_in(world.allocate("next", [f"{uuid(1)}-5"])) == "PART-2"


def test_init_container_with_the_row_of_the_app_has_the_same_part(
    world: World, parts: FakeParts
) -> None:
    world.desk()
    boxes = [Box(name="i", memory_mib=4000, kind=ContainerKind.INIT), BOX]
    both = rows(row(6, 0), row(6, 1))
    world.place("p", boxes, {"i": [PART], "main": [PART]}, annotations=both)
    assert parts_in(world.allocate("p", IDS, "i")) == "PART-1"
    del world.listed.held["default", "p"]["i"]  # kubelet lists no init containers
    assert parts_in(world.allocate("p", IDS)) == "PART-1"
    assert [it["migUUID"] for it in shown(world, "p")] == ["PART-1", "PART-1"]


def test_init_container_with_another_row_has_a_part_of_its_own(
    world: World, parts: FakeParts
) -> None:
    world.desk()
    boxes = [Box(name="i", memory_mib=4000, kind=ContainerKind.INIT), BOX]
    two = rows(row(6, 0), row(5, 1))
    world.place("p", boxes, {"i": [PART], "main": [PART]}, annotations=two)
    assert parts_in(world.allocate("p", IDS, "i")) == "PART-1"
    del world.listed.held["default", "p"]["i"]  # kubelet lists no init containers
    assert parts_in(world.allocate("p", IDS)) == "PART-2"


# -- who else writes -------------------------------------------------------------------------------
@shows(
    "M9",
    fault="others write to the pod while its instance is made: labels, and the rows themselves",
    happens="the pod is served with the one patch; only where its own rows were rewritten it is "
    "tried again, and what others have written stays",
)
@pytest.mark.parametrize("is_about_rows", [False, True], ids=["anything", "rows"])
def test_other_writers_of_the_pod_do_not_fail_it(
    world: World, parts: FakeParts, *, is_about_rows: bool
) -> None:
    world.desk()
    place(world, "p", is_locked=False)
    theirs = rows(row(note="kept"), row(2, 7)) if is_about_rows else {}
    written = {"their/word": "x"} | theirs
    parts.during = lambda: world.api.annotate("pods", "p", written, "default")
    world.api.forget_requests()
    world.allocate("p", IDS)
    first, *others = shown(world, "p")
    assert first["migUUID"] == "PART-1"
    assert (first.get("note"), others) == (("kept", [row(2, 7)]) if is_about_rows else (None, []))
    assert world.pod("p").annotations["their/word"] == "x"
    assert len(parts.left_s) == 1, "it was made once"
    made = [(r.verb, r.resource) for r in world.api.requests() if r.verb != "watch"]
    assert (made == [("patch", "pods")]) is not is_about_rows


@pytest.mark.parametrize("text", ["garbage", json.dumps([row(5)]), json.dumps([row(6, 1)]), None])
def test_rows_rewritten_meanwhile_refuse_their_own_pod_only(
    world: World, parts: FakeParts, text: str | None
) -> None:
    world.desk()
    place(world, "p")
    parts.during = lambda: world.api.annotate("pods", "p", {ROWS: text}, "default")
    with pytest.raises(AllocationError, match="default/p/main: its reservation was rewritten"):
        world.allocate("p", IDS)
    assert phase(world, "p") == names.PHASE_FAILED
    parts.during = lambda: None
    world.kubelet_fails("p")
    place(world, "next")
    assert parts_in(world.allocate("next", IDS)) == "PART-2"


@pytest.mark.parametrize("text", ["garbage", "[]", '[{"containerIndex":0}]', "[" * 5000, None])
def test_reservation_without_a_readable_row_refuses_its_own_pod_only(
    world: World, parts: FakeParts, text: str | None
) -> None:
    desk = world.desk()
    world.place("p", [BOX], {"main": [PART]}, annotations={} if text is None else {ROWS: text})
    with pytest.raises(AllocationError, match=f"default/p/main.*{ROWS}.*recreate"):
        world.allocate("p", IDS)
    assert phase(world, "p") == names.PHASE_FAILED
    assert not parts.left_s
    desk.wait_seen()
    place(world, "next")
    assert parts_in(world.allocate("next", IDS)) == "PART-1"


# -- what can't be made ----------------------------------------------------------------------------
def test_part_that_can_not_be_made_refuses_with_the_reason(world: World, parts: FakeParts) -> None:
    desk = world.desk()
    place(world, "p")
    parts.refusal = "instance 9 of card 0 is in its place, process 77 runs on it"
    with pytest.raises(AllocationError, match=r"default/p/main: instance 9 .* process 77"):
        world.allocate("p", IDS)
    assert phase(world, "p") == names.PHASE_FAILED
    assert not world.lock_text
    assert world.reasons == ["AllocationRefused"]
    assert not desk.ledger.entries()
    assert "migUUID" not in shown(world, "p")[0]


@shows(
    "G13",
    fault="what makes parts of cards does not answer, whatever its deadline",
    happens="kubelet has its refusal within the budget; other cards serve meanwhile, and the card "
    "serves again once it answers",
    lost="the pod of that call",
)
def test_maker_that_hangs_costs_no_more_than_the_budget_and_its_own_pod(
    world: World, parts: FakeParts
) -> None:
    world.budget_s = 6.0  # of which half is left for the refusal, also on a busy machine
    world.desk()
    place(world, "p")
    parts.hangs = True
    began_s = time.monotonic()
    with pytest.raises(AllocationError, match=r"default/p/main: .*not made in time"):
        world.allocate("p", IDS)
    assert time.monotonic() - began_s < world.budget_s
    assert phase(world, "p") == names.PHASE_FAILED
    world.kubelet_fails("p")
    world.place("whole", [BOX], {"main": [Part(uuid=uuid(2), memory_mib=4000)]})
    world.allocate("whole", IDS)
    parts.hangs = False
    parts.free.set()
    place(world, "next")
    answer = world.allocate("next", [f"{uuid(1)}-5"])  # kubelet gives each ID to one pod
    assert "PART-" in str(answer)


def test_time_is_left_for_what_follows(world: World, parts: FakeParts) -> None:
    world.budget_s = 9.5
    world.desk()
    place(world, "p")
    world.allocate("p", IDS)
    assert 6.0 < parts.left_s[0] <= 6.5


def test_without_a_maker_the_pod_is_refused(world: World) -> None:
    world.desk()
    place(world, "p")
    with pytest.raises(AllocationError, match=r"default/p/main: .*does not divide cards"):
        world.allocate("p", IDS)
    assert phase(world, "p") == names.PHASE_FAILED


# -- asked again, and killed -----------------------------------------------------------------------


def test_call_repeated_once_the_part_is_another_gets_that_one(
    world: World, parts: FakeParts
) -> None:
    world.desk()
    place(world, "p")
    world.allocate("p", IDS)
    parts.made.clear()  # the node was rebooted
    again = world.allocate("p", IDS)
    assert parts_in(again) == "PART-2"
    world.desk()
    assert world.allocate("p", IDS) == again


def test_call_repeated_once_the_part_can_not_be_had_is_refused(
    world: World, parts: FakeParts
) -> None:
    world.desk()
    place(world, "p")
    world.allocate("p", IDS)
    parts.refusal = "card 0 is not in MIG mode any more"
    with pytest.raises(AllocationError, match="default/p/main: card 0 is not in MIG mode"):
        world.allocate("p", IDS)
    assert phase(world, "p") == names.PHASE_SUCCESS


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, 9))
def test_killed_at_any_step_the_next_daemon_serves_the_pod_or_frees_its_lock(
    world: World, parts: FakeParts, at: int, *, is_after: bool
) -> None:
    fate = Fate(at=at, is_after=is_after)
    world.desk(fate)
    place(world, "p")
    try:
        world.allocate("p", IDS)
        is_served = True
    except Killed:
        is_served = False
    desk = world.desk()
    if not is_served:
        world.kubelet_fails("p")
    desk.wait_seen()
    desk.live.settle(world.listed.list())
    desk.keeper.look()
    assert not world.lock_text, fate.calls
    if is_served:
        assert "make" in fate.calls
        return
    place(world, "next")
    assert parts_in(world.allocate("next", IDS)).startswith("PART-")
