"""A stolen token of the daemon reaches its own node, the pods on it and our annotations only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.e2e.api import Api, ApiError, Json
from tests.e2e.daemon import Daemon
from tests.e2e.pki import Authority
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.rights import UNREADABLE, check_unreadable
from tests.e2e.scheduler import NODE_PATH, Scheduler

_OTHER = "/api/v1/nodes/other-node"


@pytest.fixture
def thief(authority: Authority, daemon: Daemon) -> Iterator[Api]:
    """The API server as the daemon."""
    with Api(authority.ca_file, daemon.token()) as one:
        yield one


@pytest.fixture
def other_node(api: Api) -> Iterator[str]:
    """A second node, on which no kubelet runs."""
    api.create("/api/v1/nodes", {"metadata": {"name": "other-node"}})
    yield _OTHER
    api.delete(_OTHER)


@pytest.fixture
def own_pod(pods: Pods, scheduler: Scheduler) -> str:
    """A pod on the daemon's node."""
    scheduler.bind(pods.create("own", RealContainer(name="c0")))
    pods.wait_running("own")
    return f"{Pods.path}/own"


def _annotate(key: str, value: str | None = "x") -> Json:
    return {"metadata": {"annotations": {key: value}}}


def test_own_annotations_of_own_node_and_pods_are_allowed(thief: Api, own_pod: str) -> None:
    for path in (NODE_PATH, own_pod):
        thief.patch(path, _annotate("hami.io/e2e"))
        thief.patch(path, _annotate("hami-node.io/e2e"))
        thief.patch(path, _annotate("hami.io/e2e", None))
        thief.patch(path, _annotate("hami-node.io/e2e", None))


@pytest.mark.parametrize(
    "body",
    [
        _annotate("example.com/foreign"),
        _annotate("nothami.io/key"),
        _annotate("volumes.kubernetes.io/controller-managed-attach-detach", "false"),
        {"metadata": {"labels": {"hami.io/label": "x"}}},
        {"metadata": {"finalizers": ["hami.io/finalizer"]}},
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [{"key": "hami.io/taint", "effect": "NoExecute"}]}},
    ],
    ids=["foreign", "lookalike", "kubelets", "label", "finalizer", "cordon", "taint"],
)
def test_rest_of_own_node_is_denied(thief: Api, body: Json) -> None:
    with pytest.raises(ApiError) as denied:
        thief.patch(NODE_PATH, body)
    assert denied.value.status in (403, 422)
    assert "hami" in denied.value.message


def test_other_node_is_denied(thief: Api, other_node: str) -> None:
    with pytest.raises(ApiError) as denied:
        thief.patch(other_node, _annotate(nvidia_names.NODE_REGISTER))
    assert denied.value.status in (403, 422)


@pytest.mark.parametrize(
    "body",
    [
        _annotate("example.com/foreign"),
        {"metadata": {"labels": {"hami.io/label": "x"}}},
        {"spec": {"activeDeadlineSeconds": 1}},
        {"spec": {"containers": [{"name": "c0", "image": "localhost/other:1"}]}},
    ],
    ids=["foreign", "label", "deadline", "image"],
)
def test_rest_of_own_pods_is_denied(thief: Api, own_pod: str, body: Json) -> None:
    with pytest.raises(ApiError) as denied:
        thief.patch(own_pod, body)
    assert denied.value.status in (403, 422)


def test_pod_of_another_node_is_denied(api: Api, thief: Api, pods: Pods, other_node: str) -> None:
    assert other_node
    pods.create("unbound", RealContainer(name="c0"))
    spec = {"nodeName": "other-node", "containers": [RealContainer(name="c0").manifest()]}
    api.create(Pods.path, {"metadata": {"name": "elsewhere"}, "spec": spec})
    for name in ("unbound", "elsewhere"):
        with pytest.raises(ApiError) as denied:
            thief.patch(f"{Pods.path}/{name}", _annotate(names.POD_BIND_PHASE, "failed"))
        assert denied.value.status in (403, 422), name
    api.delete(f"{Pods.path}/elsewhere", grace_s=0)


@pytest.mark.parametrize("path", UNREADABLE)
def test_everything_else_is_forbidden_to_read(thief: Api, path: str) -> None:
    check_unreadable(thief, path)


def test_creating_and_deleting_is_forbidden(thief: Api, own_pod: str) -> None:
    for verb in (
        lambda: thief.delete(own_pod),
        lambda: thief.delete(NODE_PATH),
        lambda: thief.create(Pods.path, {"metadata": {"name": "x"}, "spec": {}}),
        lambda: thief.create(f"{own_pod}/binding", {"metadata": {"name": "own"}, "target": {}}),
        lambda: thief.patch(f"{NODE_PATH}/status", _annotate("hami.io/e2e")),
        lambda: thief.patch(f"{own_pod}/status", _annotate("hami.io/e2e")),
    ):
        with pytest.raises(ApiError) as denied:
            verb()
        assert denied.value.status == 403
