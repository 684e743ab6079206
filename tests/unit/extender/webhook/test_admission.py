"""Which pods the webhook leaves alone, and what it writes into the others."""

from __future__ import annotations

import pytest

from hami_node.simulate.patches import json_patch
from hami_node.vendors.nvidia.choices import CorePolicy
from hami_node.wire import names
from tests.unit.extender.reviews import (
    CORES,
    GPU,
    MEM,
    NEURON,
    NEURON_CORE,
    PCT,
    PRIO,
    SHARE,
    Json,
    Limits,
    admitted,
    ask,
    container,
    env_of,
    limits_of,
    patch_of,
    pod,
    webhook_rules,
)

# -- What is left alone ----------------------------------------------------------------------------
UNTOUCHED: dict[str, Json] = {
    "plain": pod(container()),
    "cpu-only": pod(container({"cpu": "1", "memory": "1Gi", "amd.com/gpu": "1"})),
    "privileged": pod(container(securityContext={"privileged": True})),
    "node-assigned": pod(container(), nodeName="n1"),
    "limits-in-env": pod(container(env=[{"name": "LD_PRELOAD", "value": "/x.so"}])),
    "sees-all": pod(container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])),
    "wishes": pod(container(), annotations={names.POD_SCORING_WEIGHTS: "rubbish"}),
    "count-of-zero": pod(container({GPU: "0"})),
    "opted-out": pod(container({GPU: "-1"}), nodeName="n1"),
    "instance": pod(container({"nvidia.com/mig-1g.5gb": "1"})),
    "share": pod(container({"nvidia.com/gpu-1of4": "1"})),
    "no-metadata": {"spec": {"containers": [{"name": "a"}]}},
}
UNTOUCHED["opted-out"]["metadata"]["labels"] = {"hami.io/webhook": "ignore"}


@pytest.mark.parametrize("obj", UNTOUCHED.values(), ids=UNTOUCHED.keys())
def test_pod_that_asks_nothing_is_untouched(obj: Json) -> None:
    response = ask(obj, webhook_rules(runtime_class_name="nvidia", core_policy=CorePolicy.FORCE))
    assert response == {"uid": "705ab4f5", "allowed": True}


@pytest.mark.parametrize(
    "request_fields",
    [
        {"operation": "UPDATE"},
        {"operation": "DELETE", "object": None},
        {"operation": "CONNECT", "subResource": "exec"},
        {"subResource": "status"},
        {"kind": {"group": "apps", "version": "v1", "kind": "Deployment"}},
        {"kind": {"group": "x.io", "version": "v1", "kind": "Pod"}},
        {"kind": None},
    ],
    ids=["update", "delete", "connect", "status", "deployment", "foreign-pod", "no-kind"],
)
def test_review_of_anything_but_a_new_pod_is_allowed(request_fields: Json) -> None:
    bad = pod(container({GPU: "-1"}))
    request = {"obj": bad, **request_fields}
    obj = request.pop("object", request.pop("obj"))
    assert ask(obj, **request) == {"uid": "705ab4f5", "allowed": True}


def test_dry_run_is_answered_like_any_other() -> None:
    assert patch_of(ask(pod(container(SHARE)), dryRun=True))


def test_foreign_scheduler_is_untouched_with_a_warning() -> None:
    obj = pod(container(SHARE), schedulerName="volcano", nodeName="n1")
    response = ask(obj)
    assert patch_of(response) == []
    assert response["warnings"] == [
        "the pod names nvidia.com/gpu and the scheduler volcano: devices are given out by "
        "hami-scheduler alone, so nodes will refuse it; remove spec.schedulerName"
    ]
    assert "warnings" not in ask(pod(container(), schedulerName="volcano"))


def test_foreign_scheduler_includes_the_default_one_when_it_is_not_taken_over() -> None:
    rules = webhook_rules(force_overwrite_default_scheduler=False)
    assert patch_of(ask(pod(container(SHARE)), rules)) == []
    ours = pod(container(SHARE), schedulerName="")
    assert admitted(ours, rules)["spec"]["schedulerName"] == "hami-scheduler"


# -- What is changed -------------------------------------------------------------------------------
@pytest.mark.parametrize("named", [None, "", "default-scheduler", "hami-scheduler"])
def test_scheduler_name_is_ours_for_pods_that_ask(named: str | None) -> None:
    obj = pod(container(SHARE))
    if named is None:
        del obj["spec"]["schedulerName"]
    else:
        obj["spec"]["schedulerName"] = named
    changed = admitted(obj)
    assert changed["spec"].pop("schedulerName") == "hami-scheduler"
    obj["spec"].pop("schedulerName", None)
    assert changed == obj


