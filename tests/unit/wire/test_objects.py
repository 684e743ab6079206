from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.errors import WireError
from hami_node.model import NO_CONDITIONS, ContainerKind
from hami_node.wire.objects import decode_node, decode_pod
from tests.unit.wire.totality import is_total

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "train",
        "namespace": "team-a",
        "uid": "6f0b",
        "resourceVersion": "77",
        "creationTimestamp": "2026-11-21T00:35:16Z",
        "annotations": {
            "hami.io/bind-phase": "allocating",
            "kubectl.kubernetes.io/last-applied-configuration": "{...}",
        },
        "labels": {"app": "train"},
        "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
    },
    "spec": {
        "nodeName": "node-a",
        "schedulerName": "hami-scheduler",
        "containers": [
            {
                "name": "main",
                "resources": {
                    "limits": {"nvidia.com/gpu": "1", "cpu": "2"},
                    "requests": {"nvidia.com/gpu": 1, "memory": "2Gi"},
                },
                "env": [
                    {"name": "CUDA_DISABLE_CONTROL", "value": "true"},
                    {"name": "NVIDIA_DRIVER_CAPABILITIES", "valueFrom": {"fieldRef": {}}},
                    {"name": "PATH", "value": "/bin"},
                ],
                "securityContext": {"privileged": True, "runAsUser": 0},
            }
        ],
        "initContainers": [
            {"name": "fetch"},
            {"name": "proxy", "restartPolicy": "Always"},
        ],
    },
    "status": {
        "phase": "Running",
        "initContainerStatuses": [
            {"name": "fetch", "state": {"terminated": {"exitCode": 0}}},
            {"name": "proxy", "state": {"running": {"startedAt": "2026-11-21T00:35:16Z"}}},
        ],
        "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 137}}}],
    },
}

NODE: dict[str, Any] = {
    "metadata": {
        "name": "node-a",
        "uid": "1",
        "resourceVersion": "9",
        "annotations": {"hami.io/mutex.lock": "2024-05-13T13:04:17Z"},
        "labels": {"node.kubernetes.io/instance-type": "inf2.24xlarge"},
    },
    "spec": {"unschedulable": True},
    "status": {
        "capacity": {"cpu": "8", "nvidia.com/gpu": "80"},
        "allocatable": {"cpu": "8", "nvidia.com/gpu": "70"},
        "conditions": [
            {"type": "MemoryPressure", "status": "False"},
            {"type": "Ready", "status": "False"},
        ],
    },
}


def raw(value: object) -> bytes:
    return json.dumps(value).encode()


def test_decode_pod_full_object_keeps_what_the_product_reads() -> None:
    pod = decode_pod(raw(POD))

    assert (pod.key, pod.uid, pod.node_name, pod.phase) == (
        "team-a/train",
        "6f0b",
        "node-a",
        "Running",
    )
    assert (pod.scheduler_name, pod.resource_version) == ("hami-scheduler", "77")
    assert pod.creation_time == "2026-11-21T00:35:16Z"
    assert pod.annotations == {"hami.io/bind-phase": "allocating"}
    assert pod.labels == {"app": "train"}
    assert not pod.is_being_deleted


def test_decode_pod_containers_have_init_containers_first_with_their_kinds() -> None:
    pod = decode_pod(raw(POD))

    assert [(item.name, item.kind) for item in pod.containers] == [
        ("fetch", ContainerKind.INIT),
        ("proxy", ContainerKind.SIDECAR),
        ("main", ContainerKind.APP),
    ]


def test_decode_pod_container_ended_with_0_is_terminated_ok() -> None:
    pod = decode_pod(raw(POD))

    assert [item.is_terminated_ok for item in pod.containers] == [True, False, False]


def test_decode_pod_container_keeps_extended_resources_and_literal_accelerator_variables() -> None:
    main = decode_pod(raw(POD)).containers[2]

    assert main.limits == {"nvidia.com/gpu": "1"}
    assert main.requests == {"nvidia.com/gpu": "1"}
    assert main.env == {"CUDA_DISABLE_CONTROL": "true"}
    assert main.is_privileged


@pytest.mark.parametrize(
    ("source", "value"),
    [({"value": "1"}, "1"), ({}, ""), ({"valueFrom": {"fieldRef": {}}}, "")],
    ids=["literal", "empty", "from"],
)
@pytest.mark.parametrize("name", ["NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_VISIBLE_DEVICES"])
def test_decode_pod_says_that_a_cards_variable_is_set_wherever_its_value_is(
    name: str, source: dict[str, object], value: str
) -> None:
    env = [{"name": name, **source}, {"name": "CUDA_X", "valueFrom": {}}]
    found = decode_pod({"spec": {"containers": [{"name": "a", "env": env}]}})
    assert found.containers[0].env == {name: value}


def test_decode_node_has_the_versions_of_kubelet_and_engine() -> None:
    info = {"kubeletVersion": "v1.34.0", "containerRuntimeVersion": "containerd://2.1.4"}
    found = decode_node({"metadata": {"name": "n"}, "status": {"nodeInfo": info}})
    assert (found.kubelet_version, found.engine_version) == tuple(info.values())
    assert decode_node({"status": {"nodeInfo": None}}).engine_version == ""


