"""From HAMi's scheduler to ours and back, by the commands of `hami-node migrate plan`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from tests.e2e import cards
from tests.e2e.api import Api, ApiError
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import NAMESPACE
from tests.e2e.extender import Extender
from tests.e2e.foreign_install import Migration, install_hami, remove, serve_as_hami
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.scheduler import Scheduler, Slice
from tests.e2e.waiting import eventually
from tests.reliability import shows

_THEIRS: Final = "/apis/apps/v1/namespaces/kube-system/deployments/hami-scheduler"
_SCHEDULER: Final = "hami-node-scheduler"
_OURS: Final = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{_SCHEDULER}"
_HOOK: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/hami-webhook"
_KINDS: Final = (
    *("ServiceAccount", "ConfigMap", "ClusterRoleBinding", "Service"),
    *("Deployment", "MutatingWebhookConfiguration", "DaemonSet"),
)


@pytest.fixture
def migration(cluster: Cluster) -> Migration:
    """The command, as a user runs it."""
    return Migration(cluster)


@pytest.fixture
def both(
    cluster: Cluster, api: Api, extender: Extender, pods: Pods, migration: Migration
) -> Iterator[Extender]:
    """HAMi decides, all of ours is there, and our kube-scheduler has no replica."""
    assert pods
    _scale(api, _OURS, 0)
    install_hami(cluster, api, *_KINDS, serves=False)
    migration.run(migration.plan()["Freeze"]["commands"])
    eventually("HAMi's is there", lambda: _ready(api, _THEIRS) == 1)
    yield extender
    pods.clear()
    remove(cluster, api)
    _scale(api, _OURS, 1)
    extender.wait_ready()


@pytest.mark.e2e_long
@shows(
    "R2",
    fault="HAMi's scheduler is replaced by ours, and ours by HAMi's, while pods run and wait",
    happens="running pods go on, waiting ones are placed by whoever decides next, none is lost",
)
def test_scheduler_is_replaced_and_put_back(
    api: Api, both: Extender, pods: Pods, scheduler: Scheduler, migration: Migration
) -> None:
    _placed_by_hami(pods, scheduler, api, "earlier", 3)
    held = pods.incarnations()
    assert migration.problems() == []
    step = migration.plan()["Scheduler"]
    assert step["state"] == "next"
    for name in ("waits-1", "waits-2"):
        _create(pods, name)
    rollout = ("helm", f"kubectl -n {NAMESPACE} rollout status deployment/{_SCHEDULER}")
    migration.run(step["commands"], but=rollout)
    assert any("nobody schedules" in one for one in migration.problems())
    _create(pods, "waits-3")
    _scale(api, _OURS, 1)  # the last helm command
    both.wait_ready()
    pods.wait_running("waits-1", "waits-2", "waits-3")
    assert {k: v for k, v in pods.incarnations().items() if k in held} == held
    assert migration.problems() == []
    assert migration.plan()["Scheduler"]["state"] == "done"
    held = pods.incarnations()
    migration.run(step["undo"])
    eventually("HAMi's is back", lambda: _ready(api, _THEIRS) == 1)
    _placed_by_hami(pods, scheduler, api, "later", 6)
    assert {k: v for k, v in pods.incarnations().items() if k in held} == held
    assert migration.problems() == []


@pytest.mark.e2e_long
def test_two_schedulers_and_a_webhook_without_a_backend_are_said(
    api: Api, both: Extender, migration: Migration
) -> None:
    assert both
    _scale(api, _OURS, 1)
    assert any("two schedulers named hami-scheduler" in one for one in migration.problems())
    _scale(api, _THEIRS, 0)
    eventually(
        "its webhook has no backend",
        lambda: any("webhook hami-webhook: nothing ready" in one for one in migration.problems()),
    )


@pytest.mark.e2e_long
def test_paused_webhook_is_asked_for_nothing(
    api: Api, both: Extender, migration: Migration
) -> None:
    assert both
    step = migration.plan()["Scheduler"]
    pause = [one for one in step["commands"] if "webhookconfiguration" in one]
    resume = [one for one in step["undo"] if "webhookconfiguration" in one]
    _fail_closed(api)  # nobody listens behind it: who asks it is refused
    try:
        eventually("it is asked", lambda: not _is_let_through(api))
        migration.run(pause)
        eventually("it is asked for nothing", lambda: _is_let_through(api))
        migration.run(resume)
        eventually("it is asked again", lambda: not _is_let_through(api))
    finally:
        migration.run(pause)


def _fail_closed(api: Api) -> None:
    found = api.read(_HOOK)
    found["webhooks"][0] |= {"failurePolicy": "Fail", "timeoutSeconds": 2}
    found["webhooks"][0]["objectSelector"] = {"matchLabels": {"e2e": "asked"}}
    api.replace(_HOOK, found)


def _is_let_through(api: Api) -> bool:
    box = {"name": "c0", "image": "none"}
    pod = {
        "metadata": {"name": "never-made", "labels": {"e2e": "asked"}},
        "spec": {"containers": [box]},
    }
    try:
        api.create("/api/v1/namespaces/default/pods?dryRun=All", pod)
    except ApiError as error:
        if "webhook" not in error.message:
            raise
        return False
    return True


def _create(pods: Pods, name: str) -> None:
    pods.create(
        name, RealContainer(name="c0", cards=1, memory_mib=3000), scheduler="hami-scheduler"
    )


def _placed_by_hami(pods: Pods, scheduler: Scheduler, api: Api, name: str, card: int) -> None:
    pod = pods.create(
        name, RealContainer(name="c0", cards=1, memory_mib=3000), scheduler="hami-scheduler"
    )
    scheduler.place(pod, {"c0": (Slice(uuid=cards.uuid_of(card), memory_mib=3000),)})
    pods.wait_running(name)
    serve_as_hami(api, name)


def _scale(api: Api, path: str, replicas: int) -> None:
    api.patch(path, {"spec": {"replicas": replicas}})
    eventually(
        f"{replicas} replicas",
        lambda: api.read(path)["status"].get("replicas", 0) == replicas,
    )


def _ready(api: Api, path: str) -> int:
    return int(api.read(path)["status"].get("readyReplicas", 0))
