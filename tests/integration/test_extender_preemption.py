"""Preemption by cards, through real HTTP: who is evicted, and for whom the room is kept."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import pytest

from hami_node.simulate.store import Json
from tests.fakes.pods import Box
from tests.fakes.waiting import eventually
from tests.integration.extender_http.calls import bind_args, exchange, filter_args, post
from tests.integration.extender_rig import (
    CARDS,
    LIMIT_S,
    MEMORY_MIB,
    SLOTS,
    ExtenderRig,
    pod_manifest,
)

WHOLE: Final = Box(memory_mib=MEMORY_MIB)
SHARE: Final = Box(memory_mib=MEMORY_MIB // SLOTS)
LOW: Final = 10
HIGH: Final = 1000


@pytest.fixture
def rig() -> Iterator[ExtenderRig]:
    rig = ExtenderRig().start()
    rig.write_node("n0", has_identity=True)
    rig.settle()
    yield rig
    rig.close()


def _create(
    rig: ExtenderRig,
    name: str,
    *boxes: Box,
    priority: int = LOW,
    annotations: Mapping[str, str] | None = None,
    **spec: object,
) -> Json:
    body = pod_manifest(name, boxes or (WHOLE,), annotations or {})
    body["spec"] |= {"priority": priority, **spec}
    return rig.api.create("pods", body)


def _run(rig: ExtenderRig, name: str, *boxes: Box, node: str = "n0", priority: int = LOW) -> str:
    """A pod that is placed and bound; its uid."""
    pod = _create(rig, name, *boxes, priority=priority)
    assert _filter(rig, pod, node) == [node]
    assert post(rig, "/bind", bind_args(pod, node)) == (200, {"Error": ""})
    return str(pod["metadata"]["uid"])


def _fill(rig: ExtenderRig, node: str = "n0", cards: int = CARDS, **given: int) -> list[str]:
    """Whole-card pods on that many cards; their uids."""
    uids = [_run(rig, f"{node}-full{number}", node=node, **given) for number in range(cards)]
    rig.settle()
    return uids


def _filter(rig: ExtenderRig, pod: Json, *nodes: str) -> list[str]:
    status, answer = post(rig, "/filter", filter_args(pod, list(nodes)))
    assert (status, answer["Error"]) == (200, ""), answer
    return list(answer["NodeNames"] or ())


def _preempt(
    rig: ExtenderRig, pod: Json, victims: Mapping[str, Iterable[str]], violations: int = 0
) -> dict[str, list[str]]:
    """The victims left by node, as kube-scheduler with cached nodes asks for them."""
    proposed = {
        node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": violations}
        for node, uids in victims.items()
    }
    body = {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": proposed}
    status, answer = exchange(rig, "POST", "/preempt", _json(body))
    assert status == 200, answer
    assert list(answer) == ["NodeNameToMetaVictims"]
    found = answer["NodeNameToMetaVictims"]
    assert all(each["NumPDBViolations"] == violations for each in found.values())
    assert all(each["Pods"] for each in found.values()), "kube-scheduler refuses a node without"
    return {node: [pod["UID"] for pod in each["Pods"]] for node, each in found.items()}


def _json(body: object) -> bytes:
    return json.dumps(body).encode()


def _nominate(rig: ExtenderRig, name: str, node: str | None) -> Json:
    def change(body: Json) -> None:
        body["status"]["nominatedNodeName"] = node

    rig.edit(name, change)
    rig.settle()
    return rig.api.read("pods", name, "default")


def _evict(rig: ExtenderRig, uid: str) -> None:
    [name] = [pod.name for pod in rig.pods() if pod.uid == uid]
    rig.delete(name)
    rig.settle()


# -- who is evicted -------------------------------------------------------------------------------


def test_a_node_where_no_eviction_helps_is_left_out(rig: ExtenderRig) -> None:
    rig.write_node("n1", has_identity=True)
    rig.settle()
    full, other = _fill(rig), _fill(rig, "n1")
    large = _create(rig, "large", Box(memory_mib=MEMORY_MIB + 1), priority=HIGH)
    assert _preempt(rig, large, {"n0": full[:1], "n1": other[:1]}) == {}
    named = {"nvidia.com/use-gpuuuid": "GPU-n1-0"}
    urgent = _create(rig, "urgent", priority=HIGH, annotations=named)
    owner = [uid for uid in other if rig.state.charges()[uid][1][0].uuid == "GPU-n1-0"]
    assert _preempt(rig, urgent, {"n0": full[:1], "n1": owner}) == {"n1": owner}


def test_pods_of_the_same_or_a_higher_priority_are_never_evicted(rig: ExtenderRig) -> None:
    full = _fill(rig, priority=HIGH)
    for priority in (HIGH - 1, HIGH):
        pod = _create(rig, f"not-urgent-{priority}", priority=priority)
        assert _preempt(rig, pod, {"n0": full[:1]}) == {}


def test_victims_without_cards_stay_as_proposed(rig: ExtenderRig) -> None:
    """kube-scheduler needs them for CPU, of which the extender knows nothing."""
    plain = _create(rig, "plain", Box(cards=0))["metadata"]["uid"]
    full = _fill(rig)
    urgent = _create(rig, "urgent", priority=HIGH)
    assert _preempt(rig, urgent, {"n0": [plain, full[0]]}) == {"n0": [plain, full[0]]}
    [[first, second]] = _preempt(rig, urgent, {"n0": [plain]}).values()
    assert first == plain
    assert second in full


def test_a_pod_without_cards_gets_what_was_proposed(rig: ExtenderRig) -> None:
    pod = _create(rig, "plain", Box(cards=0), priority=HIGH)
    proposed = {"n0": ["a", "b"], "elsewhere": ["c"]}
    assert _preempt(rig, pod, proposed, violations=1) == proposed


def test_a_pod_that_never_preempts_evicts_nobody(rig: ExtenderRig) -> None:
    full = _fill(rig)
    pod = _create(rig, "urgent", priority=HIGH, preemptionPolicy="Never")
    assert _preempt(rig, pod, {"n0": full[:1]}) == {}


def test_whole_victims_are_answered_by_uid(rig: ExtenderRig) -> None:
    """As kube-scheduler without nodeCacheCapable asks."""
    full = _fill(rig)
    urgent = _create(rig, "urgent", priority=HIGH)
    victim = next(pod for pod in rig.api.list("pods") if pod["metadata"]["uid"] == full[0])
    body = {
        "Pod": urgent,
        "NodeNameToVictims": {"n0": {"Pods": [victim], "NumPDBViolations": 0}},
        "NodeNameToMetaVictims": None,
    }
    status, answer = exchange(rig, "POST", "/preempt", _json(body))
    victims = {"Pods": [{"UID": full[0]}], "NumPDBViolations": 0}
    assert (status, answer) == (200, {"NodeNameToMetaVictims": {"n0": victims}})


# -- others that are added ------------------------------------------------------------------------
def _shares(rig: ExtenderRig, *, labels: Mapping[str, str] | None = None) -> list[str]:
    """The node's last card has as many pods as it has slots; their uids, the oldest first."""
    _fill(rig, cards=CARDS - 1, priority=HIGH)
    uids = []
    for number in range(SLOTS):
        uids.append(_run(rig, f"share{number}", SHARE))
        if labels:
            rig.edit(f"share{number}", lambda pod: pod["metadata"].update(labels=dict(labels)))
    rig.settle()
    return uids


