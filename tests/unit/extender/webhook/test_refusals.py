"""Which pods the webhook refuses or warns about, and in which words."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from hami_node.config.settings import Generation
from hami_node.extender.webhook import LONGEST_MESSAGE
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.unit.extender.reviews import (
    CORES,
    GPU,
    MEM,
    NEURON,
    NEURON_CORE,
    PCT,
    PRIO,
    RESERVATION_KEYS,
    SHARE,
    Json,
    Limits,
    admitted,
    ask,
    container,
    env_of,
    patch_of,
    pod,
    refusal,
    webhook_rules,
)


# -- What is refused -------------------------------------------------------------------------------
@pytest.mark.parametrize("key", RESERVATION_KEYS)
@pytest.mark.parametrize(
    "obj",
    [pod(container()), pod(container(SHARE)), pod(container(SHARE), schedulerName="other")],
    ids=["asks-nothing", "asks", "foreign-scheduler"],
)
def test_grant_annotation_of_a_user_is_refused(key: str, obj: Json) -> None:
    forged = copy.deepcopy(obj)
    forged["metadata"]["annotations"] = {key: "", names.POD_GPU_POLICY: "spread"}
    code, message = refusal(forged)
    assert (code, message) == (
        403,
        f"annotation {key} is written by the scheduler when it reserves devices, never by a user: "
        "remove it from metadata.annotations (a template copied from a live pod contains such "
        "annotations)",
    )


def test_all_grant_annotations_are_named_in_one_sentence() -> None:
    code, message = refusal(pod(container(), annotations=dict.fromkeys(RESERVATION_KEYS, "x")))
    assert code == 403
    assert message.startswith("annotations hami.io/vgpu-node, hami.io/vgpu-time, ")
    assert "remove them from" in message
    assert all(key in message for key in RESERVATION_KEYS)


@pytest.mark.parametrize("prefix", ["hami.io/", "nvidia.com/"])
def test_other_annotations_of_ours_are_no_grants(prefix: str) -> None:
    obj = pod(
        container(SHARE), annotations={f"{prefix}note": "x", nvidia_names.USE_GPU_UUID: "GPU-1"}
    )
    assert ask(obj)["allowed"]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({GPU: "1", MEM: "4Gi"}, "nvidia.com/gpumem is 4Gi: is too large: at most 2147483647"),
        ({GPU: "1", MEM: "1500m"}, "nvidia.com/gpumem is 1500m: has to be a whole number"),
        ({GPU: "1", MEM: "many"}, "nvidia.com/gpumem is many: not a Kubernetes quantity"),
        ({GPU: "-1"}, "nvidia.com/gpu is -1: can't be negative (write a whole number of cards"),
        ({GPU: "500m"}, "nvidia.com/gpu is 500m: has to be a whole number"),
        ({GPU: "1", PCT: "150"}, "percentage is 150: has to be a whole number from 0 to 100"),
        ({GPU: "1", PCT: "-5"}, "percentage is -5: has to be a whole number from 0 to 100"),
        ({PCT: "101"}, "nvidia.com/gpumem-percentage is 101"),
        ({CORES: "0.5"}, "nvidia.com/gpucores is 0.5: has to be a whole number"),
        ({GPU: "1", PRIO: "2"}, "nvidia.com/priority is 2: has to be 0 or 1 (write 0 for high"),
        ({GPU: "1", PRIO: "x"}, "nvidia.com/priority is x: not a Kubernetes quantity"),
        ({NEURON: "1.5"}, "aws.amazon.com/neuron is 1.5: has to be a whole number"),
        ({NEURON_CORE: "3"}, "aws.amazon.com/neuroncore is 3: has to be 1 or a multiple of 2"),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_bad_value_is_refused_with_container_resource_value_and_hint(
    limits: Limits, expected: str
) -> None:
    rules = webhook_rules(compat=Generation.V2_10)
    code, message = refusal(pod(container(None), container(limits, "b")), rules)
    assert code == 400
    assert message.startswith("container b: ")
    assert expected in message
    assert "(write " in message


@pytest.mark.parametrize("compat", Generation)
def test_neuron_devices_and_cores_in_one_container_are_refused(compat: Generation) -> None:
    obj = pod(container({NEURON: "1", NEURON_CORE: "10"}))
    code, message = refusal(obj, webhook_rules(compat=compat))
    assert code == 400
    assert message.startswith("container main: aws.amazon.com/neuron is 1: beside it ")
    assert "asks for 10 aws.amazon.com/neuroncore" in message


def test_neuron_devices_beside_no_cores_come_in() -> None:
    assert ask(pod(container({NEURON: "1", NEURON_CORE: "0"})))["allowed"]
    split = pod(container({NEURON: "1"}), container({NEURON_CORE: "2"}, "b"))
    assert ask(split)["allowed"]


def test_bad_value_after_the_memory_factor_is_refused() -> None:
    rules = webhook_rules(memory_factor=256)
    code, message = refusal(pod(container({GPU: "1", MEM: "9000000"})), rules)
    assert code == 400
    assert "write pieces of 256 MiB as a plain whole number" in message


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_privileged_container_beside_devices_is_refused_by_name(kind: str) -> None:
    obj = pod(container(SHARE))
    bad = container(None, "root", securityContext={"privileged": True})
    obj["spec"].setdefault(kind, []).append(bad)
    code, message = refusal(obj)
    assert code == 403
    assert "container root is privileged and would see every card of the node: remove" in message


def test_node_name_beside_devices_is_refused() -> None:
    code, message = refusal(pod(container(SHARE), nodeName="n1"))
    assert code == 403
    assert message.startswith("pod has node assigned: spec.nodeName is n1, so no scheduler can")
    assert "kubernetes.io/hostname" in message


@pytest.mark.parametrize(
    "obj", [pod(), pod(initContainers=[container()]), {}], ids=["none", "inits-only", "empty"]
)
def test_pod_without_containers_is_refused(obj: Json) -> None:
    assert refusal(obj) == (
        400,
        "pod has no containers: add at least one to spec.containers",
    )


@pytest.mark.parametrize(
    "name",
    [
        "CUDA_DEVICE_MEMORY_LIMIT",
        "CUDA_DEVICE_MEMORY_LIMIT_0",
        "CUDA_DEVICE_SM_LIMIT",
        "CUDA_DEVICE_SM_LIMIT_1",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE",
        "CUDA_OVERSUBSCRIBE",
        "CUDA_REDIRECT",
        "NVIDIA_GPU_MEMORY_LIMIT",
        "NVIDIA_GPU_MEMORY_REQUEST",
        "LD_PRELOAD",
    ],
)
@pytest.mark.parametrize(
    "source", [{"value": ""}, {"valueFrom": {"configMapKeyRef": {}}}], ids=["literal", "from"]
)
def test_reserved_variable_in_a_container_with_cards_is_refused(name: str, source: Json) -> None:
    code, message = refusal(pod(container(SHARE, env=[{"name": "A"}, {"name": name, **source}])))
    assert code == 403
    assert message.startswith(f"container main: environment variable {name} ")
    assert message.endswith(": remove it from env")


def test_reserved_variables_are_free_in_containers_with_neuron_devices_only() -> None:
    env = [{"name": "LD_PRELOAD", "value": "x"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    assert env_of(admitted(pod(container({NEURON: "1"}, env=env)))) == env


@pytest.mark.parametrize(
    ("source", "is_refused"),
    [
        ({"value": "all"}, True),
        ({"value": "GPU-1"}, True),
        ({"valueFrom": {"fieldRef": {}}}, True),
        ({"value": "void"}, False),
        ({}, False),
        ({"value": "", "valueFrom": None}, False),
    ],
    ids=["all", "uuid", "from", "void", "empty", "null-from"],
)
def test_visible_devices_beside_a_container_with_cards(source: Json, is_refused: bool) -> None:
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", **source}]
    obj = pod(container(SHARE), container(None, "b", env=env))
    if not is_refused:
        assert env_of(admitted(obj), 1) == env
        return
    assert refusal(obj) == (
        403,
        "container b: environment variable NVIDIA_VISIBLE_DEVICES would show it cards that other "
        "containers asked for, and it asks for none: remove it from env",
    )


def test_visible_devices_none_is_refused_because_void_hides_cards_everywhere() -> None:
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]
    assert refusal(pod(container(SHARE), container(None, "b", env=env))) == (
        403,
        "container b: environment variable NVIDIA_VISIBLE_DEVICES fails with NVIDIA's runtime in "
        "CDI mode, and shows all cards with one version of it (void hides them everywhere): remove "
        "it from env",
    )


def test_task_priority_that_contradicts_the_resource_is_refused() -> None:
    env = [{"name": "CUDA_TASK_PRIORITY", "value": "0"}]
    code, message = refusal(pod(container({**SHARE, PRIO: "1"}, env=env)))
    assert code == 403
    assert "CUDA_TASK_PRIORITY contradicts nvidia.com/priority 1: remove it" in message
    assert env_of(admitted(pod(container(SHARE, env=env)))) == env


@pytest.mark.parametrize(
    "text", ["", "slot=1", "slot=0,core=0,memory=0", "slot=-1,core=1,memory=1"]
)
def test_scoring_weights_that_the_engine_refuses_are_refused(text: str) -> None:
    code, message = refusal(pod(container(SHARE), annotations={names.POD_SCORING_WEIGHTS: text}))
    assert code == 400
    assert "write slot=1,core=1,memory=1 with whole numbers" in message


def test_problems_are_told_together() -> None:
    root = {"privileged": True}
    obj = pod(container({GPU: "x"}), container(SHARE, "b", securityContext=root), nodeName="n1")
    code, message = refusal(obj)
    assert code == 403
    assert [part.split(" ")[0] for part in message.split("; ")] == ["pod", "container", "container"]


@pytest.mark.parametrize(
    "obj",
    [
        pod(container(), annotations={nvidia_names.POD_ALLOCATED: "x"}),
        pod(container({GPU: "1", MEM: "4Gi"})),
        pod(container({GPU: "1", PCT: "150"})),
        pod(container({GPU: "1", PRIO: "2"})),
        pod(container(SHARE), nodeName="n1"),
        pod(container(SHARE, securityContext={"privileged": True})),
        pod(container(SHARE, env=[{"name": "LD_PRELOAD", "value": "/x.so"}])),
        pod(
            container(SHARE),
            container(None, "b", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
        ),
        pod(container(SHARE), annotations={names.POD_SCORING_WEIGHTS: "slot=1"}),
        pod(),
    ],
    ids=[
        "grant",
        "value",
        "percent",
        "priority",
        "node",
        "privileged",
        "env",
        "shown",
        "weights",
        "empty",
    ],
)
def test_sentence_stands_in_the_documents_as_it_is_said(obj: Json) -> None:
    page = (Path(__file__).parents[4] / "docs/troubleshooting.md").read_text()
    assert f"| {refusal(obj)[1]} |" in page


def test_message_stays_short_however_much_is_wrong() -> None:
    many = [container({GPU: "é" * 500}, "é" * 500) for _ in range(500)]
    code, message = refusal(pod(*many))
    assert code == 400
    assert len(message.encode()) <= LONGEST_MESSAGE
    few = [container({GPU: "x"}, f"c{i}") for i in range(25)]
    assert refusal(pod(*few))[1].endswith("...")


# -- Warnings --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("limits", "annotations", "expected"),
    [
        ({GPU: "0", MEM: "5"}, {}, "names nvidia.com/gpumem without nvidia.com/gpu above 0"),
        ({PRIO: "1"}, {}, "names nvidia.com/priority without nvidia.com/gpu above 0"),
        ({**SHARE, CORES: "120"}, {}, "120 percent of one card: it counts as 100"),
        ({GPU: "1", MEM: "1Gi"}, {}, "means 1073741824 MiB on each card, more than any card has"),
        ({NEURON_CORE: "5"}, {}, "rounded down to whole devices: 1 less"),
        (SHARE, {names.POD_GPU_POLICY: "spread, tight"}, "tight is not one of binpack, mutex"),
        (SHARE, {names.POD_NODE_POLICY: "mutex"}, "mutex is not one of binpack, spread"),
        (
            SHARE,
            {nvidia_names.VGPU_MODE: "time-slice"},
            "time-slice is not one of hami-core, mig, mps",
        ),
    ],
    ids=[
        "count-0",
        "priority",
        "cores",
        "gibibytes",
        "neuron",
        "gpu-policy",
        "node-policy",
        "mode",
    ],
)
def test_odd_request_comes_in_with_a_warning(
    limits: Limits, annotations: Json, expected: str
) -> None:
    response = ask(pod(container(limits), annotations=annotations))
    assert response["allowed"]
    (warning,) = response["warnings"]
    assert expected in warning


def test_no_default_count_leaves_the_pod_alone_with_a_warning() -> None:
    response = ask(pod(container({MEM: "5"})), webhook_rules(default_count=0))
    assert patch_of(response) == []
    assert response["warnings"] == [
        "container main: names nvidia.com/gpumem without nvidia.com/gpu above 0: it gets no card"
    ]


def test_warnings_are_few_and_short() -> None:
    many = [container({PRIO: "1"}, "n" * 300) for _ in range(50)]
    warnings = ask(pod(*many))["warnings"]
    assert len(warnings) == 15
    assert max(len(warning.encode()) for warning in warnings) <= 256


def test_known_words_bring_no_warning() -> None:
    wishes = {
        names.POD_GPU_POLICY: "binpack,spread, topology-aware,mutex,numa",
        names.POD_NODE_POLICY: "spread",
        nvidia_names.VGPU_MODE: "hami-core,mig",
        names.POD_SCORING_WEIGHTS: "slot=1, core=2, memory=0",
    }
    assert "warnings" not in ask(pod(container(SHARE), annotations=wishes))
