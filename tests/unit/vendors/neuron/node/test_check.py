"""Checks of what a scheduler wrote on a Neuron pod."""

from __future__ import annotations

import pytest

from hami_node.vendors.neuron.node.check import (
    NeuronClaim,
    NeuronFault,
    NeuronShape,
    check_neuron_pod,
    held_cores,
)
from hami_node.vendors.neuron.placement import NeuronUnit

TRN1 = NeuronShape(devices=16, cores_per_device=2, instance_type="trn1.32xlarge")
INF2 = NeuronShape(devices=12, cores_per_device=2, instance_type="ml.inf2.48xlarge")
INF1 = NeuronShape(devices=4, cores_per_device=4, instance_type="inf1.6xlarge")
TRN2 = NeuronShape(devices=16, cores_per_device=4, instance_type="trn2.48xlarge")
NO_TYPE = NeuronShape(devices=6, cores_per_device=2)


def _devices(*ids: int, asked: int | None = None) -> NeuronClaim:
    return NeuronClaim(devices=len(ids) if asked is None else asked, ids=ids)


def _cores(*ids: int, asked: int | None = None) -> NeuronClaim:
    return NeuronClaim(cores=len(ids) if asked is None else asked, ids=ids)


def _faults(claim: NeuronClaim, shape: NeuronShape) -> list[NeuronFault]:
    return [finding.fault for finding in check_neuron_pod(claim, shape, "n1", {})]


@pytest.mark.parametrize(
    ("claim", "shape"),
    [
        (_devices(4, 5, 6, 7), TRN1),
        (_devices(*range(16)), TRN1),
        (_devices(13), TRN1),
        (_devices(1, 2, 3), INF2),
        (_devices(*range(6)), NO_TYPE),
        (_cores(30), TRN1),
        (_cores(*range(8, 16)), TRN1),
        (_cores(*range(9)), INF1),
        (_cores(3, 4), INF1),
        (_cores(16, 17, 18, 19), TRN2),
        (_devices(asked=1), TRN1),
        (_devices(asked=16), TRN1),
        (_cores(asked=32), TRN1),
        (NeuronClaim(), TRN1),
        (NeuronClaim(cores=1, ids=(3,), unit=NeuronUnit.CORE, predicate_node="n1"), TRN1),
    ],
    ids=[
        "trn row", "trn all", "trn one", "inf run", "all of no type", "one core", "cores of a row",
        "9 cores on inf1", "run across devices", "one device of cores", "one without ids",
        "all without ids", "all cores without ids", "no request", "everything written",
    ],
)  # fmt: skip
def test_check_neuron_pod_sound_pod_has_no_findings(claim: NeuronClaim, shape: NeuronShape) -> None:
    assert _faults(claim, shape) == []


@pytest.mark.parametrize(
    ("claim", "shape", "faults"),
    [
        (NeuronClaim(devices=1, ids=None), TRN1, [NeuronFault.UNREADABLE]),
        (_devices(asked=4), TRN1, [NeuronFault.MISSING]),
        (_devices(0, 1, 2, 3, asked=8), TRN1, [NeuronFault.WRONG_COUNT]),
        (_devices(16), TRN1, [NeuronFault.OUT_OF_RANGE]),
        (_cores(32), TRN1, [NeuronFault.OUT_OF_RANGE]),
        (_cores(44), INF2, [NeuronFault.OUT_OF_RANGE]),
        (_devices(11, 11), INF2, [NeuronFault.REPEATED]),
        (_devices(1, 0), INF2, [NeuronFault.NOT_ASCENDING]),
        (_devices(0, 2), INF2, [NeuronFault.NOT_CONSECUTIVE, NeuronFault.INVALID_SET]),
        (_devices(11, 0), INF2, [NeuronFault.NOT_ASCENDING, NeuronFault.INVALID_SET]),
        (_cores(0, 1, 4, 5), INF1, [NeuronFault.NOT_CONSECUTIVE]),
        (_devices(2, 3, 4, 5), TRN1, [NeuronFault.INVALID_SET]),
        (_devices(0, 1), TRN1, [NeuronFault.INVALID_SET]),
        (_cores(*range(16, 32)), NO_TYPE, [NeuronFault.OUT_OF_RANGE]),
        (_devices(0, 1), NO_TYPE, [NeuronFault.INVALID_SET]),
        (_cores(3, 4), TRN2, [NeuronFault.INVALID_SET]),
        (NeuronClaim(devices=1, cores=1, ids=(4, 6)), TRN1, [NeuronFault.MIXED_UNITS]),
        (
            NeuronClaim(devices=1, ids=(4,), unit=NeuronUnit.CORE),
            TRN1,
            [NeuronFault.RESOURCE_TYPE],
        ),
        (NeuronClaim(devices=1, ids=(4,), predicate_node="n2"), TRN1, [NeuronFault.OTHER_NODE]),
    ],
    ids=[
        "unreadable", "missing", "too few", "device too high", "core too high", "foreign geometry",
        "init container listed twice", "descending", "gap", "wrap-around", "two of four cores each",
        "unaligned", "two of trn", "cores of a larger node", "no type", "core run across trn2",
        "mixed units", "resource type", "other node",
    ],
)  # fmt: skip
def test_check_neuron_pod_names_each_fault(
    claim: NeuronClaim, shape: NeuronShape, faults: list[NeuronFault]
) -> None:
    assert _faults(claim, shape) == faults


def test_check_neuron_pod_cores_of_other_pods_are_named() -> None:
    held = {"team/b": held_cores(_cores(7, 8), TRN1), "team/a": frozenset({30})}
    findings = check_neuron_pod(_devices(0, 1, 2, 3), TRN1, "n1", held)
    assert [(finding.fault, finding.detail) for finding in findings] == [
        (NeuronFault.TAKEN, "cores 7 belong to team/b")
    ]


@pytest.mark.parametrize(
    ("claim", "detail"),
    [
        (NeuronClaim(devices=1, ids=None), "not a list of numbers"),
        (_devices(asked=2), "2 devices requested, no ids"),
        (NeuronClaim(devices=1, ids=(1,), unit=NeuronUnit.CORE), "written as"),
        (NeuronClaim(devices=1, cores=1, ids=(1,)), "share one id list"),
        (NeuronClaim(devices=1, ids=(1,), predicate_node="n9"), "scheduled for n9, runs on n1"),
        (_devices(1, 2, 3), "devices 1,2,3 on trn1.32xlarge"),
        (_devices(99), "99"),
    ],
)
def test_check_neuron_pod_says_what_is_wrong(claim: NeuronClaim, detail: str) -> None:
    (finding,) = check_neuron_pod(claim, TRN1, "n1", {})
    assert detail in finding.detail


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (_devices(1), {2, 3}),
        (_cores(1, 31, 32), {1, 31}),
        (NeuronClaim(devices=1, cores=1, ids=(4, 6)), set()),
        (NeuronClaim(devices=1, ids=None), set()),
    ],
    ids=["device", "cores in range", "mixed", "unreadable"],
)
def test_held_cores_expands_devices(claim: NeuronClaim, expected: set[int]) -> None:
    assert held_cores(claim, TRN1) == expected
