"""Requests to resize running pods, on a desk: the node's daemon is played."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from hami_node.engine.quota import Limits
from hami_node.errors import KubeError
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.model import ContainerKind, Uuid
from hami_node.simulate.store import Json
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from hami_node.wire.quotas import decode_resource_quota
from hami_node.wire.resize import Word, encode_words
from tests.fakes.pods import Box, pod_body
from tests.reliability import shows
from tests.unit.extender.desk import SCHEDULER, Desk

ALLOCATED = nvidia_names.POD_ALLOCATED
CARD = "GPU-n1-0"


@pytest.fixture
def desk() -> Desk:
    """`a` and `b` run on n1, whose only card has 10,000 MiB: 4,000 and 3,000 of them."""
    desk = Desk("n1")
    tell(desk, {})
    run(desk, "a", Box(memory_mib=4000, cores=20))
    run(desk, "b", Box(memory_mib=3000, cores=30))
    return desk


def run(desk: Desk, name: str, *boxes: Box) -> None:
    """Place a pod on n1 and play its daemon."""
    desk.add_pod(name, *boxes)
    desk.sync()
    assert desk.choose(name) == "n1"
    desk.sync()
    assert desk.bind(name, "n1") == ""
    served = {nvidia_names.POD_TO_ALLOCATE: ";", names.POD_BIND_PHASE: names.PHASE_SUCCESS}
    desk.edit_pod(name, status={"phase": "Running"}, annotations=served)
    desk.sync()


def tell(desk: Desk, words: Mapping[str, tuple[str, str]], node: str = "n1") -> None:
    """The node's words on containers `main` by pod: the decision's id and the grants."""
    said = {
        f"uid-{pod}": {"main": Word(id=id_, vendor="NVIDIA", grants=text)}
        for pod, (id_, text) in words.items()
    }
    desk.kube.merge_patch_node(node, {names.NODE_RESIZED: encode_words(said)})
    desk.sync()


def ask(desk: Desk, name: str, **amounts: Any) -> None:
    ask_text(desk, name, json.dumps({"main": amounts}))


def ask_text(desk: Desk, name: str, text: str) -> None:
    desk.edit_pod(name, annotations={names.POD_RESIZE: text})
    desk.sync()
    desk.resizer.decide_all()
    desk.sync()


def approval(desk: Desk, name: str) -> Json:
    return dict(json.loads(desk.notes_of(name)[names.POD_RESIZE_APPROVED]))


def state(desk: Desk, name: str) -> Json:
    text = desk.notes_of(name).get(names.POD_RESIZE_STATE)
    return {} if text is None else dict(json.loads(text))


def settle(desk: Desk, name: str, text: str, outcome: str = "done") -> None:
    """As the daemon does: its word, then the pod's annotations."""
    id_ = approval(desk, name)["id"]
    tell(desk, {name: (id_, f"{text};")})
    done = json.dumps({"id": id_, "state": outcome})
    desk.edit_pod(name, annotations={ALLOCATED: f"{text};", names.POD_RESIZE_STATE: done})
    desk.sync()


def cores_used(desk: Desk) -> int:
    return desk.state.usage()["n1"][Uuid(CARD)].cores_used


# -- up --------------------------------------------------------------------------------------------
def test_more_is_approved_and_reserved_in_one_patch(desk: Desk) -> None:
    before = len(desk.kube.calls)
    ask(desk, "a", gpumem=7000, gpucores=70)
    assert desk.kube.calls[before:] == ["list_limit_ranges", "patch_pod_exactly"]
    assert desk.notes_of("a")[ALLOCATED] == f"{CARD},NVIDIA,7000,70:;"
    given = approval(desk, "a")
    assert given["uid"] == "uid-a"
    assert given["grants"] == {"main": f"{CARD},NVIDIA,7000,70:;"}
    assert (desk.held()["a"], cores_used(desk)) == (7000, 100)
    assert desk.results[-1] == "approved"


