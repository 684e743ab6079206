from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from hami_node.config.settings import Generation
from hami_node.errors import Conflict, Forbidden, KubeError, NotLeading
from hami_node.extender.caller_limits import MAX_ANNOTATIONS
from hami_node.extender.filter import INTERNAL_FAILURE, LONGEST_WHY
from hami_node.model import ContainerKind, Device
from hami_node.simulate.store import Json
from hami_node.vendors.neuron import names as neuron_names
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import encode_csv9, encode_json
from hami_node.wire import names
from tests.fakes.pods import Box, pod_body
from tests.reliability import shows
from tests.unit.extender.desk import MEMORY_MIB, SCHEDULER, Desk, card


@pytest.fixture
def desk() -> Desk:
    desk = Desk("n1", "n2", is_patched=True)
    desk.add_pod("a")
    desk.sync()
    return desk


def asked(desk: Desk, body: dict[str, Any]) -> Json:
    answer: Json = json.loads(desk.filter.answer(json.dumps(body).encode()))
    return answer


def stored(desk: Desk, kind: str, name: str) -> Json:
    return desk.kube.store.read(kind, "" if kind == "nodes" else "default", name)


PROXY = Box(name="proxy", cards=0, kind=ContainerKind.SIDECAR)
SETUP = Box(name="setup", cards=0, kind=ContainerKind.INIT)
MAIN = Box(name="main", memory_mib=1000)
LOGS = Box(name="logs", cards=0)
GRANT = "GPU-old-0,NVIDIA,1000,0:"


@pytest.mark.parametrize(
    ("encode", "boxes", "text"),
    [
        pytest.param(encode_csv9, (SETUP, PROXY, MAIN), f"{GRANT};", id="2.7: init containers"),
        pytest.param(encode_csv9, (SETUP, LOGS, MAIN), f";{GRANT};", id="2.7: app without a card"),
        pytest.param(
            encode_csv9,
            (replace(SETUP, cards=1, memory_mib=1000), MAIN),
            f"{GRANT};{GRANT};",
            id="2.7: init container that asks",
        ),
        pytest.param(encode_json, (SETUP, PROXY, MAIN), f";;{GRANT};", id="2.10"),
    ],
)
def test_slots_are_counted_as_the_nodes_plugin_counts_them(
    desk: Desk, encode: Callable[[Sequence[Device]], str], boxes: tuple[Box, ...], text: str
) -> None:
    # a plugin of 2.7 ends its process at a slot beyond the last app container
    desk.add_node("old")
    desk.kube.merge_patch_node("old", {nvidia_names.NODE_REGISTER: encode((card("old", 0),))})
    desk.add_pod("b", *boxes)
    desk.sync()
    assert desk.choose("b", "old") == "old"
    assert desk.notes_of("b")[nvidia_names.POD_ALLOCATED] == text
    held = desk.held()["b"]
    assert held == 1000
    desk.sync()
    assert desk.held()["b"] == held
    assert desk.bind("b", "old") == ""


def test_decision_is_written_and_the_only_node_named(desk: Desk) -> None:
    node = desk.choose("a")
    notes = desk.notes_of("a")
    assert notes[names.POD_NODE] == node
    assert notes[nvidia_names.POD_ALLOCATED] == notes[nvidia_names.POD_TO_ALLOCATE]
    assert desk.pod("a").labels[names.POD_NODE] == node
    assert desk.kube.calls == ["patch_pod_exactly"]


def test_name_of_a_node_that_is_too_long_for_a_label_is_an_annotation_only(desk: Desk) -> None:
    long = "n" * 64
    desk.add_node(long)
    desk.sync()
    assert desk.choose("a", long) == long
    assert desk.notes_of("a")[names.POD_NODE] == long
    assert names.POD_NODE not in desk.pod("a").labels


def test_pod_without_cards_passes_untouched(desk: Desk) -> None:
    desk.add_pod("plain", Box(cards=0))
    assert desk.ask("plain", "n1", "n3")["NodeNames"] == ["n1", "n3"]
    assert desk.kube.calls == []


def test_no_room_names_each_node_and_why(desk: Desk) -> None:
    desk.add_pod("big", memory_mib=9_000)
    desk.choose("a", "n1")
    answer = desk.ask("big", "n1", "n3")
    assert "CardInsufficientMemory" in answer["FailedNodes"]["n1"]
    assert "unregistered" in answer["FailedAndUnresolvableNodes"]["n3"]
    assert answer["NodeNames"] is None
    assert "nearest: 4000 MiB free" in desk.notes[-1].message