@pytest.mark.parametrize(
    ("limits", "config", "expected"),
    [
        pytest.param({GPU: "1"}, {}, {GPU: "1", CORES: "100"}, id="E52-whole-card"),
        pytest.param(
            {GPU: "1"}, {"default_memory_mib": 5000, "default_cores": 20}, {GPU: "1"}, id="defaults"
        ),
        pytest.param({GPU: "1"}, {"default_memory_mib": 5000}, {GPU: "1"}, id="default-memory"),
        pytest.param({GPU: "1"}, {"default_cores": 20}, {GPU: "1"}, id="default-cores"),
        pytest.param(
            {GPU: "1", PCT: "100"},
            {"default_memory_mib": 5000},
            {GPU: "1", PCT: "100", CORES: "100"},
            id="whole-by-percent",
        ),
        pytest.param({GPU: "1", PCT: "50"}, {}, {GPU: "1", PCT: "50"}, id="half"),
        pytest.param(
            {GPU: "1", PCT: "0"}, {}, {GPU: "1", PCT: "0", CORES: "100"}, id="percent-0-is-none"
        ),
        pytest.param(
            {GPU: "1", PCT: "101"},
            {},
            {GPU: "1", PCT: "101", CORES: "100"},
            id="seed-004-step-1-percent-101-is-none",
        ),
        pytest.param(
            {GPU: "1", PCT: "101"},
            {"default_memory_mib": 5000},
            {GPU: "1", PCT: "101"},
            id="seed-004-step-1-percent-101-is-the-default",
        ),
        pytest.param(
            {GPU: "1", MEM: "0"}, {}, {GPU: "1", MEM: "0", CORES: "100"}, id="memory-0-is-none"
        ),
        pytest.param({GPU: "1", CORES: "0"}, {}, {GPU: "1", CORES: "0"}, id="cores-named-0"),
        pytest.param({MEM: "3000"}, {}, {GPU: "1", MEM: "3000"}, id="E53-memory-alone"),
        pytest.param({CORES: "30"}, {}, {GPU: "1", CORES: "30"}, id="E53-cores-alone"),
        pytest.param(
            {PCT: "100"}, {}, {GPU: "1", PCT: "100", CORES: "100"}, id="percent-alone-whole"
        ),
        pytest.param({MEM: "3k"}, {"default_count": 2}, {GPU: "2", MEM: "3k"}, id="default-count"),
        pytest.param({NEURON: "1"}, {}, {NEURON: "1"}, id="neuron"),
        pytest.param({NEURON_CORE: "1"}, {}, {NEURON_CORE: "1"}, id="neuron-core"),
        pytest.param({GPU: 1, MEM: 3000}, {}, {GPU: 1, MEM: 3000}, id="json-numbers"),
    ],
)
@pytest.mark.parametrize("has_requests", [True, False], ids=["requests", "limits-only"])
def test_defaults_are_written_into_limits_and_requests(
    limits: Limits, config: Json, expected: Json, has_requests: bool
) -> None:
    rules = webhook_rules(**config)
    changed = admitted(pod(container(limits, has_requests=has_requests)), rules)
    assert limits_of(changed) == expected
    assert changed["spec"]["schedulerName"] == "hami-scheduler"


def test_defaults_reach_every_kind_of_container() -> None:
    inits = [container({GPU: "1"}, "setup"), container({MEM: "5"}, "side", restartPolicy="Always")]
    changed = admitted(pod(container(), container({GPU: "2"}, "b"), initContainers=inits))
    assert [item["resources"]["limits"] for item in changed["spec"]["initContainers"]] == [
        {GPU: "1", CORES: "100"},
        {MEM: "5", GPU: "1"},
    ]
    assert "resources" not in changed["spec"]["containers"][0]
    assert limits_of(changed, 1) == {GPU: "2", CORES: "100"}


def test_defaults_follow_configured_names() -> None:
    rules = webhook_rules(resource_count="a~b.io/card", resource_cores="x/y")
    changed = admitted(pod(container({MEM: "7"}), container({"a~b.io/card": "1"}, "b")), rules)
    assert limits_of(changed) == {MEM: "7", "a~b.io/card": "1"}
    assert limits_of(changed, 1) == {"a~b.io/card": "1", "x/y": "100"}


@pytest.mark.parametrize("limits", [{}, None], ids=["empty", "null"])
def test_defaults_survive_a_pod_with_requests_only(limits: Json | None) -> None:
    asking = container()
    asking["resources"] = {"limits": limits, "requests": {GPU: "1"}}
    changed = json_patch(pod(asking), patch_of(ask(pod(asking))))
    resources = changed["spec"]["containers"][0]["resources"]
    assert resources == {"limits": {CORES: "100"}, "requests": {GPU: "1", CORES: "100"}}


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (None, [{"name": "CUDA_TASK_PRIORITY", "value": "1"}]),
        ([], [{"name": "CUDA_TASK_PRIORITY", "value": "1"}]),
        (
            [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}, "new": 1}],
            [
                {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}, "new": 1},
                {"name": "CUDA_TASK_PRIORITY", "value": "1"},
            ],
        ),
        (
            [{"name": "CUDA_TASK_PRIORITY", "value": "1"}],
            [{"name": "CUDA_TASK_PRIORITY", "value": "1"}],
        ),
    ],
    ids=["missing", "empty", "others", "same"],
)
def test_priority_becomes_an_environment_variable(env: object, expected: list[Json]) -> None:
    changed = admitted(pod(container({**SHARE, PRIO: "1"}, env=env), container(None, "b")))
    assert env_of(changed) == expected
    assert "env" not in changed["spec"]["containers"][1]


