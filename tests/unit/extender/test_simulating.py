"""What if: whole nodes from callers that reserve nothing, such as autoscalers."""

from __future__ import annotations

import json

import pytest

from hami_node.engine.quota import Limits
from hami_node.simulate.store import Json
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.unit.extender.desk import Desk


@pytest.fixture
def desk() -> Desk:
    desk = Desk("n1", "n2")
    desk.add_pod("a")
    desk.add_pod("b")
    desk.sync()
    return desk


def node(desk: Desk, name: str) -> Json:
    return desk.kube.store.read("nodes", "", name)


def copy_of(desk: Desk, name: str, new: str = "template", **notes: str) -> Json:
    """As an autoscaler copies a node of the group that it may enlarge."""
    copy: Json = json.loads(json.dumps(node(desk, name)))
    copy["metadata"] |= {"name": new, "uid": f"uid-{new}"}
    copy["metadata"]["annotations"] |= notes
    return copy


def simulated(desk: Desk, pod: str, *nodes: Json) -> Json:
    body = {"Pod": desk.kube.store.read("pods", "default", pod), "Nodes": {"items": list(nodes)}}
    answer: Json = json.loads(desk.filter.answer(json.dumps(body).encode()))
    return answer


def chosen(answer: Json) -> list[str]:
    return [item["metadata"]["name"] for item in answer["Nodes"]["items"]]


def why(answer: Json, name: str) -> str:
    return str({**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}[name])


def test_a_node_that_exists_counts_with_what_it_holds(desk: Desk) -> None:
    assert desk.choose("a", "n1") == "n1"  # a reservation: nothing of it is on the node yet
    found = simulated(desk, "b", node(desk, "n1"))
    assert chosen(found) == []
    assert why(found, "n1") == "1/1 CardInsufficientMemory"
    assert chosen(simulated(desk, "b", node(desk, "n1"), node(desk, "n2"))) == ["n2"]


def test_what_the_pod_itself_has_reserved_is_not_in_its_way(desk: Desk) -> None:
    assert desk.choose("a", "n1") == "n1"
    held = desk.held()
    assert chosen(simulated(desk, "a", node(desk, "n1"))) == ["n1"]
    assert desk.held() == held


def test_a_template_counts_as_it_is_described_and_empty(desk: Desk) -> None:
    assert desk.choose("a", "n1") == "n1"
    assert chosen(simulated(desk, "b", copy_of(desk, "n1"))) == ["template"]


def test_another_node_of_a_known_name_is_a_template(desk: Desk) -> None:
    assert desk.choose("a", "n1") == "n1"
    assert chosen(simulated(desk, "b", copy_of(desk, "n1", "n1"))) == ["n1"]
    assert chosen(simulated(desk, "b", node(desk, "n1"))) == []


def test_nobody_can_ask_for_a_card_that_does_not_exist_yet(desk: Desk) -> None:
    wish = {nvidia_names.USE_GPU_UUID: "GPU-n1-0"}
    desk.add_pod("wishes", annotations=wish)
    desk.sync()
    assert chosen(simulated(desk, "wishes", node(desk, "n1"))) == ["n1"]
    assert "CardUuidMismatch" in why(simulated(desk, "wishes", copy_of(desk, "n1")), "template")


def test_the_samples_cordoned_cards_are_not_the_templates(desk: Desk) -> None:
    cordon = {names.NODE_CORDON: "GPU-n1-0"}
    assert chosen(simulated(desk, "a", copy_of(desk, "n1", **cordon))) == ["template"]


def test_a_template_without_cards_says_so(desk: Desk) -> None:
    found = simulated(desk, "a", {"metadata": {"name": "cold"}, "status": {"capacity": {}}})
    assert why(found, "cold") == "node unregistered"


def test_a_quota_counts_as_for_a_real_pod(desk: Desk) -> None:
    desk.state.set_quota("default", "q", Limits(memory_mib=7000))
    assert chosen(simulated(desk, "a", node(desk, "n1"))) == ["n1"]
    assert desk.choose("a", "n1") == "n1"
    assert chosen(simulated(desk, "a", node(desk, "n1"))) == ["n1"], "its own use is not in its way"
    assert "ResourceQuotaNotFit" in why(simulated(desk, "b", copy_of(desk, "n2")), "template")


def test_a_node_that_is_backed_off_is_no_answer_but_one_like_it_may_be(desk: Desk) -> None:
    assert desk.choose("a", "n1") == "n1"
    assert desk.bind("a", "n1") == ""
    desk.edit_pod("a", annotations={names.POD_BIND_PHASE: names.PHASE_FAILED})
    refusal = "Allocate failed due to rpc error: code = Unavailable desc = no driver"
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": refusal}
    desk.edit_pod("a", status=status)
    desk.sync()
    found = simulated(desk, "b", node(desk, "n1"), copy_of(desk, "n1"))
    assert chosen(found) == ["template"]
    assert why(found, "n1").startswith("NodeBackedOff: ")


def test_a_node_without_the_selectors_labels_is_not_used() -> None:
    desk = Desk("n1", values={"node_label_selector": ("pool=gpu",)})
    desk.add_pod("a")
    desk.sync()
    template = copy_of(desk, "n1")
    assert why(simulated(desk, "a", template), "template") == "node unregistered"
    template["metadata"]["labels"] = {"pool": "gpu"}
    assert chosen(simulated(desk, "a", template)) == ["template"]


def test_nothing_is_written_reserved_or_kept(desk: Desk) -> None:
    desk.kube.calls.clear()
    before = desk.state.charges(), desk.state.sizes()
    simulated(desk, "a", node(desk, "n1"), copy_of(desk, "n2"))
    assert (desk.state.charges(), desk.state.sizes()) == before
    assert desk.kube.calls == []
    assert desk.state.latest("uid-a") is None
    assert desk.results[-1] == "simulated"
    assert not desk.notes
