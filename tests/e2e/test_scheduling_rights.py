"""A stolen token of the extender reaches reservations, phases and locks only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.e2e.api import Api, ApiError, Json
from tests.e2e.daemon import NAMESPACE
from tests.e2e.extender import NAME, Extender
from tests.e2e.parts import NODE
from tests.e2e.pki import Authority
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.rights import UNREADABLE, check_unreadable
from tests.e2e.scheduler import NODE_PATH

_POD = f"{Pods.path}/mine"
_DENIED = (403, 422)


@pytest.fixture
def thief(authority: Authority, extender: Extender) -> Iterator[Api]:
    """The API server as the extender."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{NAME}/token"
    answer = extender.api.create(path, {"spec": {"audiences": []}})
    with Api(authority.ca_file, str(answer["status"]["token"])) as one:
        yield one


@pytest.fixture
def mine(pods: Pods) -> Json:
    """A pod that nobody has bound."""
    return pods.create("mine", RealContainer(name="c0"))


def _metadata(kind: str, key: str) -> Json:
    return {"metadata": {kind: {key: "x"}}}


def _binding(pod: Json, **metadata: Json) -> Json:
    named = {"name": "mine", "uid": pod["metadata"]["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": named | metadata,
        "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
    }


@pytest.mark.usefixtures("mine")
def test_reservation_is_allowed(thief: Api) -> None:
    thief.patch(_POD, _metadata("annotations", nvidia_names.POD_ALLOCATED))
    thief.patch(_POD, _metadata("labels", names.POD_NODE))
    thief.patch(NODE_PATH, {"metadata": {"annotations": {names.NODE_LOCK: None}}})


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    "body",
    [
        _metadata("annotations", "example.com/foreign"),
        _metadata("labels", "app"),
        {"metadata": {"finalizers": ["hami.io/finalizer"]}},
        {"spec": {"activeDeadlineSeconds": 1}},
    ],
    ids=["annotation", "label", "finalizer", "deadline"],
)
def test_rest_of_a_pod_is_denied(thief: Api, body: Json) -> None:
    with pytest.raises(ApiError, match="hami-node-extender may") as denied:
        thief.patch(_POD, body)
    assert denied.value.status in _DENIED


@pytest.mark.parametrize(
    "body",
    [
        _metadata("annotations", "example.com/foreign"),
        _metadata("labels", "hami.io/label"),
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [{"key": "hami.io/taint", "effect": "NoExecute"}]}},
    ],
    ids=["annotation", "label", "cordon", "taint"],
)
def test_rest_of_a_node_is_denied(thief: Api, body: Json) -> None:
    with pytest.raises(ApiError, match="hami-node-extender may") as denied:
        thief.patch(NODE_PATH, body)
    assert denied.value.status in _DENIED


@pytest.mark.parametrize(
    "metadata",
    [
        {"annotations": {"example.com/foreign": "x"}},
        {"labels": {"app": "x"}},
    ],
    ids=["foreign", "label"],
)
def test_binding_carries_nothing_but_a_reservation(
    thief: Api, pods: Pods, mine: Json, metadata: dict[str, Json]
) -> None:
    with pytest.raises(ApiError, match="hami-node-extender may") as denied:
        thief.create(f"{_POD}/binding", _binding(mine, **metadata))
    assert denied.value.status in _DENIED
    assert not pods.read("mine")["spec"].get("nodeName")


def test_binding_with_a_reservation_is_allowed(thief: Api, pods: Pods, mine: Json) -> None:
    carried = {
        names.POD_BIND_PHASE: names.PHASE_ALLOCATING,
        names.POD_NODE: NODE,
        nvidia_names.POD_ALLOCATED: ";",
    }
    thief.create(f"{_POD}/binding", _binding(mine, annotations=carried))
    assert pods.read("mine")["spec"]["nodeName"] == NODE
    assert {key: pods.annotation("mine", key) for key in carried} == carried


@pytest.mark.parametrize("path", UNREADABLE)
def test_everything_else_is_forbidden_to_read(thief: Api, path: str) -> None:
    check_unreadable(thief, path)