@pytest.mark.parametrize(
    ("amounts", "why"),
    [
        ({"gpumem": 7001}, "card 0 (GPU-n1-0) has too little free memory: 7000 MiB are left"),
        ({"gpucores": 71}, "card 0 (GPU-n1-0) has too few free cores: 70 % are left"),
        ({"gpumem": 12_000, "gpucores": 50}, "too little free memory"),
        ({"gpucores": 100}, "too few free cores"),
    ],
)
def test_more_than_the_card_has_is_refused_with_the_numbers(
    desk: Desk, amounts: Mapping[str, int], why: str
) -> None:
    ask(desk, "a", **amounts)
    assert why in state(desk, "a")["why"]
    assert state(desk, "a")["state"] == "refused"
    assert names.POD_RESIZE_APPROVED not in desk.notes_of("a")
    assert (desk.notes[-1].reason, why in desk.notes[-1].message) == ("ResizeRefused", True)
    assert (desk.held()["a"], cores_used(desk), desk.results[-1]) == (4000, 50, "refused")
    assert desk.notes_of("a")[ALLOCATED] == f"{CARD},NVIDIA,4000,20:;"


@shows(
    "E14",
    fault="a sidecar grows beside an init container that has ended, for which nothing is left",
    happens="refused with the numbers: kubelet may run the init container again at any time",
)
def test_sidecar_grows_only_beside_the_init_containers_that_may_run_again(desk: Desk) -> None:
    sidecar = Box(name="proxy", memory_mib=500, cores=10, kind=ContainerKind.SIDECAR)
    init = Box(name="prepare", memory_mib=2000, cores=10, kind=ContainerKind.INIT)
    run(desk, "c", sidecar, init, Box(memory_mib=500, cores=10))
    desk.edit_pod("c", annotations={nvidia_names.POD_TO_ALLOCATE: ";;;"})
    assert desk.held()["c"] == 2500
    ask_text(desk, "c", json.dumps({"proxy": {"gpumem": 1001}}))
    assert "3000 MiB are left for this pod, it would hold 3001 MiB" in state(desk, "c")["why"]
    ask_text(desk, "c", json.dumps({"proxy": {"gpumem": 1000}}))
    assert (desk.results[-1], desk.held()["c"]) == ("approved", 3000)


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"main": {"gpumem": 0}}',
        '{"main": {"gpucores": 101}}',
        '{"main": {"gpu": 2}}',
        '{"other": {"gpumem": 5000}}',
    ],
)
def test_what_is_no_request_is_refused_once(desk: Desk, text: str) -> None:
    ask_text(desk, "a", text)
    assert state(desk, "a")["state"] == "refused"
    calls, notes = len(desk.kube.calls), len(desk.notes)
    desk.resizer.decide_all()
    assert (len(desk.kube.calls), len(desk.notes)) == (calls, notes)
    assert desk.held()["a"] == 4000


def test_init_container_and_container_without_cards_are_refused(desk: Desk) -> None:
    run(desk, "c", Box(name="main", memory_mib=500), Box(name="plain", cards=0))
    ask_text(desk, "c", '{"plain": {"gpumem": 100}}')
    assert "holds no cards" in state(desk, "c")["why"]


def test_pod_that_is_not_served_yet_is_decided_later(desk: Desk) -> None:
    desk.add_pod("c", memory_mib=1000, annotations={names.POD_RESIZE: '{"main": {"gpumem": 900}}'})
    desk.sync()
    desk.choose("c")
    desk.sync()
    assert desk.bind("c", "n1") == ""
    desk.sync()
    desk.resizer.decide_all()
    assert names.POD_RESIZE_APPROVED not in desk.notes_of("c")
    served = {nvidia_names.POD_TO_ALLOCATE: ";"}
    desk.edit_pod("c", status={"phase": "Running"}, annotations=served)
    desk.sync()
    desk.resizer.decide_all()
    assert approval(desk, "c")["grants"] == {"main": f"{CARD},NVIDIA,900,0:;"}


def test_node_whose_plugin_can_not_resize_is_named(desk: Desk) -> None:
    desk.kube.merge_patch_node("n1", {names.NODE_RESIZED: None})
    desk.sync()
    ask(desk, "a", gpumem=5000)
    assert "the device plugin of node n1 can't resize" in state(desk, "a")["why"]


def test_several_cards_get_it_all_or_not_at_all() -> None:
    desk = Desk("n1", cards=2)
    tell(desk, {})
    run(desk, "a", Box(cards=2, memory_mib=4000))
    run(desk, "b", Box(memory_mib=5000))
    ask(desk, "a", gpumem=5500)
    assert "too little free memory" in state(desk, "a")["why"]
    assert desk.held()["a"] == 8000
    ask(desk, "a", gpumem=5000)
    assert desk.held()["a"] == 10_000
    assert len(approval(desk, "a")["grants"]["main"].split(":")) == 3


