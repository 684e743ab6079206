"""Calls that can be read, about nodes, pods and reviews of every kind and number."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from hami_node.extender.caller_limits import MAX_NODES
from hami_node.simulate.store import Json
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import encode_json
from tests.fakes.pods import Box
from tests.fakes.reviews import review_of
from tests.integration.extender_http.calls import (
    BIND_BYTES,
    DEEP,
    NODES,
    bind_args,
    bodies,
    create,
    exchange,
    filter_args,
    post,
    refusal,
    serve_one,
    talk,
)
from tests.integration.extender_rig import ExtenderRig, cards_of, pod_manifest

# -- nodes in every number -------------------------------------------------------------------------
MANY: Final = 20_000
MANY_WHOLE: Final = 5_000


def reserved_on(rig: ExtenderRig, node_names: object) -> Json:
    """The answer to a call for a pod that fits, which is gone afterwards."""
    pod = create(rig, "one", Box(memory_mib=1000))
    try:
        status, answer = post(rig, "/filter", filter_args(pod, node_names))
    finally:
        rig.delete("one")
    assert (status, answer["Error"]) == (200, "")
    return dict(answer)


@pytest.mark.parametrize(
    "given_names",
    [
        ["n1"],
        ["n1"] * 500,
        ["", "n1", "", "no-such", "N1", "n1 ", "../n1", "é\x00", "x" * 300],
        [*(f"foreign-{i}" for i in range(MANY)), "n1"],
    ],
    ids=["one", "doubled", "foreign-and-empty", "20000"],
)
def test_names_of_nodes_nobody_knows_are_passed_over(
    rig: ExtenderRig, given_names: list[str]
) -> None:
    assert reserved_on(rig, given_names)["NodeNames"] == ["n1"]


def test_every_one_of_20000_names_is_told_why_a_pod_does_not_fit(rig: ExtenderRig) -> None:
    node_names = [*NODES, *(f"foreign-{i}" for i in range(MANY - len(NODES)))]
    body = filter_args(rig.api.read("pods", "big", "default"), node_names)
    status, answer = post(rig, "/filter", body)
    reasons = answer["FailedNodes"] | answer["FailedAndUnresolvableNodes"]
    assert (status, answer["NodeNames"], set(reasons)) == (200, None, set(node_names))


@pytest.mark.parametrize("nodes", [None, {}, {"items": None}, {"items": []}])
@pytest.mark.parametrize("node_names", [None, []])
def test_call_without_nodes_reserves_nothing(
    rig: ExtenderRig, nodes: object, node_names: object
) -> None:
    body = filter_args(rig.api.read("pods", "small", "default"), node_names)
    status, answer = post(rig, "/filter", {**body, "Nodes": nodes})
    assert (status, answer["Error"]) == (200, "")
    assert not answer["NodeNames"]
    assert not (answer["Nodes"] or {"items": []})["items"]
    assert rig.state.charges() == {}


def whole_node(name: str, cards: int = 4) -> Json:
    notes = {nvidia_names.NODE_REGISTER: encode_json(cards_of(name)[:cards])}
    return {
        "metadata": {"name": name, "annotations": notes},
        "status": {"allocatable": {nvidia_names.RESOURCE_GPU: "20"}},
    }


def test_names_count_where_names_and_whole_nodes_are_given(rig: ExtenderRig) -> None:
    pod = create(rig, "both", Box(memory_mib=1000))
    body = filter_args(pod, ["n1"])
    status, answer = post(rig, "/filter", {**body, "Nodes": {"items": [whole_node("n2")]}})
    rig.delete("both")
    assert (status, answer["NodeNames"]) == (200, ["n1"])


def test_5000_whole_nodes_are_answered_and_hold_nobody_up(rig: ExtenderRig) -> None:
    items = [whole_node(f"w{i}", cards=1) for i in range(MANY_WHOLE)]
    pod = rig.api.read("pods", "small", "default")
    body = json.dumps({**filter_args(pod, None), "Nodes": {"items": items}}).encode()
    with ThreadPoolExecutor(1) as caller:
        asked = caller.submit(post, rig, "/filter", body)
        serve_one(rig, "meanwhile")
        status, answer = asked.result()
    assert (status, answer["Error"], len(answer["Nodes"]["items"])) == (200, "", 1)
    assert answer["Nodes"]["items"][0] in items


@pytest.mark.parametrize(
    "bad", [7, None, [], "n1", {"metadata": 7}, {"status": {"allocatable": 1}}]
)
def test_one_wrong_node_among_whole_ones_is_refused(rig: ExtenderRig, bad: object) -> None:
    body = filter_args(rig.api.read("pods", "small", "default"), None)
    assert refusal(rig, "/filter", {**body, "Nodes": {"items": [whole_node("w"), bad]}})


def test_whole_node_that_is_no_utf8_where_nobody_reads_is_refused(rig: ExtenderRig) -> None:
    node = {**whole_node("w"), "stranger": "@"}
    body = filter_args(rig.api.read("pods", "small", "default"), None)
    raw = json.dumps({**body, "Nodes": {"items": [node]}}).encode()
    assert refusal(rig, "/filter", raw.replace(b"@", b"\xff"))
    assert post(rig, "/filter", raw.replace(b"@", "é😀".encode()))[1]["Nodes"]["items"]


def test_damaged_register_of_a_whole_node_makes_it_a_node_without_cards(rig: ExtenderRig) -> None:
    broken = whole_node("w")
    broken["metadata"]["annotations"][nvidia_names.NODE_REGISTER] = '[{"id":'
    body = filter_args(rig.api.read("pods", "small", "default"), None)
    status, answer = post(rig, "/filter", {**body, "Nodes": {"items": [broken]}})
    assert (status, answer["Nodes"]["items"]) == (200, [])
    assert answer["FailedNodes"]["w"]


# -- pods and reviews of every kind ----------------------------------------------------------------
def boxes(count: int, asking: int, memory_mib: int | None = None) -> list[Box]:
    asks = [Box(name=f"c{i}", cards=1, memory_mib=memory_mib) for i in range(asking)]
    return [*asks, *(Box(name=f"c{i}", cards=0) for i in range(asking, count))]


def test_pod_with_1000_containers_is_reserved_and_bound(rig: ExtenderRig) -> None:
    pod = create(rig, "crowd", *boxes(1000, 3, memory_mib=100))
    status, answer = post(rig, "/webhook", review_of(pod_manifest("x", boxes(1000, 3), {})))
    assert (status, answer["response"]["allowed"]) == (200, True)
    status, answer = post(rig, "/filter", filter_args(pod))
    assert (status, answer["Error"]) == (200, "")
    assert post(rig, "/bind", bind_args(pod, answer["NodeNames"][0])) == (200, {"Error": ""})
    [(_, held)] = rig.state.charges().values()
    assert sum(grant.slots for grant in held) == 3
    rig.delete("crowd")


def test_pod_whose_1000_containers_all_ask_fits_nowhere(rig: ExtenderRig) -> None:
    pod = create(rig, "horde", *boxes(1000, 1000, memory_mib=100))
    status, answer = post(rig, "/filter", filter_args(pod))
    reasons = answer["FailedNodes"] | answer["FailedAndUnresolvableNodes"]
    assert (status, answer["NodeNames"], set(reasons)) == (200, None, set(NODES))
    rig.delete("horde")


ASKED: Final = ("9" * 30, "-1", "1e18", "0.5", "1Ei", "a", "", "nan", 1e300, 2**62, -1, True, [1])


@pytest.mark.parametrize("resource", [nvidia_names.RESOURCE_GPU, nvidia_names.RESOURCE_GPU_MEMORY])
def test_amount_that_nobody_has_is_refused(rig: ExtenderRig, resource: str) -> None:
    for value in ASKED:
        pod = copy.deepcopy(rig.api.read("pods", "small", "default"))
        pod["spec"]["containers"][0]["resources"]["limits"][resource] = value
        status, answer = post(rig, "/filter", filter_args(pod))
        assert not answer.get("NodeNames"), value
        refused = status == 400 or answer["FailedNodes"] or answer["FailedAndUnresolvableNodes"]
        assert refused, value


def test_call_that_says_less_than_the_pod_asks_leaves_no_trace_on_it(rig: ExtenderRig) -> None:
    described = copy.deepcopy(rig.api.read("pods", "big", "default"))
    described["spec"]["containers"][0]["resources"]["limits"][nvidia_names.RESOURCE_GPU_MEMORY] = (
        "1000"
    )
    status, answer = post(rig, "/filter", filter_args(described))
    assert (status, answer["NodeNames"]) == (200, None)
    assert "does not ask for what the caller described" in answer["Error"]


def test_call_that_forges_another_pod_does_not_cost_it_its_place(rig: ExtenderRig) -> None:
    pod = create(rig, "owner", Box(memory_mib=1000))
    node = post(rig, "/filter", filter_args(pod))[1]["NodeNames"][0]
    assert post(rig, "/bind", bind_args(pod, node))[1] == {"Error": ""}
    rig.settle()
    held = rig.state.charges()
    for key, value in (("name", "nobody"), ("namespace", "nowhere"), ("resourceVersion", "1")):
        forged = {**pod, "metadata": {**pod["metadata"], key: value}}
        _, answer = post(rig, "/filter", filter_args(forged))
        assert not answer["NodeNames"]
        assert post(rig, "/bind", bind_args(forged, "n3" if node == "n0" else "n0"))[1]["Error"]
    assert rig.state.charges() == held
    assert rig.drift() == []
    rig.delete("owner")


@pytest.mark.parametrize(
    "change",
    [
        {"PodName": "no-such"},
        {"PodNamespace": "no-such"},
        {"PodUID": "another"},
        {"Node": "no-such"},
        {"Node": "../pods/x"},
        {"PodName": ".."},
        {"PodNamespace": "..", "PodName": "nodes/n0"},
        {"PodName": "small/binding"},
        {"PodName": "small?dryRun=All"},
        {"PodName": "x" * 60_000},
        {"PodName": "é\x00\r\nX: y"},
    ],
    ids=lambda change: "-".join(f"{key}={value[:12]!r}" for key, value in change.items()),
)
def test_bind_of_what_does_not_exist_says_so(rig: ExtenderRig, change: dict[str, str]) -> None:
    small = rig.api.read("pods", "small", "default")
    status, answer = post(rig, "/bind", {**bind_args(small), **change})
    assert (status, bool(answer["Error"])) == (200, True)
    assert rig.lock_of("n0") == ""


def test_bind_of_a_pod_that_is_being_deleted_is_refused_and_frees_its_cards(
    rig: ExtenderRig,
) -> None:
    pod = create(rig, "leaver", Box(memory_mib=1000))
    node = post(rig, "/filter", filter_args(pod))[1]["NodeNames"][0]
    stamp = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    rig.edit("leaver", lambda body: body["metadata"].update(stamp))
    assert post(rig, "/bind", bind_args(pod, node))[1]["Error"]
    assert rig.state.charges() == {}
    assert "is being deleted" in post(rig, "/filter", filter_args(pod))[1]["Error"]
    rig.delete("leaver")


@pytest.mark.parametrize(
    ("path", "given", "member"),
    [
        ("/filter", {"Pod": None}, "Pod"),
        ("/filter", {"Pod": {"metadata": {"name": "p"}}}, "Pod"),
        ("/filter", {"NodeNames": "n1"}, "NodeNames"),
        ("/filter", {"NodeNames": [1]}, "NodeNames"),
        ("/filter", {"NodeNames": ["n1", ["n2"]]}, "NodeNames"),
        ("/filter", {"NodeNames": ["a"] * (MAX_NODES + 1)}, "NodeNames"),
        ("/filter", {"Nodes": []}, "Nodes"),
        *(
            ("/bind", {member: value}, member)
            for member in ("PodName", "PodNamespace", "PodUID", "Node")
            for value in ("", None, 7)
        ),
        ("/preempt", {"Pod": {"metadata": {"name": "x"}}}, "Pod"),
        ("/preempt", {"NodeNameToMetaVictims": []}, "NodeNameToMetaVictims"),
        ("/preempt", {"NodeNameToMetaVictims": {"n0": {"Pods": [{}]}}}, "n0"),
        ("/preempt", {"NodeNameToMetaVictims": {"n0": {"Pods": ["x"]}}}, "NodeNameToMetaVictims"),
        (
            "/preempt",
            {"NodeNameToMetaVictims": {"n0": {"NumPDBViolations": "1"}}},
            "NodeNameToMetaVictims",
        ),
        (
            "/preempt",
            {"NodeNameToMetaVictims": None, "NodeNameToVictims": {"n0": {"Pods": [[]]}}},
            "pod",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_call_is_refused_with_the_name_of_the_member(
    rig: ExtenderRig, path: str, given: Json, member: str
) -> None:
    assert member in refusal(rig, path, {**bodies(rig)[path], **given})


# -- all at once -----------------------------------------------------------------------------------
CALLERS: Final = 16
ROUNDS: Final = 6


def test_good_calls_are_served_among_bad_ones(rig: ExtenderRig) -> None:
    whole = bodies(rig)
    big = rig.api.read("pods", "big", "default")
    bad: Sequence[Callable[[], object]] = (
        lambda: refusal(rig, "/filter", json.dumps(whole["/filter"]).encode()[:-3]),
        lambda: refusal(rig, "/webhook", b"[" * DEEP),
        lambda: refusal(rig, "/bind", {"PodName": []}),
        lambda: post(rig, "/filter", filter_args(big, [f"foreign-{i}" for i in range(2000)])),
        lambda: post(rig, "/bind", {**whole["/bind"], "PodName": "no-such"}),
        lambda: exchange(rig, "POST", "/bind", b"", {"Content-Length": str(BIND_BYTES + 1)}),
        lambda: talk(rig, b"POST /filter HTTP/1.1\r\nContent-Length: 9\r\n\r\n{", is_over=True),
        lambda: talk(rig, b"\x16\x03\x01 no http\r\n\r\n"),
    )

    def call(caller: int) -> None:
        order = random.Random(caller)
        for turn in range(ROUNDS):
            order.choice(bad)()
            serve_one(rig, f"good-{caller}-{turn}")
            order.choice(bad)()

    with ThreadPoolExecutor(CALLERS) as callers:
        list(callers.map(call, range(CALLERS)))
    assert rig.wrongs() == []
