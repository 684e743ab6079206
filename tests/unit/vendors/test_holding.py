from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hami_node.engine.usage import collapse
from hami_node.model import ContainerKind, Pod
from hami_node.vendors.holding import (
    has_grants,
    holding_of,
    marks_of,
    node_of,
    reservation_keys,
    stamped_age_s,
)
from hami_node.vendors.neuron import names as neuron_names
from hami_node.vendors.neuron.protocol import neuron_protocol
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.wire import names
from hami_node.wire.objects import decode_pod
from tests.fakes.pods import Box, Generation, Part, layout, pod_body

VENDORS = (nvidia_protocol(), neuron_protocol())
MAIN = Box(memory_mib=1000)
INIT = Box(name="init", memory_mib=4000, kind=ContainerKind.INIT)
TEXT = "GPU-1,NVIDIA,1000,10:;"


def pod(*boxes: Box, text: str = TEXT, node: str = "", **fields: Any) -> Pod:
    notes = {names.POD_NODE: "n1", nvidia_names.POD_ALLOCATED: text} | fields.pop("annotations", {})
    body = pod_body("p", boxes or (MAIN,), notes, node=node, phase=fields.pop("phase", "Pending"))
    body["metadata"].update(fields)
    return decode_pod(body)


def held(given: Pod) -> dict[str, int]:
    """MiB by card."""
    found = holding_of(given, VENDORS)
    return (
        {}
        if found is None
        else {charge.uuid: charge.memory_mib for charge in collapse(found.grants)}
    )


@pytest.mark.parametrize("node", ["", "n1"])
def test_grants_count_from_the_reservation_on(node: str) -> None:
    found = holding_of(pod(node=node), VENDORS)
    assert found is not None
    assert (found.node, found.is_bound) == ("n1", bool(node))
    assert held(pod(node=node)) == {"GPU-1": 1000}


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(pod(phase="Succeeded", node="n1"), id="succeeded"),
        pytest.param(pod(phase="Failed", node="n1"), id="failed"),
        pytest.param(pod(annotations={names.POD_NODE: ""}), id="no node"),
        pytest.param(pod(deletionTimestamp="2026-01-01T00:00:00Z"), id="deleted unbound"),
        pytest.param(pod(Box(cards=0), node="n1"), id="it asks for nothing"),
        pytest.param(pod(text="nonsense", node="n1"), id="nothing can be counted"),
        pytest.param(pod(text=""), id="no grants"),
        pytest.param(pod(text=TEXT * 2), id="unbound, and does not match its containers"),
    ],
)
def test_pod_holds_nothing(given: Pod) -> None:
    assert holding_of(given, VENDORS) is None


def test_bound_pod_with_an_unclear_reservation_holds_all_of_it() -> None:
    assert held(pod(text=TEXT + "GPU-2,NVIDIA,500,0:;", node="n1")) == {
        "GPU-1": 1000,
        "GPU-2": 500,
    }


def test_pod_that_is_deleted_while_it_runs_holds_on() -> None:
    assert held(pod(node="n1", deletionTimestamp="2026-01-01T00:00:00Z")) == {"GPU-1": 1000}


@pytest.mark.parametrize("waiting", ["", ";", ";;", TEXT, "GPU-9,NVIDIA,1,1:;", "nonsense"])
def test_what_is_left_to_allocate_changes_nothing(waiting: str) -> None:
    given = pod(node="n1", annotations={nvidia_names.POD_TO_ALLOCATE: waiting})
    assert held(given) == {"GPU-1": 1000}


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        pytest.param(Generation.V2_4, 1000, id="2.4 gives init containers nothing"),
        pytest.param(Generation.V2_7, 1000, id="2.7 gives init containers nothing"),
        pytest.param(Generation.V2_10, 4000, id="2.10 counts the larger of both"),
    ],
)
def test_init_containers_count_as_their_generation_wrote_them(
    generation: Generation, expected: int
) -> None:
    boxes = (INIT, MAIN)
    parts = {
        "init": [Part(uuid="GPU-1", memory_mib=4000)],
        "main": [Part(uuid="GPU-1", memory_mib=1000)],
    }
    text = layout(boxes, parts, generation)
    assert held(pod(*boxes, text=text, node="n1")) == {"GPU-1": expected}


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(pod(node="n1"), id="it is bound"),
        pytest.param(pod(phase="Failed"), id="it has ended"),
        pytest.param(pod(deletionTimestamp="2026-01-01T00:00:00Z"), id="it is deleted"),
        pytest.param(pod(text=TEXT * 2), id="other grants"),
        pytest.param(pod(annotations={names.POD_TIME: "1"}), id="another time"),
        pytest.param(pod(annotations={names.POD_NODE: "n2"}), id="another node"),
        pytest.param(pod(annotations={nvidia_names.POD_MIG_ALLOCATIONS: "[]"}), id="parts"),
        pytest.param(
            pod(annotations={neuron_names.POD_NEURON_ALLOCATED: ";"}), id="another vendor's grants"
        ),
    ],
)
def test_marks_differ_with_what_a_holding_is_made_of(other: Pod) -> None:
    assert marks_of(other, VENDORS) != marks_of(pod(), VENDORS)


