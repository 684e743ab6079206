"""A tenant with every right on pods can't edit a reservation, and gains nothing by it either."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.e2e import cards
from tests.e2e.api import Api, ApiError, Json
from tests.e2e.extender import DEFAULT, Extender
from tests.e2e.parts import BUSYBOX, NODE
from tests.e2e.pki import Authority
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.waiting import eventually, stays
from tests.reliability import shows

_ACCOUNTS: Final = "/api/v1/namespaces/default/serviceaccounts"
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
_JOBS: Final = "/apis/batch/v1/namespaces/default/jobs"
_POLICIES: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
_NAMES: Final = ("hami-node-reservations", "hami-node-reservations-by-binding")
_MORE_THAN_HALF: Final = cards.MEMORY_MIB // 2 + 1000
_FORGED: Final = f"{cards.uuid_of(0)},NVIDIA,1,0:;"


@pytest.fixture
def tenant(api: Api, authority: Authority, extender: Extender) -> Iterator[Api]:
    """The API server as an account with every right, but not of the scheduler."""
    assert extender
    api.create(_ACCOUNTS, {"metadata": {"name": "tenant"}})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    subject = {"kind": "ServiceAccount", "namespace": "default", "name": "tenant"}
    api.create(_RBAC, {"metadata": {"name": "e2e-tenant"}, "roleRef": role, "subjects": [subject]})
    answer = api.create(f"{_ACCOUNTS}/tenant/token", {"spec": {"audiences": []}})
    with Api(authority.ca_file, str(answer["status"]["token"])) as one:
        eventually("its rights are in force", lambda: one.read(Pods.path))
        yield one
    api.delete(f"{_RBAC}/e2e-tenant")
    api.delete(f"{_ACCOUNTS}/tenant")


@pytest.fixture
def without_policy(api: Api, tenant: Api, pods: Pods) -> Iterator[None]:
    """The cluster without the policies about reservations."""
    found = [api.read(f"{_POLICIES}/{name}") for name in _NAMES]
    for name in _NAMES:
        api.delete(f"{_POLICIES}/{name}")
    pods.create("probe", RealContainer(name="c0"))
    eventually("the policy is gone", lambda: _annotate(tenant, "probe", names.POD_TIME, "1"))
    yield
    for name, binding in zip(_NAMES, found, strict=True):
        api.create(_POLICIES, {"metadata": {"name": name}, "spec": binding["spec"]})
    eventually("the policy is back", lambda: _is_denied(tenant))


def _is_denied(tenant: Api) -> bool:
    try:
        _annotate(tenant, "probe", names.POD_TIME, str(time.time()))
    except ApiError as error:
        return error.status in (403, 422)
    return False


def _annotate(client: Api, pod: str, key: str, value: str | None, sub: str = "") -> Json:
    body = {"metadata": {"annotations": {key: value}}}
    return client.patch(f"{Pods.path}/{pod}{sub}", body)


def _share(memory_mib: int) -> RealContainer:
    return RealContainer(name="c0", cards=1, memory_mib=memory_mib)


@shows(
    "E1",
    fault="a tenant edits the reservation of a running pod, on the pod or on its status",
    happens="the API server denies it and says which annotation, and to delete the pod instead",
)
def test_reservation_of_a_running_pod_can_not_be_edited(tenant: Api, pods: Pods) -> None:
    pods.create("mine", _share(3000), scheduler=DEFAULT)
    pods.wait_running("mine")
    before = pods.read("mine")["metadata"]["annotations"]
    whole = pods.read("mine")
    whole["metadata"]["annotations"] = {}
    del whole["metadata"]["resourceVersion"]
    key = nvidia_names.POD_ALLOCATED
    edits: tuple[Callable[[], Json], ...] = (
        lambda: _annotate(tenant, "mine", key, None),
        lambda: _annotate(tenant, "mine", key, _FORGED),
        lambda: _annotate(tenant, "mine", key, ""),
        lambda: _annotate(tenant, "mine", key, None, "/status"),
        lambda: _annotate(tenant, "mine", nvidia_names.POD_MIG_ALLOCATIONS, "[]"),
        lambda: tenant.patch(f"{Pods.path}/mine", {"metadata": {"annotations": None}}),
        lambda: tenant.replace(f"{Pods.path}/mine", whole),
    )
    for edit in edits:
        with pytest.raises(ApiError, match="written by the scheduler") as denied:
            edit()
        assert denied.value.status == 403
        assert "delete the pod" in denied.value.message
    assert pods.read("mine")["metadata"]["annotations"] == before


def test_everything_else_of_the_pod_is_the_tenants(tenant: Api, pods: Pods) -> None:
    pods.create("mine", _share(3000), scheduler=DEFAULT)
    pods.wait_running("mine")
    _annotate(tenant, "mine", nvidia_names.USE_GPU_TYPE, "H100")
    _annotate(tenant, "mine", "example.com/note", "x")
    tenant.patch(f"{Pods.path}/mine", {"metadata": {"labels": {"team": "a"}}})
    tenant.patch(f"{Pods.path}/mine", {"metadata": {"finalizers": ["example.com/hold"]}})
    tenant.patch(f"{Pods.path}/mine", {"metadata": {"finalizers": None}})
    pods.delete("mine")


def test_job_with_a_card_completes(tenant: Api, pods: Pods) -> None:
    """kubelet writes its pod's status, and the Job controller removes the pod's finalizer."""
    box = {**RealContainer(name="c0", cards=1, memory_mib=1000, script="true").manifest()}
    template = {"spec": {"restartPolicy": "Never", "containers": [{**box, "image": BUSYBOX}]}}
    tenant.create(_JOBS, {"metadata": {"name": "job"}, "spec": {"template": template}})
    eventually(
        "the Job is complete",
        lambda: tenant.read(f"{_JOBS}/job")["status"].get("succeeded") == 1,
    )
    (pod,) = pods.all()
    assert "finalizers" not in pod["metadata"]
    tenant.delete(f"{_JOBS}/job")


def test_new_pod_can_not_bring_a_reservation_by_opting_out_of_the_webhook(tenant: Api) -> None:
    body = {
        "metadata": {
            "name": "forged",
            "labels": {names.WEBHOOK_OPT_OUT: "ignore"},
            "annotations": {names.POD_NODE: NODE, nvidia_names.POD_ALLOCATED: _FORGED},
        },
        "spec": {"containers": [_share(1000).manifest()]},
    }
    with pytest.raises(ApiError, match=r"remove from metadata\.annotations"):
        tenant.create(Pods.path, body)


@pytest.mark.parametrize(
    "path", [f"{Pods.path}/mine/binding", "/api/v1/namespaces/default/bindings"]
)
def test_binding_can_not_bring_a_reservation(tenant: Api, pods: Pods, path: str) -> None:
    pods.create("mine", _share(1000))
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "mine", "annotations": {nvidia_names.POD_ALLOCATED: _FORGED}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
    }
    with pytest.raises(ApiError, match="annotations of the Binding"):
        tenant.create(path, binding)
    assert not pods.read("mine")["spec"].get("nodeName")


@shows(
    "E1",
    fault="the policy is removed and a tenant wipes or shrinks the reservations of running pods",
    happens="the pods count for what they were given; a pod that needs their room waits",
)
@pytest.mark.usefixtures("without_policy")
def test_without_the_policy_nothing_is_over_committed(tenant: Api, pods: Pods) -> None:
    here = {nvidia_names.USE_GPU_UUID: f"{cards.uuid_of(0)},{cards.uuid_of(1)}"}
    for name in ("first", "second"):
        pods.create(name, _share(_MORE_THAN_HALF), annotations=here, scheduler=DEFAULT)
    pods.wait_running("first", "second")
    tenant.patch(f"{Pods.path}/first", {"metadata": {"annotations": None}})
    _annotate(tenant, "second", nvidia_names.POD_ALLOCATED, _FORGED)
    pods.create("third", _share(_MORE_THAN_HALF), annotations=here, scheduler=DEFAULT)
    eventually("kube-scheduler has tried", lambda: _is_unschedulable(pods, "third"))
    stays("the third pod waits", lambda: not pods.read("third")["spec"].get("nodeName"), 8.0)
    pods.delete("first")
    pods.wait_running("third")


def _is_unschedulable(pods: Pods, name: str) -> bool:
    conditions = pods.read(name)["status"].get("conditions", [])
    return any(one.get("reason") == "Unschedulable" for one in conditions)
