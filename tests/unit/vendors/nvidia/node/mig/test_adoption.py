"""Instances of living pods that are not on record: a lost record, or another program before us."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hami_node.model import Grant, Uuid
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.on_node.answer import MadePart
from tests.fakes.mig_driver import Fate, MortalRecord
from tests.fakes.mig_node import MigNode, Served, row, slot
from tests.reliability import shows


@pytest.fixture
def node(tmp_path: Path) -> MigNode:
    """A node with four pods, two of them by geometry, and somebody else's instance."""
    node = MigNode(tmp_path)
    node.driver.add("GPU-0", "1g.5gb", 6)
    node.serve("a", row("1g.5gb", 0), row("1g.5gb", 1))
    node.serve("b", row("2g.10gb", 2))
    node.serve("c", slot(1, 3, 5120), slot(1, 3, 5120))
    node.write_rows("a")
    node.write_rows("b")
    return node


def lose_record(node: MigNode) -> None:
    node.record = MortalRecord(Fate())
    node.restart()


def edit(node: MigNode, pod: str, **changes: object) -> None:
    rows = json.loads(node.rows[pod][names.POD_MIG_ALLOCATIONS])
    rows[0] |= changes
    node.rows[pod][names.POD_MIG_ALLOCATIONS] = json.dumps(rows)


def owners(node: MigNode) -> list[str]:
    return [kept.pod_uid for kept in node.kept()]


@shows(
    "G7",
    fault="the record of MIG instances is lost or damaged while pods hold some",
    happens="nothing is destroyed that is not proved to be ours; instances of living pods are "
    "found again by what their containers were answered, or by their pods' rows where all of a row "
    "is on the card; an Event says so",
    lost="instances of pods that ended in between stay until an administrator removes them",
)
@pytest.mark.parametrize("payload", [None, b"", b"{", b'{"boot_id":"x","instances":[{}]}'])
def test_lost_record_is_made_again_from_answers_and_destroys_nothing(
    node: MigNode, payload: bytes | None
) -> None:
    before = node.names()
    node.end("b")
    node.record = MortalRecord(Fate(), payload=payload)
    node.restart()
    node.has_answers = True
    node.settle()
    assert node.names() == before
    assert owners(node) == ["a", "a", "c", "c"]
    assert node.reasons() == ["MigRecordLost"]
    assert "4 of 4" in node.notes[0].message
    node.end("a", "c")
    node.settle()
    assert node.names() == ["2g.10gb@2", "1g.5gb@6"]


def test_rows_alone_prove_instances_at_their_places(node: MigNode) -> None:
    lose_record(node)
    node.settle()
    assert owners(node) == ["a", "a", "b"]  # a geometry leaves no rows
    node.end("a", "b", "c")
    node.settle()
    assert len(node.names()) == 3
    assert "1g.5gb@6" in node.names()


def test_rows_prove_no_larger_instance_than_was_granted(tmp_path: Path) -> None:
    """A reservation that is read anew is of rows that its pod may have rewritten before."""
    node = MigNode(tmp_path)
    foreign = node.driver.add("GPU-0", "3g.20gb", 4)
    assert foreign.device
    for start, pod in enumerate(("honest", "forger")):
        node.serve(pod, row("1g.5gb", start))
        node.write_rows(pod)
    place = {"profile": "3g.20gb", "placement": {"start": 4, "size": 4}}
    identity = {"migUUID": foreign.device.uuid, "gpuInstanceID": foreign.gpu_instance_id}
    edit(node, "forger", **place, **identity)
    forged = row("3g.20gb", 4, memory_mib=4864)
    node.held["forger"]["main"] = replace(node.held["forger"]["main"], grants=(forged,))
    lose_record(node)
    node.settle()
    assert owners(node) == ["honest"]
    node.end("forger")
    node.settle()
    assert "3g.20gb@4" in node.names()


@pytest.mark.parametrize(
    "changes",
    [
        {"migUUID": "MIG-other"},
        {"gpuInstanceID": 8},
        {"computeInstanceID": 1},
        {"gpuUUID": "GPU-1"},
        {"profile": "1g.5gb+me"},
        {"placement": {"start": 6, "size": 1}},
        {"deviceIndex": 5},
        {"deviceIndex": -1},
        {"migUUID": ""},
        {"placement": None},
        {"deviceIndex": 1},
    ],
    ids=str,
)
def test_row_that_does_not_match_adopts_nothing_and_stops_no_other(
    node: MigNode, changes: dict[str, object]
) -> None:
    edit(node, "a", **changes)
    before = node.names()
    lose_record(node)
    node.settle()
    left = 0 if changes == {"deviceIndex": 1} else 1  # then both rows are about one grant
    assert owners(node) == ["a"] * left + ["b"]
    assert node.names() == before


@pytest.mark.parametrize("text", ["", "{", "[]", "[1]", '[{"a":1}]', "null", "[" * 10_000, "[{}]"])
def test_unreadable_rows_of_a_pod_stop_no_other(node: MigNode, text: str) -> None:
    node.rows["a"][names.POD_MIG_ALLOCATIONS] = text
    lose_record(node)
    node.settle()
    assert owners(node) == ["b"]


def test_tenant_who_claims_an_instance_of_others_gets_nothing(node: MigNode) -> None:
    """The row names all of it, but the reservation on record has another place."""
    theirs = node.driver.cards["GPU-0"].instances[13]
    assert theirs.device is not None
    edit(
        node,
        "a",
        placement={"start": 6, "size": 1},
        gpuInstanceID=13,
        migUUID=theirs.device.uuid,
    )
    lose_record(node)
    node.settle()
    node.end("a", "b", "c")
    node.settle()
    assert node.driver.cards["GPU-0"].instances[13] == theirs


def test_instance_that_two_pods_claim_is_nobodys(node: MigNode) -> None:
    node.held["liar"] = {"main": node.held["b"]["main"]}
    node.rows["liar"] = dict(node.rows["b"])
    lose_record(node)
    node.settle()
    assert owners(node) == ["a", "a"]
    node.end("liar")
    node.settle()
    assert "2g.10gb@2" in node.names()


def test_instance_of_others_that_a_pod_was_given_stays_theirs(tmp_path: Path) -> None:
    """A node that has offered instances of others before it makes its own."""
    node = MigNode(tmp_path)
    found = node.driver.add("GPU-0", "1g.5gb", 6)
    assert found.device is not None
    given_to = Grant(uuid=Uuid("GPU-0"), vendor=NVIDIA, memory_mib=4864, cores=15)
    part = MadePart(uuid=found.device.uuid, numbers=(found.gpu_instance_id, 0))
    node.held["a"] = {"main": Served(grants=(replace(given_to, part=found.device),), parts=(part,))}
    lose_record(node)
    node.has_answers = True
    node.settle()
    assert owners(node) == []
    node.end("a")
    node.settle()
    assert node.names() == ["1g.5gb@6"]