def test_several_containers_are_one_request(desk: Desk) -> None:
    run(desk, "c", Box(name="x", memory_mib=1000), Box(name="y", memory_mib=500))
    ask_text(desk, "c", '{"x": {"gpumem": 1500}, "y": {"gpumem": 2000}}')
    assert state(desk, "c")["state"] == "refused"
    ask_text(desk, "c", '{"x": {"gpumem": 1500}, "y": {"gpumem": 1400}}')
    assert desk.notes_of("c")[ALLOCATED] == f"{CARD},NVIDIA,1500,0:;{CARD},NVIDIA,1400,0:;"
    assert desk.held()["c"] == 2900


# -- down ------------------------------------------------------------------------------------------
def test_less_counts_in_full_until_the_node_says_so(desk: Desk) -> None:
    ask(desk, "a", gpumem=1000)
    assert approval(desk, "a")["grants"] == {"main": f"{CARD},NVIDIA,1000,20:;"}
    assert desk.notes_of("a")[ALLOCATED] == f"{CARD},NVIDIA,4000,20:;"
    assert desk.held()["a"] == 4000
    settle(desk, "a", f"{CARD},NVIDIA,1000,20:")
    assert desk.held()["a"] == 1000
    run(desk, "c", Box(memory_mib=6000))


@pytest.mark.parametrize("is_word_first", [True, False])
def test_word_and_annotation_may_arrive_in_any_order(desk: Desk, *, is_word_first: bool) -> None:
    ask(desk, "a", gpumem=1000)
    id_ = approval(desk, "a")["id"]
    for is_word in (is_word_first, not is_word_first):
        assert desk.held()["a"] == 4000
        if is_word:
            tell(desk, {"a": (id_, f"{CARD},NVIDIA,1000,20:;")})
        else:
            desk.edit_pod("a", annotations={ALLOCATED: f"{CARD},NVIDIA,1000,20:;"})
            desk.sync()
    assert desk.held()["a"] == 1000


@shows(
    "Z1",
    fault="a tenant forges the approval, the state and the reservation of a smaller resize",
    happens="the pod counts as before: only the word of its node lowers what it counts",
)
def test_forged_resize_frees_nothing(desk: Desk) -> None:
    forged = {
        ALLOCATED: f"{CARD},NVIDIA,1,0:;",
        names.POD_RESIZE_APPROVED: json.dumps(
            {
                "id": "x-1",
                "uid": "uid-a",
                "vendor": "NVIDIA",
                "grants": {"main": f"{CARD},NVIDIA,1,0:;"},
            }
        ),
        names.POD_RESIZE_STATE: json.dumps({"id": "x-1", "state": "done"}),
    }
    desk.edit_pod("a", annotations=forged)
    desk.sync()
    desk.resizer.decide_all()
    assert desk.held()["a"] == 4000
    tell(desk, {"other": ("x-1", f"{CARD},NVIDIA,1,0:;")})
    assert desk.held()["a"] == 4000


def test_word_of_another_node_counts_for_nothing(desk: Desk) -> None:
    desk.add_node("n2")
    ask(desk, "a", gpumem=1000)
    tell(desk, {"a": (approval(desk, "a")["id"], f"{CARD},NVIDIA,1000,20:;")}, node="n2")
    assert desk.held()["a"] == 4000


@pytest.mark.parametrize("text", ["x", "[]", '{"uid-a": {"main": [1]}}', "9" * 70_000, "{}"])
def test_words_that_can_not_be_read_lower_nothing(desk: Desk, text: str) -> None:
    ask(desk, "a", gpumem=1000)
    desk.kube.merge_patch_node("n1", {names.NODE_RESIZED: text})
    desk.sync()
    assert desk.held()["a"] == 4000


def test_node_that_refuses_keeps_what_it_has_and_the_rest_is_free(desk: Desk) -> None:
    ask(desk, "a", gpumem=7000)
    assert desk.held()["a"] == 7000
    settle(desk, "a", f"{CARD},NVIDIA,4000,20:", "refused")
    assert desk.held()["a"] == 4000
    run(desk, "c", Box(memory_mib=3000))