def test_decode_pod_parsed_json_is_the_same_as_its_text() -> None:
    assert decode_pod(POD) == decode_pod(raw(POD)) == decode_pod(raw(POD).decode())


def nulled(value: object) -> object:
    """The same object with every leaf and every inner object null."""
    return dict.fromkeys(value) if isinstance(value, dict) else None


@pytest.mark.parametrize(
    "value",
    [
        pytest.param({}, id="empty"),
        pytest.param(nulled(POD), id="null parts"),
        pytest.param({part: nulled(POD[part]) for part in ("metadata", "spec")}, id="null fields"),
        pytest.param({"spec": {"containers": [{"resources": None, "env": None}]}}, id="null lists"),
        pytest.param({"metadata": {"annotations": {"a": None}}}, id="null annotation"),
        pytest.param({"status": {"containerStatuses": [{"state": {}}, {}]}}, id="null states"),
    ],
)
def test_decode_pod_nulls_and_missing_parts_are_absent(value: object) -> None:
    pod = decode_pod(raw(value))

    assert (pod.name, pod.phase) == ("", "Pending")


@pytest.mark.parametrize(
    "raw_pod",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xff\xfe", id="not Unicode"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b'{"metadata":{"name":7}}', id="a number as name"),
        pytest.param(b"[" * 100_000, id="nested too deeply"),
        pytest.param("\ud800", id="half a surrogate"),
        pytest.param({"spec": {"containers": "all"}}, id="parsed: text as list"),
    ],
)
def test_decode_pod_damaged_object_is_a_wire_error(raw_pod: Any) -> None:
    with pytest.raises(WireError, match="pod"):
        decode_pod(raw_pod)


def test_decode_pod_error_names_the_field_and_not_the_object() -> None:
    with pytest.raises(WireError) as caught:
        decode_pod(b'{"spec":{"nodeName":7,"secret":"hunter2"}}')

    assert "$.spec.nodeName" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_decode_pod_with_a_deletion_time_is_being_deleted() -> None:
    assert decode_pod({"metadata": {"deletionTimestamp": "2026-11-21T00:35:16Z"}}).is_being_deleted


def test_decode_node_full_object_keeps_what_the_product_reads() -> None:
    node = decode_node(raw(NODE))

    assert (node.name, node.uid, node.resource_version) == ("node-a", "1", "9")
    assert node.annotations == {"hami.io/mutex.lock": "2024-05-13T13:04:17Z"}
    assert node.labels == {"node.kubernetes.io/instance-type": "inf2.24xlarge"}
    assert node.capacity == {"nvidia.com/gpu": "80"}
    assert node.allocatable == {"nvidia.com/gpu": "70"}
    assert node.is_unschedulable
    assert not node.is_ready


@pytest.mark.parametrize(
    ("conditions", "is_ready"),
    [
        pytest.param([{"type": "Ready", "status": "True"}], True, id="ready"),
        pytest.param([{"type": "Ready", "status": "Unknown"}], False, id="unknown"),
        pytest.param([], True, id="no condition"),
        pytest.param(None, True, id="null"),
    ],
)
def test_decode_node_ready_condition_decides(conditions: object, is_ready: bool) -> None:
    assert decode_node({"status": {"conditions": conditions}}).is_ready is is_ready


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["metadata", "spec", "status", "items", "containers", "name", "env", "type"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("decode", [decode_pod, decode_node])
@given(value=st.binary(max_size=40) | st.text(max_size=40) | JSON.map(json.dumps))
def test_decoders_any_input_gives_a_value_or_a_wire_error(
    decode: Callable[[bytes | str], object], value: bytes | str
) -> None:
    assert is_total(decode, value)


def test_decode_node_keeps_the_reasons_of_conditions_that_are_not_kubelets() -> None:
    conditions = [
        {"type": "Ready", "status": "True", "reason": "KubeletReady"},
        {"type": "MemoryPressure", "status": "False", "reason": "KubeletHasSufficientMemory"},
        {"type": "NeuronHealth", "status": "False", "reason": "NeuronHasNoError"},
        {"type": "Odd"},
        {"reason": "of no type"},
    ]
    node = decode_node({"status": {"conditions": conditions}})
    assert node.conditions == {"NeuronHealth": "NeuronHasNoError", "Odd": ""}
    assert decode_node({"status": {"conditions": conditions[:2]}}).conditions is NO_CONDITIONS


def _conditions(*items: dict[str, str]) -> str:
    given = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"} | i for i in items
    ]
    return decode_pod({"status": {"conditions": given}}).unscheduled


def test_decode_pod_tells_apart_what_kube_scheduler_says_of_an_unbound_pod() -> None:
    first = _conditions({"message": "no card"})
    assert first == _conditions({"message": "no card"}, {"type": "Ready"})
    others = [
        _conditions({"message": "no volume"}),
        _conditions({"message": "no card", "lastTransitionTime": "2026-01-01T00:00:00Z"}),
        _conditions({"message": "no card", "reason": "SchedulerError"}),
        _conditions({"status": "True"}),
    ]
    assert len({first, *others}) == 5
    assert len(_conditions({"message": "x" * 100_000})) < 100


def test_decode_pod_with_a_scheduling_gate_was_not_refused() -> None:
    assert _conditions({"reason": "SchedulingGated"}) == ""