def test_others_are_added_where_the_proposed_are_too_few(rig: ExtenderRig) -> None:
    shares = _shares(rig)
    half = Box(memory_mib=2 * MEMORY_MIB // SLOTS)
    [found] = _preempt(rig, _create(rig, "two", half, priority=HIGH), {"n0": shares[:1]}).values()
    assert found[0] == shares[0]
    assert len(found) == 2
    [found] = _preempt(rig, _create(rig, "all", priority=HIGH + 1), {"n0": shares[:1]}).values()
    assert sorted(found) == sorted(shares)


def test_nobody_is_added_while_the_proposed_help_on_some_node(rig: ExtenderRig) -> None:
    shares = _shares(rig)
    rig.write_node("n1", has_identity=True)
    rig.settle()
    full = _fill(rig, "n1", priority=HIGH - 1)
    proposed = {"n0": shares[:1], "n1": full[:1]}
    assert _preempt(rig, _create(rig, "urgent", priority=HIGH), proposed) == {"n1": full[:1]}


@pytest.mark.parametrize(
    ("selector", "is_protected"),
    [
        ({"matchLabels": {"app": "share"}}, True),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({}, True),
        ({"matchLabels": {"app": "other"}}, False),
        (None, False),
    ],
    ids=str,
)
def test_pods_of_a_disruption_budget_are_not_added(
    rig: ExtenderRig, selector: Json | None, is_protected: bool
) -> None:
    shares = _shares(rig, labels={"app": "share"})
    rig.api.create(
        "poddisruptionbudgets",
        {"metadata": {"name": "b", "namespace": "default"}, "spec": {"selector": selector}},
    )
    found = _preempt(rig, _create(rig, "urgent", priority=HIGH), {"n0": shares[:1]})
    assert (found == {}) is is_protected


@pytest.mark.parametrize("status", [403, 500])
def test_nobody_is_added_while_budgets_are_unknown(rig: ExtenderRig, status: int) -> None:
    shares = _shares(rig)
    rig.api.fail_next("list", "poddisruptionbudgets", status, times=9)
    assert _preempt(rig, _create(rig, "urgent", priority=HIGH), {"n0": shares[:1]}) == {}
    assert _preempt(rig, _create(rig, "one", SHARE, priority=HIGH), {"n0": shares[:1]})


# -- for whom the room is kept --------------------------------------------------------------------
def test_the_room_is_the_nominated_pods_until_it_is_bound(rig: ExtenderRig) -> None:
    full = _fill(rig)
    urgent = _create(rig, "urgent", priority=HIGH)
    _preempt(rig, urgent, {"n0": full[:1]})
    rivals = [_create(rig, f"rival{p}", priority=p) for p in (LOW, HIGH)]
    _evict(rig, full[0])
    assert [_filter(rig, rival, "n0") for rival in rivals] == [[], []]
    said = post(rig, "/filter", filter_args(rivals[0], ["n0"]))[1]["FailedNodes"]
    assert "default/urgent" in said["n0"], "a node without a reason is never preempted"
    urgent = _nominate(rig, "urgent", "n0")
    assert [_filter(rig, rival, "n0") for rival in rivals] == [[], []]
    assert _filter(rig, urgent, "n0") == ["n0"]
    assert [_filter(rig, rival, "n0") for rival in rivals] == [[], []]
    assert post(rig, "/bind", bind_args(urgent, "n0")) == (200, {"Error": ""})
    rig.settle()
    _evict(rig, full[1])
    assert _filter(rig, rivals[0], "n0") == ["n0"], "nothing is kept any more"
    assert rig.wrongs() == []


@pytest.mark.parametrize("end", ["deleted", "elsewhere", "never nominated"])
def test_the_room_is_free_once_the_pod_gives_up(rig: ExtenderRig, end: str) -> None:
    full = _fill(rig)
    urgent = _create(rig, "urgent", priority=HIGH)
    _preempt(rig, urgent, {"n0": full[:1]})
    if end != "never nominated":
        _nominate(rig, "urgent", "n0")
    _evict(rig, full[0])
    rival = _create(rig, "rival")
    assert _filter(rig, rival, "n0") == []
    if end == "deleted":
        rig.delete("urgent")
        rig.settle()
    elif end == "never nominated":
        rig.clock.shift(31.0)
    else:
        _nominate(rig, "urgent", "n7")
    assert _filter(rig, rival, "n0") == ["n0"]


def test_a_nomination_that_nobody_follows_blocks_nothing_for_ever(rig: ExtenderRig) -> None:
    _fill(rig, cards=CARDS - 1)
    _create(rig, "urgent", priority=HIGH)
    _nominate(rig, "urgent", "n0")
    rival = _create(rig, "rival")
    assert _filter(rig, rival, "n0") == []
    rig.pass_time(601.0)
    assert _filter(rig, rival, "n0") == ["n0"]


# -- bad input -----------------------------------------------------------------------------------


def test_nodes_and_victims_that_nobody_knows_are_left_out(rig: ExtenderRig) -> None:
    urgent = _create(rig, "urgent", Box(memory_mib=1), priority=HIGH)
    assert _preempt(rig, urgent, {"no-such": ["x"]}) == {}
    assert _preempt(rig, urgent, {}) == {}
    assert _preempt(rig, urgent, {"n0": []}) == {}
    eventually(lambda: _filter(rig, urgent, "n0") == ["n0"], LIMIT_S)