@pytest.mark.parametrize(
    ("stamp", "age_s"),
    [
        pytest.param("900", 100.0, id="seconds"),
        pytest.param("", 0.0, id="none"),
        pytest.param("soon", 0.0, id="no number"),
        pytest.param("9" * 400, 0.0, id="absurd"),
        pytest.param("٣", 0.0, id="another script's digits"),
    ],
)
def test_age_is_read_from_the_stamp(stamp: str, age_s: float) -> None:
    assert stamped_age_s(pod(annotations={names.POD_TIME: stamp}), 1000.0) == age_s


def neuron_pod(text: str, *, node: str = "n1", containers: int = 1, **annotations: str) -> Pod:
    """Each container asks for two Neuron cores."""
    limits = {"limits": {neuron_names.RESOURCE_NEURON_CORE: "2"}}
    notes = {names.POD_NODE: "n1", neuron_names.POD_NEURON_ALLOCATED: text} | annotations
    body = pod_body("p", (), notes, node=node)
    body["spec"]["containers"] = [
        {"name": f"c{place}", "resources": limits} for place in range(containers)
    ]
    return decode_pod(body)


NEURON_TEXT = "n1-AWSNeuron-0,AWSNeuron,0,3:;"


@pytest.mark.parametrize("node", ["", "n1"])
def test_neuron_slots_are_those_of_the_containers(node: str) -> None:
    found = holding_of(neuron_pod(f";{NEURON_TEXT}", node=node, containers=2), VENDORS)

    assert found is not None
    first, (grant,) = found.grants.containers
    assert first == ()
    assert (grant.uuid, grant.cores) == ("n1-AWSNeuron-0", 3)


@pytest.mark.parametrize(
    ("node", "slots"),
    [pytest.param("", None, id="unbound"), pytest.param("n1", 1, id="bound")],
)
def test_neuron_slots_of_another_number_count_once_the_pod_is_bound(
    node: str, slots: int | None
) -> None:
    found = holding_of(neuron_pod(NEURON_TEXT, node=node, containers=2), VENDORS)

    assert (None if found is None else len(found.grants.containers)) == slots


@pytest.mark.parametrize("text", ["", "nonsense,1;"])
def test_neuron_text_that_holds_nothing(text: str) -> None:
    assert holding_of(neuron_pod(text), VENDORS) is None


def test_grants_of_two_vendors_stand_beside_each_other() -> None:
    given = pod(node="n1", annotations={neuron_names.POD_NEURON_ALLOCATED: NEURON_TEXT})
    both = replace(
        given,
        containers=tuple(
            replace(item, limits={**item.limits, neuron_names.RESOURCE_NEURON: "1"})
            for item in given.containers
        ),
    )

    assert held(given) == {"GPU-1": 1000}, "it asks for no Neuron device"
    assert held(both) == {"GPU-1": 1000, "n1-AWSNeuron-0": 0}


def test_unreadable_mig_rows_leave_the_grant_without_an_instance() -> None:
    given = pod(node="n1", annotations={nvidia_names.POD_MIG_ALLOCATIONS: "[{"})
    found = holding_of(given, VENDORS)

    assert found is not None
    assert [grant.part for grant in found.grants.containers[0]] == [None]


def test_node_of_a_bound_pod_is_where_it_runs() -> None:
    assert node_of(pod(node="n2")) == "n2"
    assert node_of(pod()) == "n1"
    assert node_of(pod(annotations={names.POD_NODE: ""})) == ""


def test_has_grants_of_any_vendor_whatever_they_are_worth() -> None:
    assert has_grants(pod(text="nonsense"), VENDORS)
    assert has_grants(neuron_pod(NEURON_TEXT), VENDORS)
    assert not has_grants(neuron_pod(NEURON_TEXT), VENDORS[:1])
    assert not has_grants(pod(text=""), VENDORS)


def test_reservation_keys_are_all_that_only_a_scheduler_writes() -> None:
    assert set(reservation_keys(VENDORS)) == {
        "hami.io/vgpu-node",
        "hami.io/vgpu-time",
        "hami.io/vgpu-devices-to-allocate",
        "hami.io/vgpu-devices-allocated",
        "hami.io/vgpu-mig-allocations",
        "hami.io/bind-phase",
        "hami.io/bind-time",
        "hami.io/aws-neuron-devices-allocated",
        "AWS_NEURON_IDS",
        "NEURON_RESOURCE_TYPE",
        "NEURON_ALLOC_TIME",
        "NEURON_ALLOCATED",
        "aws.amazon.com/predicate-node",
        "hami-node.io/resize-approved",
        "hami-node.io/resize-state",
        "hami-node.io/victims",
    }