def test_request_is_decided_again_once_it_was_taken_back(desk: Desk) -> None:
    ask(desk, "a", gpumem=9000)
    first = state(desk, "a")
    desk.resizer.decide_all()
    assert state(desk, "a") == first
    desk.kube.store.change("pods", "default", "a", _without(names.POD_RESIZE))
    desk.sync()
    desk.resizer.decide_all()
    desk.sync()
    assert state(desk, "a") == {}
    desk.delete_pod("b")
    desk.sync()
    ask(desk, "a", gpumem=9000)
    assert desk.held()["a"] == 9000


def _without(key: str) -> Any:
    def change(body: Json) -> Json:
        body["metadata"]["annotations"].pop(key)
        return body

    return change


# -- quota -----------------------------------------------------------------------------------------
def quota(desk: Desk, memory: int | None = None, cores: int | None = None) -> None:
    desk.state.set_quota("default", "q", Limits(memory_mib=memory, cores=cores))


@shows(
    "Z11",
    fault="a tenant grows its pod beyond the ResourceQuota that Kubernetes keeps at creation only",
    happens="requests.nvidia.com/gpumem and gpucores count for a resize as limits. do: refused",
)
@pytest.mark.parametrize("prefix", ["requests", "limits"])
@pytest.mark.parametrize(
    ("hard", "amounts", "why"),
    [
        ({"gpumem": "8000"}, {"gpumem": 5001}, "5000 MiB are left for this pod"),
        ({"gpucores": "60"}, {"gpucores": 31}, "30 % are left for this pod"),
    ],
)
def test_quota_object_is_kept_whoever_enforces_it_at_creation(
    desk: Desk, prefix: str, hard: dict[str, str], amounts: Mapping[str, int], why: str
) -> None:
    set_quota_object(desk, {f"{prefix}.nvidia.com/{word}": text for word, text in hard.items()})
    ask(desk, "a", **amounts)
    assert why in state(desk, "a")["why"]
    ask(desk, "a", **{word: amount - 1 for word, amount in amounts.items()})
    assert desk.results[-1] == "approved"


def test_requests_of_a_quota_object_limit_resizes_only(desk: Desk) -> None:
    set_quota_object(desk, {"requests.nvidia.com/gpumem": "0"})
    run(desk, "c", Box(memory_mib=1000))
    ask(desk, "c", gpumem=1001)
    assert "quota of namespace default" in state(desk, "c")["why"]


