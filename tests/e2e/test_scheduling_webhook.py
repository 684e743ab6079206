"""What the webhook changes and refuses, as the user sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.e2e.api import Api, ApiError, Json
from tests.e2e.cards import uuid_of
from tests.e2e.extender import DEFAULT, SCHEDULER
from tests.e2e.parts import BUSYBOX, NODE
from tests.e2e.pods import NOBODY, Pods, RealContainer
from tests.e2e.waiting import eventually

_QUIET = "/api/v1/namespaces/quiet"


def _pod(
    *,
    limits: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    container: Mapping[str, Any] | None = None,
    spec: Mapping[str, Any] | None = None,
) -> Json:
    box = {
        "name": "c0",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "resources": {"limits": dict(limits)},
        **(container or {}),
    }
    return {
        "metadata": {
            "name": "asks",
            "annotations": dict(annotations or {}),
            "labels": dict(labels or {}),
        },
        "spec": {"containers": [box], "terminationGracePeriodSeconds": 1, **(spec or {})},
    }


_ONE = {nvidia_names.RESOURCE_GPU: "1", nvidia_names.RESOURCE_GPU_MEMORY: "1000"}


def _env(name: str, value: str) -> Json:
    return {"env": [{"name": name, "value": value}]}


@pytest.mark.usefixtures("extender")
def test_variable_that_would_show_all_cards_is_taken_out(pods: Pods, api: Api) -> None:
    asked = _env(nvidia_names.ENV_VISIBLE_DEVICES, "all")
    made = api.create(pods.path, _pod(limits=_ONE, container=asked))
    env = made["spec"]["containers"][0].get("env", [])
    assert nvidia_names.ENV_VISIBLE_DEVICES not in {item["name"] for item in env}


@pytest.mark.usefixtures("extender")
@pytest.mark.parametrize(
    ("asked", "words"),
    [
        pytest.param(
            {"container": {"securityContext": {"privileged": True}}}, "privileged", id="privileged"
        ),
        pytest.param({"spec": {"nodeName": NODE}}, "node", id="node-name"),
        pytest.param({"container": _env("LD_PRELOAD", "")}, "LD_PRELOAD", id="preload"),
        pytest.param(
            {"container": _env(f"{nvidia_names.ENV_MEMORY_LIMIT}_0", "80000m")},
            nvidia_names.ENV_MEMORY_LIMIT,
            id="memory-limit",
        ),
        pytest.param(
            {"annotations": {nvidia_names.POD_ALLOCATED: f"{uuid_of(0)},NVIDIA,80000,0:;"}},
            nvidia_names.POD_ALLOCATED,
            id="forged-grant",
        ),
        pytest.param(
            {"limits": {**_ONE, nvidia_names.RESOURCE_GPU_MEMORY_PERCENT: "150"}},
            nvidia_names.RESOURCE_GPU_MEMORY_PERCENT,
            id="percentage",
        ),
    ],
)
def test_refusal_names_what_is_wrong(
    pods: Pods, api: Api, asked: dict[str, Any], words: str
) -> None:
    with pytest.raises(ApiError) as refused:
        api.create(pods.path, _pod(**{"limits": _ONE, **asked}))
    assert words in refused.value.message
    assert "vgpu.hami.io" in refused.value.message


@pytest.mark.usefixtures("extender")
def test_share_without_count_gets_one_card(pods: Pods, api: Api) -> None:
    pod = api.create(pods.path, _pod(limits={nvidia_names.RESOURCE_GPU_MEMORY: "1000"}))
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    assert limits[nvidia_names.RESOURCE_GPU] == "1"
    assert pod["spec"]["schedulerName"] == SCHEDULER


@pytest.mark.usefixtures("extender")
def test_priority_becomes_a_variable(pods: Pods, api: Api) -> None:
    pod = api.create(pods.path, _pod(limits={**_ONE, nvidia_names.RESOURCE_GPU_PRIORITY: "1"}))
    assert {"name": nvidia_names.ENV_TASK_PRIORITY, "value": "1"} in pod["spec"]["containers"][0][
        "env"
    ]


@pytest.mark.usefixtures("extender")
def test_foreign_scheduler_keeps_its_pod(pods: Pods) -> None:
    pod = pods.create(
        "foreign", RealContainer(name="c0", cards=1, memory_mib=100), scheduler=NOBODY
    )
    assert pod["spec"]["schedulerName"] == NOBODY


@pytest.fixture
def quiet(api: Api) -> Iterator[str]:
    """A namespace that has opted out."""
    label = {names.WEBHOOK_OPT_OUT: "ignore"}
    if not api.exists(_QUIET):
        api.create("/api/v1/namespaces", {"metadata": {"name": "quiet", "labels": label}})
    account = f"{_QUIET}/serviceaccounts/default"
    eventually("its pods have an account", lambda: api.exists(account))
    yield f"{_QUIET}/pods"
    api.delete(f"{_QUIET}/pods/asks", 0)


@pytest.mark.usefixtures("extender")
def test_namespace_that_opted_out_is_left_alone(api: Api, quiet: str) -> None:
    bad = _pod(limits=_ONE, container=_env("LD_PRELOAD", ""), spec={"schedulerName": NOBODY})
    api.create(quiet, {**bad, "spec": {**bad["spec"], "automountServiceAccountToken": False}})


@pytest.mark.usefixtures("extender")
def test_pod_that_opted_out_is_left_alone(pods: Pods, api: Api) -> None:
    pod = api.create(pods.path, _pod(limits=_ONE, labels={names.WEBHOOK_OPT_OUT: "ignore"}))
    assert pod["spec"]["schedulerName"] == DEFAULT


@pytest.mark.usefixtures("extender")
def test_pod_without_cards_is_no_business_of_the_webhook(pods: Pods, api: Api) -> None:
    privileged = {"securityContext": {"privileged": True}, **_env("LD_PRELOAD", "")}
    pod = api.create(pods.path, _pod(limits={}, container=privileged, spec={"nodeName": NODE}))
    assert pod["spec"]["schedulerName"] == DEFAULT
