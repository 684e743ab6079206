"""A reservation that stands in memory alone: its Binding carries it, and may arrive late."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hami_node.errors import Conflict, Forbidden, KubeError
from hami_node.model import Pod
from hami_node.vendors.holding import UNBOUND_S, reservation_keys
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.registry import VENDORS
from hami_node.vendors.spec import protocols_of
from hami_node.wire import names
from tests.fakes.settings import settings as default_settings
from tests.reliability import shows
from tests.unit.extender.desk import SCHEDULER, Desk

LOST = KubeError("no answer")
KEYS = reservation_keys(protocols_of(VENDORS, default_settings()))
WANTS_ALL = 6000


@pytest.fixture
def desk() -> Desk:
    """`a` is reserved on n1, in memory; another pod of its size does not fit beside it."""
    desk = Desk("n1")
    desk.add_pod("a", memory_mib=WANTS_ALL)
    desk.add_pod("c", memory_mib=WANTS_ALL)
    desk.sync()
    assert desk.choose("a") == "n1"
    return desk


def marks(desk: Desk, name: str) -> set[str]:
    return {key for key in KEYS if key in desk.notes_of(name)}


def lose(desk: Desk, *, is_served: bool = False, is_readable: bool = False) -> Pod:
    """The Binding of `a` is not answered, and nothing can be written after it."""
    sent = desk.pod("a")
    desk.kube.fail("bind_pod", LOST, is_served=is_served)
    desk.kube.fail("patch_pod_exactly" if is_readable else "read_pod", LOST)
    assert "no answer" in desk.bind("a", "n1")
    return sent


def carried(desk: Desk) -> dict[str, str]:
    """What such a Binding carried."""
    return {
        nvidia_names.POD_ALLOCATED: f"GPU-n1-0,NVIDIA,{WANTS_ALL},0:;",
        names.POD_NODE: "n1",
        names.POD_TIME: str(int(desk.clock.now())),
        names.POD_BIND_PHASE: names.PHASE_ALLOCATING,
    }


# -- the usual way ---------------------------------------------------------------------------------
def test_filter_writes_nothing_and_the_binding_carries_all(desk: Desk) -> None:
    assert desk.kube.calls == []
    assert desk.held() == {"a": WANTS_ALL}
    assert marks(desk, "a") == set()
    assert desk.choose("c") == ""
    assert desk.bind("a", "n1") == ""
    assert desk.kube.calls == ["bind_pod"]
    notes = desk.notes_of("a")
    assert notes[names.POD_NODE] == desk.pod("a").node_name == "n1"
    assert notes[nvidia_names.POD_ALLOCATED] == notes[nvidia_names.POD_TO_ALLOCATE]
    assert notes[names.POD_BIND_PHASE] == names.PHASE_ALLOCATING
    desk.sync()
    assert desk.held() == {"a": WANTS_ALL}


@pytest.mark.parametrize("left", [names.POD_BIND_TIME, nvidia_names.POD_MIG_ALLOCATIONS])
def test_pod_with_something_left_on_it_is_written_at_once(desk: Desk, left: str) -> None:
    desk.add_pod("old", memory_mib=1000, annotations={left: "1"})
    desk.sync()
    assert desk.choose("old") == "n1"
    assert desk.kube.calls == ["patch_pod_exactly"]
    assert desk.notes_of("old").get(left) != "1"


def test_node_that_needs_the_lock_by_now_gets_the_reservation_before_the_binding(
    desk: Desk,
) -> None:
    desk.kube.merge_patch_node("n1", {names.NODE_IDENTITY: None})
    desk.sync()
    desk.kube.calls.clear()
    assert desk.bind("a", "n1") == ""
    assert desk.kube.calls.index("patch_pod_exactly") < desk.kube.calls.index("bind_pod")
    assert desk.lock("n1").endswith(",default,a")


def test_reservation_that_is_not_bound_expires_and_leaves_nothing(desk: Desk) -> None:
    desk.clock.advance(UNBOUND_S + 1.0)
    desk.sweep()
    assert desk.held() == {}
    assert desk.state.leftovers() == ()
    assert desk.kube.calls == []


@pytest.mark.parametrize(
    "error", [Conflict("no", 409), Forbidden("no", 403), KubeError("too many", 429)]
)
def test_binding_that_is_answered_with_no_frees_at_once(desk: Desk, error: KubeError) -> None:
    desk.kube.fail("bind_pod", error, error, error)
    assert desk.bind("a", "n1") != ""
    assert desk.held() == {}
    assert "patch_pod_exactly" not in desk.kube.calls


# -- 1: a Binding that was not answered ------------------------------------------------------------
@shows(
    "E2",
    fault="a Binding that carries its reservation is not answered, and nothing else is for a while",
    happens="its cards stay taken until the pod is bound, deleted or written",
)
def test_cards_of_a_carried_binding_stay_taken_until_it_arrives(desk: Desk) -> None:
    sent = lose(desk)
    assert desk.held() == {"a": WANTS_ALL}
    assert desk.choose("c") == ""
    desk.clock.advance(1000.0)
    desk.sweep()
    assert desk.held() == {"a": WANTS_ALL}, "time alone proves nothing"
    desk.kube.bind_pod(sent, "n1", carried(desk))  # it arrives
    desk.sync()
    assert desk.held() == {"a": WANTS_ALL}
    assert desk.choose("c") == ""
    assert desk.state.leftovers() == ()


def settle_by_filter(desk: Desk) -> None:
    desk.ask("a", "nowhere")


def settle_by_sweep(desk: Desk) -> None:
    desk.clear_leftovers()


def settle_by_bind_elsewhere(desk: Desk) -> None:
    assert desk.bind("a", "elsewhere") != ""


@pytest.mark.parametrize("settle", [settle_by_filter, settle_by_sweep, settle_by_bind_elsewhere])
def test_pod_is_written_before_its_cards_are_given_to_others(
    desk: Desk, settle: Callable[[Desk], None]
) -> None:
    sent = lose(desk)
    settle(desk)
    assert desk.held() == {}
    assert desk.pod("a").version > sent.version
    assert marks(desk, "a") == set()
    with pytest.raises(Conflict):
        desk.kube.bind_pod(sent, "n1", carried(desk))
    assert desk.choose("c") == "n1"


def test_pod_that_cant_be_written_is_not_decided_about(desk: Desk) -> None:
    lose(desk)
    desk.kube.fail("patch_pod_exactly", LOST)
    assert "is unknown" in desk.ask("a")["Error"]
    desk.kube.fail("patch_pod_exactly", LOST)
    assert "no answer" in desk.bind("a", "n1")
    assert desk.held() == {"a": WANTS_ALL}
    assert desk.choose("c") == ""


@pytest.mark.parametrize("is_readable", [True, False])
def test_binding_that_arrived_is_found_by_the_next_call(desk: Desk, *, is_readable: bool) -> None:
    sent = lose(desk, is_readable=is_readable)
    desk.kube.bind_pod(sent, "n1", carried(desk))
    assert "is bound to node n1" in str(desk.ask("a"))
    assert desk.bind("a", "n1") == ""
    assert desk.held() == {"a": WANTS_ALL}


def test_write_of_somebody_else_frees_the_cards_as_well(desk: Desk) -> None:
    lose(desk)
    desk.edit_pod("a", annotations={"example.com/note": "x"})
    desk.sync()
    assert desk.held() == {}
    assert desk.choose("c") == "n1"


def test_bind_again_after_a_lost_binding_places_the_pod_anew(desk: Desk) -> None:
    sent = lose(desk)
    assert desk.bind("a", "n1") == ""
    assert desk.pod("a").node_name == "n1"
    assert desk.held() == {"a": WANTS_ALL}
    with pytest.raises(Conflict):
        desk.kube.bind_pod(sent, "n1", carried(desk))


def test_seal_that_can_not_be_removed_is_removed_with_the_next_decision(desk: Desk) -> None:
    sent = lose(desk)
    desk.kube.before["patch_pod_exactly"] = lambda: desk.kube.fail(
        "patch_pod_exactly", KubeError("it is stored", 500)
    )
    desk.clear_leftovers()
    assert desk.held() == {"a": WANTS_ALL}, "whether it is written is unknown"
    desk.clear_leftovers()
    assert desk.held() == {}
    assert desk.pod("a").version > sent.version
    assert desk.choose("a") == "n1"
    assert desk.bind("a", "n1") == ""


# -- 2: two calls at once --------------------------------------------------------------------------
@pytest.mark.parametrize("node", ["n1", "n2"])
def test_second_bind_while_the_first_is_unanswered_is_refused(desk: Desk, node: str) -> None:
    desk.add_node("n2")
    desk.sync()
    second: list[str] = []
    desk.kube.before["bind_pod"] = lambda: second.append(desk.bind("a", node))
    assert desk.bind("a", "n1") == ""
    assert "by another call" in second[0]
    assert desk.pod("a").node_name == "n1"
    assert {name: at for name, (at, _) in desk.state.charges().items()} == {"uid-a": "n1"}


def test_filter_while_the_binding_is_unanswered_changes_nothing(desk: Desk) -> None:
    asked: list[str] = []
    desk.kube.before["bind_pod"] = lambda: asked.append(desk.ask("a")["Error"])
    assert desk.bind("a", "n1") == ""
    assert "is being bound" in asked[0]
    assert desk.held() == {"a": WANTS_ALL}


# -- 3: the lead is lost and regained --------------------------------------------------------------
def test_new_term_voids_what_stands_in_memory(desk: Desk) -> None:
    desk.state.begin_term(SCHEDULER)
    assert desk.held() == {}
    assert desk.choose("c") == "n1"
    assert "can't make one there now" in desk.bind("a", "n1")


def test_new_term_keeps_the_cards_of_a_binding_that_may_arrive(desk: Desk) -> None:
    sent = lose(desk)
    desk.state.begin_term(SCHEDULER)
    assert desk.held() == {"a": WANTS_ALL}
    assert desk.choose("c") == ""
    desk.clear_leftovers()
    assert desk.held() == {}
    with pytest.raises(Conflict):
        desk.kube.bind_pod(sent, "n1", carried(desk))


def test_new_term_keeps_the_cards_of_a_binding_on_its_way(desk: Desk) -> None:
    held: list[dict[str, int]] = []

    def term() -> None:
        desk.state.begin_term(SCHEDULER)
        held.append(desk.held())
        held.append({"c": len(desk.choose("c"))})

    desk.kube.before["bind_pod"] = term
    assert desk.bind("a", "n1") == ""
    assert held == [{"a": WANTS_ALL}, {"c": 0}]
    assert desk.held() == {"a": WANTS_ALL}


def test_lost_lead_sends_no_binding_and_frees(desk: Desk) -> None:
    desk.kube.before["bind_pod"] = desk.lose_lead
    desk.kube.fail("bind_pod", Conflict("changed", 409))
    desk.edit_pod("a", annotations={"example.com/note": "x"})
    with pytest.raises(Exception, match="replica b decides"):
        desk.bind("a", "n1")
    assert desk.held() == {}
    assert desk.pod("a").node_name == ""


# -- 4: another replica has filtered the pod -------------------------------------------------------
def test_pod_that_another_replica_filtered_is_placed_at_the_bind() -> None:
    desk = Desk("n1", "n2")
    desk.add_pod("a", memory_mib=WANTS_ALL)
    desk.sync()
    assert desk.bind("a", "n2") == ""
    assert desk.kube.calls == ["read_pod", "bind_pod"]
    assert desk.notes_of("a")[names.POD_NODE] == "n2"
    desk.add_pod("b", memory_mib=WANTS_ALL)
    desk.sync()
    assert "CardInsufficientMemory" in desk.bind("b", "n2")
    assert desk.held() == {"a": WANTS_ALL}


# -- 5: the caller's description -------------------------------------------------------------------


@pytest.mark.parametrize("is_shown", [True, False])
def test_pod_that_asks_for_something_else_by_now_is_not_bound(
    desk: Desk, *, is_shown: bool
) -> None:
    desk.edit_pod("a", annotations={nvidia_names.USE_GPU_UUID: "GPU-else"})
    if is_shown:
        desk.sync()
    assert "does not ask for what was reserved" in desk.bind("a", "n1")
    assert desk.pod("a").node_name == ""
    assert desk.held() == {}


def test_pod_that_the_watch_does_not_show_yet_is_bound_in_its_version() -> None:
    desk = Desk("n1")
    desk.add_pod("a")
    assert desk.choose("a") == "n1"
    assert desk.bind("a", "n1") == ""
    assert desk.kube.calls == ["read_pod", "bind_pod"]


def test_pod_that_was_deleted_before_the_watch_showed_it_frees_its_cards() -> None:
    desk = Desk("n1")
    body = desk.add_pod("a", memory_mib=WANTS_ALL)
    assert desk.choose(body) == "n1"
    desk.delete_pod("a")
    assert "not found" in desk.bind("a", "n1")
    assert desk.held() == {}
    assert desk.choose(body) == "n1"
    desk.sync()
    desk.sweep()
    assert desk.held() == {}


# -- 6: edits after the binding --------------------------------------------------------------------
@pytest.mark.parametrize("text", [None, "", "GPU-n1-0,NVIDIA,1,0:;"])
def test_edit_before_the_watch_shows_the_binding_frees_nothing(
    desk: Desk, text: str | None
) -> None:
    sent = lose(desk)
    desk.kube.bind_pod(sent, "n1", carried(desk))
    desk.kube.patch_pod_exactly(desk.pod("a"), {nvidia_names.POD_ALLOCATED: text}, None)
    desk.sync()
    assert desk.held() == {"a": WANTS_ALL}
    assert desk.choose("c") == ""
