from __future__ import annotations

from typing import Any

import pytest

from hami_node.engine.usage import collapse
from hami_node.extender.holdings import holding_of, marks_of, stamped_age_s
from hami_node.extender.rules import rules_of
from hami_node.model import ContainerKind, Pod
from hami_node.settings import Settings
from hami_node.wire import names
from hami_node.wire.objects import decode_pod
from tests.fakes.pods import Box, Generation, Part, layout, pod_body

RESOURCES = rules_of(Settings()).names
MAIN = Box(memory_mib=1000)
INIT = Box(name="init", memory_mib=4000, kind=ContainerKind.INIT)
TEXT = "GPU-1,NVIDIA,1000,10:;"


def pod(*boxes: Box, text: str = TEXT, node: str = "", **fields: Any) -> Pod:
    notes = {names.POD_NODE: "n1", names.POD_ALLOCATED: text} | fields.pop("annotations", {})
    body = pod_body("p", boxes or (MAIN,), notes, node=node, phase=fields.pop("phase", "Pending"))
    body["metadata"].update(fields)
    return decode_pod(body)


def held(given: Pod) -> dict[str, int]:
    """MiB by card."""
    found = holding_of(given, RESOURCES)
    return {} if found is None else {one.uuid: one.memory_mib for one in collapse(found.grants)}


@pytest.mark.parametrize("node", ["", "n1"])
def test_grants_count_from_the_reservation_on(node: str) -> None:
    found = holding_of(pod(node=node), RESOURCES)
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
    assert holding_of(given, RESOURCES) is None


def test_bound_pod_with_an_unclear_reservation_holds_all_of_it() -> None:
    assert held(pod(text=TEXT + "GPU-2,NVIDIA,500,0:;", node="n1")) == {
        "GPU-1": 1000,
        "GPU-2": 500,
    }


def test_pod_that_is_deleted_while_it_runs_holds_on() -> None:
    assert held(pod(node="n1", deletionTimestamp="2026-01-01T00:00:00Z")) == {"GPU-1": 1000}


@pytest.mark.parametrize("waiting", ["", ";", ";;", TEXT, "GPU-9,NVIDIA,1,1:;", "nonsense"])
def test_what_is_left_to_allocate_changes_nothing(waiting: str) -> None:
    given = pod(node="n1", annotations={names.POD_TO_ALLOCATE: waiting})
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
    ],
)
def test_marks_differ_with_what_a_holding_is_made_of(other: Pod) -> None:
    assert marks_of(other) != marks_of(pod())


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