def set_quota_object(desk: Desk, hard: dict[str, str]) -> None:
    """As the watch shows it."""
    body = {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": hard}}
    limited = desk.state.rules.limited
    assert limited is not None
    limits = limited.limits_in(decode_resource_quota(body))
    desk.state.set_quota("default", "q", limits)


def test_quota_counts_the_larger_of_spec_and_grant(desk: Desk) -> None:
    quota(desk, 8000)
    ask(desk, "a", gpumem=1000)
    settle(desk, "a", f"{CARD},NVIDIA,1000,20:")
    assert desk.state.in_use().quotas["default"].memory_used_mib == 7000
    ask(desk, "b", gpumem=5000)
    assert "4000 MiB are left" in state(desk, "b")["why"]
    ask(desk, "b", gpumem=4000)
    assert desk.results[-1] == "approved"
    desk.delete_pod("a")
    desk.delete_pod("b")
    desk.sync()
    assert desk.state.in_use().quotas["default"].memory_used_mib == 0


def test_less_is_approved_even_beyond_the_quota(desk: Desk) -> None:
    quota(desk, 100)
    ask(desk, "a", gpumem=3900)
    assert desk.results[-1] == "approved"


# -- what administrators set -----------------------------------------------------------------------
def limit_range(desk: Desk, kind: str, namespace: str = "default", **most: str) -> None:
    limits = [{"type": kind, "max": {f"nvidia.com/{word}": text for word, text in most.items()}}]
    body = {"metadata": {"name": "most"}, "spec": {"limits": limits}}
    desk.kube.store.create("limitranges", namespace, body)


@shows(
    "Z13",
    fault="a tenant grows its pod beyond the LimitRange that Kubernetes keeps at creation only",
    happens="what grows above the maximum of a container or a pod is refused, with both numbers",
)
@pytest.mark.parametrize(
    ("most", "amounts", "why"),
    [
        ({"gpumem": "5k"}, {"gpumem": 5001}, "allows a container 5000 MiB, it would have 5001 MiB"),
        ({"gpucores": "30"}, {"gpucores": 31}, "allows a container 30 %, it would have 31 %"),
    ],
)
def test_more_than_a_limit_range_allows_is_refused(
    desk: Desk, most: dict[str, str], amounts: Mapping[str, int], why: str
) -> None:
    limit_range(desk, "Container", "other", gpumem="1", gpucores="1")
    limit_range(desk, "Container", **most)
    ask(desk, "a", **amounts)
    assert f"a LimitRange of namespace default {why}" in state(desk, "a")["why"]
    assert names.POD_RESIZE_APPROVED not in desk.notes_of("a")
    ask(desk, "a", **{word: amount - 1 for word, amount in amounts.items()})
    assert desk.results[-1] == "approved"


def test_limit_range_of_pods_counts_all_containers(desk: Desk) -> None:
    run(desk, "c", Box(name="x", memory_mib=1000), Box(name="y", memory_mib=1000))
    limit_range(desk, "Pod", gpumem="2500")
    ask_text(desk, "c", '{"x": {"gpumem": 1501}}')
    assert "allows a pod 2500 MiB, it would have 2501 MiB" in state(desk, "c")["why"]
    ask_text(desk, "c", '{"x": {"gpumem": 1600}, "y": {"gpumem": 900}}')
    assert desk.results[-1] == "approved"


def test_pod_above_a_later_limit_range_may_shrink(desk: Desk) -> None:
    limit_range(desk, "Container", gpumem="100")
    ask(desk, "a", gpumem=3900)
    assert desk.results[-1] == "approved"


@pytest.mark.parametrize("limits", [{"max": {"nvidia.com/gpumem": "1500m"}}, "?"])
def test_limit_range_that_can_not_be_read_allows_nothing(desk: Desk, limits: object) -> None:
    row = {"type": "Container", **limits} if isinstance(limits, dict) else limits
    body = {"metadata": {"name": "most"}, "spec": {"limits": [row]}}
    desk.kube.store.create("limitranges", "default", body)
    ask(desk, "a", gpumem=5000)
    assert desk.results[-1] == "refused"


def test_limit_ranges_that_are_not_answered_are_asked_for_again(desk: Desk) -> None:
    desk.kube.fail("list_limit_ranges", KubeError("no answer"))
    ask(desk, "a", gpumem=5000)
    assert state(desk, "a") == {}
    desk.resizer.decide_all()
    assert desk.results[-1] == "approved"


def test_resize_is_refused_where_it_is_off() -> None:
    desk = Desk("n1", values={"resize": False})
    tell(desk, {})
    run(desk, "a", Box(memory_mib=4000, cores=20))
    ask(desk, "a", gpumem=3000)
    assert "resizing is off in this cluster" in state(desk, "a")["why"]
    assert desk.held()["a"] == 4000


# -- failures --------------------------------------------------------------------------------------
@shows(
    "Z2",
    fault="the answer to the extender's approval is lost, stored or not",
    happens="the larger amount counts meanwhile, and the next try finds out; it is approved once",
)
@pytest.mark.parametrize("is_served", [False, True])
def test_lost_answer_keeps_the_room_taken(desk: Desk, *, is_served: bool) -> None:
    desk.kube.fail("patch_pod_exactly", KubeError("no response", 0), is_served=is_served)
    desk.edit_pod("a", annotations={names.POD_RESIZE: '{"main": {"gpumem": 7000}}'})
    desk.sync()
    desk.resizer.decide_all()
    assert desk.held()["a"] == 7000
    desk.add_pod("c", memory_mib=1000)
    assert desk.choose("c") == ""
    desk.sync()
    desk.resizer.decide_all()
    desk.sync()
    assert approval(desk, "a")["grants"] == {"main": f"{CARD},NVIDIA,7000,20:;"}
    assert desk.held()["a"] == 7000


def test_api_server_that_fails_is_not_asked_for_every_pod(desk: Desk) -> None:
    for name in ("a", "b"):
        desk.edit_pod(name, annotations={names.POD_RESIZE: "{}"})
    desk.sync()
    before = len(desk.kube.calls)
    desk.kube.fail("patch_pod_exactly", KubeError("down", 503))
    desk.resizer.decide_all()
    assert len(desk.kube.calls) == before + 1
    desk.resizer.decide_all()
    assert [state(desk, name)["state"] for name in ("a", "b")] == ["refused"] * 2


def test_pod_whose_write_fails_keeps_no_other_waiting(desk: Desk) -> None:
    for name in ("a", "b"):
        desk.edit_pod(name, annotations={names.POD_RESIZE: "{}"})
    desk.sync()
    desk.kube.fail("patch_pod_exactly", KubeError("failed calling webhook", 500))
    desk.resizer.decide_all()
    assert [state(desk, name) for name in ("a", "b")] == [{}, {}]
    desk.resizer.decide_all()
    told = [note.name for note in desk.notes if note.reason == "ResizeRefused"]
    assert told == ["b", "a"]


@pytest.mark.parametrize("status", [409, 403])
def test_refused_write_gives_the_room_back(desk: Desk, status: int) -> None:
    desk.kube.fail("patch_pod_exactly", KubeError("no", status))
    desk.edit_pod("a", annotations={names.POD_RESIZE: '{"main": {"gpumem": 7000}}'})
    desk.sync()
    desk.resizer.decide_all()
    assert desk.held()["a"] == 4000
    desk.resizer.decide_all()
    desk.sync()
    assert desk.held()["a"] == 7000


@shows(
    "Z3",
    fault="the leader changes while an approval is on its way",
    happens="the new leader keeps the room taken until it has decided itself, in a later version",
)
def test_new_leader_keeps_what_the_former_may_have_approved(desk: Desk) -> None:
    desk.edit_pod("a", annotations={names.POD_RESIZE: '{"main": {"gpumem": 7000}}'})
    late = desk.pod("a")
    fresh = ClusterState(desk.state.rules, desk.clock)
    for node in desk.kube.list_nodes():
        fresh.node_changed(None, node)
    for pod in desk.kube.list_pods():
        fresh.pod_changed(None, pod)
    fresh.begin_term(SCHEDULER)
    held = {uid: charges[0].memory_mib for uid, (_, charges) in fresh.charges().items()}
    assert held == {"uid-a": 7000, "uid-b": 3000}
    desk.edit_pod("a", annotations={"any": "thing"})
    with pytest.raises(KubeError):
        desk.kube.patch_pod_exactly(late, {ALLOCATED: "late"})


def test_room_kept_for_the_former_leader_is_no_room_for_an_approval(desk: Desk) -> None:
    desk.edit_pod("a", annotations={names.POD_RESIZE: '{"main": {"gpumem": 9000}}'})
    desk.sync()
    desk.state.begin_term(SCHEDULER)
    assert desk.held()["a"] == 9000
    desk.resizer.decide_all()
    assert "too little free memory" in state(desk, "a")["why"]
    assert desk.held()["a"] == 4000


@pytest.mark.parametrize("end", ["withdrawn", "refused"])
def test_room_kept_for_the_former_leader_is_free_once_nothing_can_arrive(
    desk: Desk, end: str
) -> None:
    desk.edit_pod("a", annotations={names.POD_RESIZE: '{"main": {"gpumem": 7000}}'})
    desk.sync()
    desk.state.begin_term(SCHEDULER)
    assert desk.held()["a"] == 7000
    if end == "withdrawn":
        desk.kube.store.change("pods", "default", "a", _without(names.POD_RESIZE))
        desk.sync()
    else:
        desk.kube.merge_patch_node("n1", {names.NODE_RESIZED: None})
        desk.sync()
        desk.resizer.decide_all()
        assert state(desk, "a")["state"] == "refused"
    assert desk.held()["a"] == 4000


def test_replica_that_does_not_lead_decides_nothing(desk: Desk) -> None:
    desk.lose_lead()
    ask(desk, "a", gpumem=5000)
    assert names.POD_RESIZE_APPROVED not in desk.notes_of("a")
    desk.is_leading = True
    desk.resizer.decide_all()
    assert names.POD_RESIZE_APPROVED in desk.notes_of("a")


def test_crowd_of_one_namespace_keeps_no_other_waiting() -> None:
    desk = Desk("n1")
    tell(desk, {})
    for at in range(200):
        name = f"p{at}"
        body = pod_body(name, [Box(cards=0)], {names.POD_RESIZE: "{}"}, phase="Running")
        body["metadata"]["namespace"] = "quiet" if at == 199 else "crowd"
        desk.kube.store.create("pods", body["metadata"]["namespace"], body)
    desk.sync()
    desk.resizer.decide_all()
    first = [note.namespace for note in desk.notes]
    assert (len(first), first.index("quiet")) == (64, 1)
    for _ in range(3):
        desk.sync()
        desk.resizer.decide_all()
    assert len(desk.notes) == 200