def test_core_policy_is_written_into_containers_with_cards_only() -> None:
    rules = webhook_rules(core_policy=CorePolicy.FORCE)
    users = [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "disable"}]
    obj = pod(
        container({**SHARE, PRIO: "0"}),
        container(None, "b"),
        container({NEURON: "1"}, "c"),
        container(SHARE, "d", env=users),
    )
    changed = admitted(obj, rules)
    policy = {"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"}
    assert env_of(changed) == [{"name": "CUDA_TASK_PRIORITY", "value": "0"}, policy]
    assert env_of(changed, 1) == env_of(changed, 2) == []
    assert env_of(changed, 3) == [policy]
    assert ask(obj, rules)["warnings"] == [
        "container d: environment variable GPU_CORE_UTILIZATION_POLICY is set to force, as "
        "configured here"
    ]


def test_runtime_class_is_set_for_cards_unless_the_pod_names_one() -> None:
    rules = webhook_rules(runtime_class_name="nvidia")
    assert admitted(pod(container(SHARE)), rules)["spec"]["runtimeClassName"] == "nvidia"
    own = pod(container(SHARE), runtimeClassName="kata")
    assert admitted(own, rules)["spec"]["runtimeClassName"] == "kata"
    assert "runtimeClassName" not in admitted(pod(container({NEURON: "1"})), rules)["spec"]
    assert "runtimeClassName" not in admitted(pod(container(SHARE)))["spec"]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (None, ["void"]),
        ([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}], ["void"]),
        ([{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"secretKeyRef": {}}}], ["void"]),
        ([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}], ["void"]),
        ([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}], ["void"]),
        ([{"name": "NVIDIA_VISIBLE_DEVICES", "value": v} for v in ("void", "0")], ["void", "void"]),
    ],
    ids=["absent", "literal", "value-from", "void", "none", "twice"],
)
def test_hidden_cards_overwrite_what_a_container_without_cards_says(
    env: object, expected: list[str]
) -> None:
    rules = webhook_rules(overwrite_env=True)
    changed = admitted(pod(container(None, env=env), container(SHARE, "b")), rules)
    assert [var["value"] for var in env_of(changed)] == expected
    assert env_of(changed, 1) == []
    alone = admitted(pod(container(None, env=env)), rules)
    assert [var["value"] for var in env_of(alone)] == expected
    assert alone["spec"]["schedulerName"] == "default-scheduler"


@pytest.mark.parametrize(
    "source",
    [{"value": v} for v in ("all", "GPU-1", "0", "void", "none", "")]
    + [{}, {"valueFrom": {"configMapKeyRef": {}}}],
    ids=str,
)
def test_visible_devices_of_a_container_with_cards_are_taken_out_for_the_nodes(
    source: Json,
) -> None:
    own = {"name": "NVIDIA_VISIBLE_DEVICES", **source}
    kept = [{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"}, {"name": "B"}]
    obj = pod(container(SHARE, env=[own, kept[0], own, kept[1]]))
    assert env_of(admitted(obj)) == kept
    assert ask(obj)["warnings"] == [
        "container main: environment variable NVIDIA_VISIBLE_DEVICES is removed: the node writes it"
    ]
    assert ask(admitted(obj)).get("warnings") is None


def test_visible_devices_are_taken_out_beside_what_is_set() -> None:
    obj = pod(container({**SHARE, PRIO: "1"}, env=[{"name": "NVIDIA_VISIBLE_DEVICES"}]))
    assert env_of(admitted(obj)) == [{"name": "CUDA_TASK_PRIORITY", "value": "1"}]


# -- What the manifests send here ------------------------------------------------------------------


@pytest.mark.parametrize("resource", ["nvidia.com/mig-1g.5gb", "nvidia.com/gpu-1of4"])
def test_cards_are_not_hidden_from_who_gets_an_instance_or_a_share_of_kubelet(
    resource: str,
) -> None:
    rules = webhook_rules(overwrite_env=True)
    assert patch_of(ask(pod(container({resource: "1"})), rules)) == []
    assert patch_of(ask(pod(container({"cpu": "1"})), rules)) != []


@pytest.mark.parametrize("place", ["annotations", "labels"])
def test_group_of_pods_is_said_to_have_no_effect(place: str) -> None:
    obj = pod(container(SHARE))
    obj["metadata"][place] = {"hami-node.io/pod-group": "training"}
    (said,) = ask(obj)["warnings"]
    assert "has no effect" in said
    assert "Kueue" in said
