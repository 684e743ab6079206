"""What a pod's annotations say is a claim: only what this process decided or saw counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from hami_node.engine.quota import Limits
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.extender.state.pod_book import MAX_SEEN
from hami_node.model import Uuid
from hami_node.simulate.store import Json
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.fakes.pods import Box
from tests.reliability import shows
from tests.unit.extender.desk import SCHEDULER, Desk

ALLOCATED = nvidia_names.POD_ALLOCATED


@pytest.fixture
def desk() -> Desk:
    """`a` runs on n1 with 8,000 of the 10,000 MiB of its only card."""
    desk = Desk("n1")
    desk.add_pod("a", memory_mib=8000)
    desk.sync()
    assert desk.choose("a") == "n1"
    desk.sync()
    assert desk.bind("a", "n1") == ""
    desk.sync()
    desk.edit_pod("a", status={"phase": "Running"})
    desk.sync()
    return desk


def claim(desk: Desk, node: str, text: str) -> Mapping[str, str]:
    """A reservation as anybody can write it who may edit the pod."""
    return {
        names.POD_NODE: node,
        names.POD_TIME: str(int(desk.clock.now())),
        ALLOCATED: text,
        nvidia_names.POD_TO_ALLOCATE: text,
    }


def strip(desk: Desk, name: str) -> None:
    """As `kubectl replace` with a manifest that has no annotations."""

    def stripped(body: Json) -> Json:
        body["metadata"]["annotations"] = {}
        return body

    desk.kube.store.change("pods", "default", name, stripped)


def used_mib(desk: Desk, card: str = "GPU-n1-0") -> int:
    return desk.state.usage()["n1"][Uuid(card)].memory_used_mib


# -- bound pods ------------------------------------------------------------------------------------


@shows(
    "E1",
    fault="a tenant edits or removes the reservation of a running pod",
    happens="the pod counts for what was seen of it before, until it has ended; the log has it",
)
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(None, id="every annotation is gone"),
        pytest.param("", id="empty"),
        pytest.param("GPU-n1-0,NVIDIA,1,0:;", id="1 MiB"),
        pytest.param("garbage,x:;", id="garbage"),
        pytest.param("GPU-other,NVIDIA,8000,0:;", id="another card"),
    ],
)
@pytest.mark.parametrize("is_relisted", [False, True], ids=["watched", "relisted"])
def test_edit_of_a_bound_pod_frees_nothing(
    desk: Desk, text: str | None, *, is_relisted: bool
) -> None:
    if text is None:
        strip(desk, "a")
    else:
        desk.edit_pod("a", annotations={ALLOCATED: text})
    if is_relisted:
        desk.state.sweep(["uid-a"], desk.kube.store.version)
    desk.sync()
    assert used_mib(desk) == 8000
    desk.add_pod("b", memory_mib=8000)
    desk.sync()
    assert desk.choose("b") == ""
    assert "uid-b" not in desk.state.charges()


def test_edit_that_adds_counts_as_well_and_stays(desk: Desk) -> None:
    desk.edit_pod("a", annotations={ALLOCATED: "GPU-n1-0,NVIDIA,9000,50:GPU-x,NVIDIA,500,0:;"})
    desk.sync()
    assert desk.held() == {"a": 9500}
    desk.edit_pod("a", annotations={ALLOCATED: "GPU-n1-0,NVIDIA,8000,0:;"})
    desk.sync()
    assert desk.held() == {"a": 9500}
    assert desk.state.usage()["n1"][Uuid("GPU-n1-0")].cores_used == 50


def test_pod_seen_first_after_a_restart_counts_from_then_on(desk: Desk) -> None:
    state = ClusterState(desk.state.rules, desk.clock)
    for node in desk.kube.list_nodes():
        state.node_changed(None, node)
    state.pod_changed(None, desk.pod("a"))
    strip(desk, "a")
    state.pod_changed(None, desk.pod("a"))
    assert state.usage()["n1"][Uuid("GPU-n1-0")].memory_used_mib == 8000


@pytest.mark.parametrize("end", ["deleted", "ended"])
def test_pod_that_is_over_frees_all_that_was_seen(desk: Desk, end: str) -> None:
    strip(desk, "a")
    desk.sync()
    if end == "deleted":
        desk.delete_pod("a")
    else:
        desk.edit_pod("a", status={"phase": "Succeeded"})
    desk.sync()
    assert desk.held() == {}


def test_namesake_of_a_pod_that_was_deleted_starts_with_nothing(desk: Desk) -> None:
    body = desk.kube.store.read("pods", "default", "a")
    desk.delete_pod("a")
    body["metadata"] = {"name": "a", "namespace": "default", "uid": "uid-next"}
    desk.kube.store.create("pods", "default", body)
    desk.sync()
    assert desk.held() == {}


def test_edits_without_end_take_no_more_memory_and_hide_nothing(desk: Desk) -> None:
    desk.add_node("n1x")
    for number in range(2 * MAX_SEEN):
        text = "".join(f"GPU-{number}-{part},NVIDIA,1,0:" for part in range(10)) + ";"
        desk.edit_pod("a", annotations={ALLOCATED: text})
        desk.sync()
    charges = desk.state.charges()["uid-a"][1]
    assert len(charges) <= MAX_SEEN + 10
    assert used_mib(desk) == 8000


def test_card_of_the_node_that_an_edit_named_once_stays_among_many_edits() -> None:
    desk = Desk("n1", cards=2)
    desk.add_pod("a", memory_mib=8000)
    desk.sync()
    desk.choose("a")
    desk.bind("a", "n1")
    mine = desk.notes_of("a")[ALLOCATED].partition(",")[0]
    (other,) = {"GPU-n1-0", "GPU-n1-1"} - {mine}
    for uuid in (*(f"GPU-x-{number}" for number in range(2 * MAX_SEEN)), other, "GPU-y"):
        desk.edit_pod("a", annotations={ALLOCATED: f"{uuid},NVIDIA,7000,0:;"})
        desk.sync()
    assert (used_mib(desk, mine), used_mib(desk, other)) == (8000, 7000)


# -- reservations of unbound pods ------------------------------------------------------------------


@shows(
    "E2",
    fault="a tenant writes a reservation on its own pending pod and has it bound",
    happens="bind chooses again by the same rules, and refuses with the reason",
)
def test_reservation_past_the_quota_is_not_bound() -> None:
    desk = Desk("n1", "n2", is_patched=True)
    desk.state.set_quota("default", "q", Limits(memory_mib=3000))
    desk.add_pod("t", memory_mib=6000)
    desk.sync()
    assert desk.choose("t") == ""
    desk.edit_pod("t", annotations=claim(desk, "n2", "GPU-n2-0,NVIDIA,6000,0:;"))
    desk.sync()
    why = desk.bind("t", "n2")
    assert "this scheduler did not make its reservation" in why
    assert "ResourceQuotaNotFit" in why
    assert desk.pod("t").node_name == ""
    assert ALLOCATED not in desk.notes_of("t")
    assert desk.held() == {}


def test_reservation_on_an_exclusive_card_is_not_bound() -> None:
    desk = exclusive(cards=1)
    desk.add_pod("t", memory_mib=1000)
    desk.edit_pod("t", annotations=claim(desk, "n1", "GPU-n1-0,NVIDIA,1000,0:;"))
    desk.sync()
    assert "CardComputeUnitsExhausted" in desk.bind("t", "n1")
    assert desk.pod("t").node_name == ""


def exclusive(cards: int, *, is_patched: bool = False) -> Desk:
    """GPU-n1-0 belongs to one pod, alone."""
    desk = Desk("n1", cards=cards, is_patched=is_patched)
    wish = {nvidia_names.USE_GPU_UUID: "GPU-n1-0"}
    desk.add_pod("whole", Box(memory_mib=1000, cores=100), annotations=wish)
    desk.sync()
    assert desk.choose("whole") == "n1"
    assert desk.bind("whole", "n1") == ""
    desk.sync()
    return desk


@pytest.mark.parametrize("is_shown", [True, False], ids=["watched", "not yet watched"])
@pytest.mark.parametrize(
    "keys",
    [
        pytest.param((ALLOCATED, nvidia_names.POD_TO_ALLOCATE), id="both"),
        pytest.param((nvidia_names.POD_TO_ALLOCATE,), id="only what is served"),
    ],
)
def test_reservation_that_was_rewritten_before_the_binding_is_replaced_or_refused(
    keys: tuple[str, ...], *, is_shown: bool
) -> None:
    desk = exclusive(cards=2, is_patched=True)
    desk.add_pod("t", memory_mib=1000)
    desk.sync()
    assert desk.choose("t") == "n1"
    desk.sync()
    mine = desk.notes_of("t")[ALLOCATED]
    desk.edit_pod("t", annotations=dict.fromkeys(keys, "GPU-n1-0,NVIDIA,1000,0:;"))
    if is_shown:
        desk.sync()
        assert desk.bind("t", "n1") == ""
        assert {desk.notes_of("t")[key] for key in keys} == {mine}
    else:
        assert "carries another reservation" in desk.bind("t", "n1")
        assert desk.pod("t").node_name == ""


@shows(
    "E2",
    fault="a tenant writes reservations on pending pods of its own",
    happens="they take no room from others, and are removed",
)
def test_claims_of_unbound_pods_take_no_room() -> None:
    desk = Desk("n1")
    for number in range(5):
        text = "GPU-n1-0,NVIDIA,10000,100:;"
        desk.add_pod(f"t{number}", annotations=claim(desk, "n1", text))
    desk.sync()
    desk.add_pod("a", memory_mib=10_000)
    desk.sync()
    assert desk.choose("a") == "n1"
    assert desk.held() == {"a": 10_000}
    assert len(desk.state.leftovers()) == 5


@shows(
    "E2",
    fault="the leader changes between filter and bind",
    happens="the new leader chooses the pod's cards on that node itself, and binds it",
)
def test_reservation_of_the_former_leader_is_placed_anew() -> None:
    desk = Desk("n1", is_patched=True)
    desk.add_pod("a", memory_mib=6000)
    desk.sync()
    assert desk.choose("a") == "n1"
    desk.sync()
    desk.state.begin_term(SCHEDULER)
    desk.kube.calls.clear()
    desk.clock.advance(5.0)
    assert desk.bind("a", "n1") == ""
    assert desk.kube.calls == ["json_patch_pod", "bind_pod"]
    assert desk.held() == {"a": 6000}
    assert desk.notes_of("a")[names.POD_TIME] == str(int(desk.clock.now()))


# -- names that the settings have changed ----------------------------------------------------------


@shows(
    "N6",
    fault="`resourceCountName` is renamed while pods run",
    happens="the extender counts them in full, as written, until they have ended",
)
@pytest.mark.parametrize("is_cleared", [True, False], ids=["served", "never cleared"])
def test_pods_under_a_former_resource_name_count_in_full(desk: Desk, *, is_cleared: bool) -> None:
    if is_cleared:
        desk.edit_pod("a", annotations={nvidia_names.POD_TO_ALLOCATE: ";"})
    renamed = Desk(values={"resource_count": "example.com/vgpu"})
    for node in desk.kube.list_nodes():
        allocatable = {"example.com/vgpu": "10"}
        renamed.state.node_changed(None, replace(node, allocatable=allocatable))
    renamed.state.pod_changed(None, desk.pod("a"))
    card = renamed.state.usage()["n1"][Uuid("GPU-n1-0")]
    assert (card.memory_used_mib, card.slots_used) == (8000, 1)


def test_pod_without_any_device_holds_nothing_whatever_it_claims(desk: Desk) -> None:
    text = "GPU-n1-0,NVIDIA,2000,0:;"
    desk.add_pod("plain", Box(cards=0), annotations=claim(desk, "n1", text))
    desk.edit_pod("plain", spec={"nodeName": "n1"})
    desk.sync()
    assert desk.held() == {"a": 8000}