def test_ask_that_no_card_can_ever_serve_is_unresolvable(desk: Desk) -> None:
    desk.add_pod("huge", memory_mib=900_000)
    answer = desk.ask("huge", "n1", "n2")
    assert answer["FailedNodes"] == {}
    assert answer["FailedAndUnresolvableNodes"].keys() == {"n1", "n2"}


def test_nonsense_is_refused_with_its_name(desk: Desk) -> None:
    body = stored(desk, "pods", "a")
    limits = {nvidia_names.RESOURCE_GPU: "many"}
    body = body | {"spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]}}
    why = desk.ask(body, "n1")["FailedAndUnresolvableNodes"]["n1"]
    assert "container c" in why
    assert "nvidia.com/gpu" in why


@pytest.mark.parametrize(
    ("error", "is_served"),
    [
        pytest.param(KubeError("no answer"), False, id="it did not arrive"),
        pytest.param(KubeError("no answer"), True, id="its answer was lost"),
        pytest.param(Forbidden("no", 403), False, id="it is forbidden"),
        pytest.param(KubeError("broken", 500), False, id="the API server is broken"),
    ],
)
def test_decision_that_cant_be_stored_is_undone(
    desk: Desk, error: KubeError, is_served: bool
) -> None:
    desk.kube.fail("patch_pod_exactly", error, is_served=is_served)
    assert "could not be stored" in desk.ask("a")["Error"]
    assert desk.held() == {}
    desk.sync()
    assert desk.held() == {}


@pytest.mark.parametrize(
    ("compat", "memory_mib"),
    [
        pytest.param(Generation.V2_8, 3000, id="2.8: the default"),
        pytest.param(Generation.V2_10, MEMORY_MIB, id="2.10: the whole card"),
    ],
)
def test_seed_004_step_1_percentage_of_101_is_not_given(
    compat: Generation, memory_mib: int
) -> None:
    desk = Desk("n1", values={"compat": compat, "default_memory_mib": 3000})
    body = pod_body("a", (Box(memory_mib=0),), None, node="")
    limits = {nvidia_names.RESOURCE_GPU: "1", nvidia_names.RESOURCE_GPU_MEMORY_PERCENT: "101"}
    body["spec"]["containers"][0]["resources"] = {"limits": limits}
    desk.kube.store.create("pods", "default", body)
    desk.sync()
    assert desk.choose("a") == "n1"
    assert desk.held() == {"a": memory_mib}


def test_seed_004_5_failed_patch_is_an_event(desk: Desk) -> None:
    desk.kube.fail("patch_pod_exactly", Forbidden("pods is forbidden", 403))
    why = desk.ask("a")["Error"]
    (note,) = desk.notes
    assert (note.name, note.reason, note.is_warning) == ("a", "FilteringFailed", True)
    assert note.message == why
    assert "pods is forbidden" in note.message


class BrokenError(Exception):
    """What no part of the filter expects."""


def test_seed_004_5_internal_failure_is_an_event_before_the_error(desk: Desk) -> None:
    desk.kube.before["patch_pod_exactly"] = partial(_raise, BrokenError("a bug"))
    with pytest.raises(BrokenError):
        desk.ask("a")
    (note,) = desk.notes
    assert (note.name, note.reason, note.is_warning) == ("a", "FilteringFailed", True)
    assert note.message == INTERNAL_FAILURE
    assert desk.results == ["failed"]
    assert desk.held() == {}
    assert desk.choose("a") != ""


def test_seed_004_5_another_leader_is_no_internal_failure(desk: Desk) -> None:
    desk.kube.before["patch_pod_exactly"] = desk.lose_lead
    assert desk.choose("a") != ""
    with pytest.raises(NotLeading):
        desk.ask("a")
    assert [note.reason for note in desk.notes] == ["FilteringSucceed"]


def _raise(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("what", ["bound", "deleted", "another"])
def test_pod_that_is_taken_meanwhile_gets_nothing(desk: Desk, what: str) -> None:
    def meanwhile() -> None:
        if what == "bound":
            desk.edit_pod("a", spec={"nodeName": "n2"})
        else:
            desk.delete_pod("a")
        if what == "another":
            other = desk.add_pod("a")
            assert other["metadata"]["name"] == "a"

    desk.kube.before["patch_pod_exactly"] = meanwhile
    if what == "another":
        body = stored(desk, "pods", "a")
        desk.delete_pod("a")
        desk.kube.store.create(
            "pods", "default", body | {"metadata": body["metadata"] | {"uid": "older"}}
        )
        desk.sync()
    assert "could not be stored" in desk.ask("a")["Error"]
    assert desk.held() == {}


def test_pod_bound_meanwhile_with_grants_counts_at_once(desk: Desk) -> None:
    grants = {names.POD_NODE: "n2", nvidia_names.POD_ALLOCATED: "GPU-n2-0,NVIDIA,6000,0:;"}
    desk.kube.before["patch_pod_exactly"] = lambda: desk.edit_pod(
        "a", spec={"nodeName": "n2"}, annotations=grants
    )
    assert desk.ask("a", "n1")["Error"] != ""
    assert desk.held() == {"a": 6000}


def test_overtaken_call_writes_nothing(desk: Desk) -> None:
    old = stored(desk, "pods", "a")
    later: list[str] = []
    desk.kube.before["patch_pod_exactly"] = lambda: later.append(desk.choose("a", "n2"))
    assert "later call" in desk.ask(old, "n1")["Error"]
    assert later == ["n2"]
    assert desk.notes_of("a")[names.POD_NODE] == "n2"
    desk.sync()
    assert desk.held() == {"a": 6000}


def test_pod_that_always_changes_is_given_up(desk: Desk) -> None:
    desk.kube.fail("patch_pod_exactly", *(Conflict("changed", 409) for _ in range(3)))
    assert "changes faster" in desk.ask("a")["Error"]
    assert desk.held() == {}


def test_neuron_cores_are_written_for_the_plugin_that_serves_them(desk: Desk) -> None:
    allocatable = {neuron_names.RESOURCE_NEURON: "1", neuron_names.RESOURCE_NEURON_CORE: "2"}
    node = {"metadata": {"name": "inf"}, "status": {"allocatable": allocatable}}
    desk.kube.store.create("nodes", "", node)
    body = pod_body("b", (Box(cards=0),), node="")
    body["spec"]["schedulerName"] = SCHEDULER
    limits = {neuron_names.RESOURCE_NEURON_CORE: "1"}
    body["spec"]["containers"][0]["resources"]["limits"] = limits
    desk.kube.store.create("pods", "default", body)
    desk.sync()
    assert desk.choose("b", "inf") == "inf"
    notes = desk.notes_of("b")
    assert notes[neuron_names.NEURON_IDS] == "0"
    assert notes[neuron_names.NEURON_RESOURCE_TYPE] == neuron_names.RESOURCE_NEURON_CORE
    assert notes[neuron_names.NEURON_PREDICATE_NODE] == notes[names.POD_NODE] == "inf"
    assert notes[neuron_names.NEURON_ALLOC_TIME] == str(int(desk.clock.now() * 1e9))
    assert "1 cores" in desk.notes[-1].message
    assert desk.bind("b", "inf") == ""
    assert desk.lock("inf") == "", "that plugin knows no lock"


@shows(
    "F11",
    fault="a container asks for Neuron devices and for cores, of which kubelet hands out both",
    happens="webhook and scheduler refuse the pod and say why: only the devices would be reserved",
)
@pytest.mark.parametrize("devices", ["1", "0"])
def test_differs_001_3_devices_and_cores_in_one_container_are_refused(
    desk: Desk, devices: str
) -> None:
    allocatable = {neuron_names.RESOURCE_NEURON: "6", neuron_names.RESOURCE_NEURON_CORE: "12"}
    node = {"metadata": {"name": "inf"}, "status": {"allocatable": allocatable}}
    desk.kube.store.create("nodes", "", node)
    limits = {neuron_names.RESOURCE_NEURON: devices, neuron_names.RESOURCE_NEURON_CORE: "10"}
    body = pod_body("b", (Box(cards=0),), node="")
    body["spec"]["schedulerName"] = SCHEDULER
    body["spec"]["containers"][0]["resources"]["limits"] = limits
    desk.kube.store.create("pods", "default", body)
    desk.sync()
    why = desk.ask("b", "inf")["FailedAndUnresolvableNodes"]["inf"]
    assert "asks for 10 aws.amazon.com/neuroncore" in why
    assert "ask for one of the two" in why
    assert "can't be served" in desk.bind("b", "inf")


def test_pod_with_too_many_annotations_is_told_so(desk: Desk) -> None:
    many = {f"example.com/{number}": "" for number in range(MAX_ANNOTATIONS + 1)}
    desk.add_pod("odd", annotations=many)
    why = "the pod can't be served: annotations: more than 5000 are not accepted: '5001'"
    assert desk.ask("odd")["FailedAndUnresolvableNodes"] == dict.fromkeys(desk.shown_nodes, why)
    assert (desk.notes[-1].name, desk.notes[-1].message) == ("odd", why)


@shows(
    "E4",
    fault="calls about pods that do not exist, with a megabyte of annotations each",
    happens="nothing of a caller's object is kept after the answer",
)
def test_nothing_of_what_a_caller_sent_is_kept() -> None:
    desk = Desk("n1")
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "999999"}
    for number in range(20):
        metadata = {
            "name": f"ghost-{number}",
            "namespace": "x",
            "uid": f"u-{number}",
            "annotations": {"a": "x" * 1_000_000, nvidia_names.POD_ALLOCATED: "y" * 1_000_000},
        }
        containers = [{"name": "c", "resources": {"limits": limits}}]
        desk.ask({"metadata": metadata, "spec": {"containers": containers}})
    known = [desk.state.latest(f"u-{number}") for number in range(20)]
    assert not any(pod.annotations or pod.containers for pod in known if pod is not None)
    assert len(repr(desk.state._pods._pods)) < 50_000


@pytest.mark.parametrize(
    ("metadata", "containers", "why"),
    [
        pytest.param({"name": "made-up"}, 1, "was deleted", id="no such pod"),
        pytest.param({"uid": "made-up"}, 1, "replaced by another pod", id="another uid"),
        pytest.param({"resourceVersion": "9" * 15}, 2, "does not ask for", id="newer, and more"),
    ],
)
def test_pod_that_only_the_caller_shows_is_read_first(
    desk: Desk, metadata: Json, containers: int, why: str
) -> None:
    body = deepcopy(stored(desk, "pods", "a"))
    body["metadata"] |= metadata
    body["spec"]["containers"] = [
        {**body["spec"]["containers"][0], "name": f"c{number}"} for number in range(containers)
    ]
    assert why in json.dumps(desk.ask(body))
    assert desk.held() == {}


def test_pod_that_can_not_be_read_is_not_placed(desk: Desk) -> None:
    body = desk.add_pod("new")
    desk.kube.fail("read_pod", KubeError("the API server hangs", 504))
    assert "the API server hangs" in desk.ask(body)["Error"]
    assert desk.held() == {}
    assert desk.choose(body)


@shows(
    "E7",
    fault="a node is cordoned, and a DaemonSet's pod with cards tolerates that",
    happens="kube-scheduler, which knows what a pod tolerates, decides: the pod starts there",
)
def test_cordoned_node_that_kube_scheduler_offers_is_taken(desk: Desk) -> None:
    cordoned = {"spec": {"unschedulable": True}}
    desk.kube.store.change("nodes", "", "n1", lambda body: body | cordoned)
    desk.sync()
    assert desk.choose("a", "n1") == "n1"
    assert desk.bind("a", "n1") == ""
    assert desk.pod("a").node_name == "n1"


@pytest.mark.parametrize(
    "annotations",
    [
        pytest.param({names.POD_SCORING_WEIGHTS: "x" * 250_000}, id="scoring weights"),
    ],
)
def test_refusal_for_every_node_stays_small_whatever_the_pod_says(
    desk: Desk, annotations: dict[str, str]
) -> None:
    """250 KB of scoring weights were repeated for each of 5,000 nodes: 1.25 GB in one answer."""
    desk.add_pod("b", annotations=annotations)
    desk.sync()
    candidates = [f"node-{number}" for number in range(5_000)]
    body = {"Pod": desk.kube.store.read("pods", "default", "b"), "NodeNames": candidates}
    answer = desk.filter.answer(json.dumps(body).encode())
    assert len(json.loads(answer)["FailedAndUnresolvableNodes"]) == len(candidates)
    assert len(answer) < 600 * len(candidates)
    assert len(desk.notes[-1].message) <= LONGEST_WHY
