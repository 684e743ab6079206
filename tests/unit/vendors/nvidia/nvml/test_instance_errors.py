"""XIDs that name a MIG instance: of its pod, not of the card."""

from __future__ import annotations

import pytest

from hami_node.model import Uuid
from hami_node.vendors.nvidia.nvml.health import (
    MAX_KINDS,
    NO_INSTANCE,
    InstanceErrors,
    why_of,
)
from hami_node.vendors.nvidia.nvml.xid_ledger import XidPolicy
from hami_node.wire import names
from tests.fakes.cards import card, uuid
from tests.fakes.mig_cards import divided, instance
from tests.fakes.waiting import eventually
from tests.nvml_stub.control import UUIDS, Stub, sequence
from tests.reliability import shows
from tests.unit.vendors.nvidia.nvml.conftest import Open, wait_listening
from tests.unit.vendors.nvidia.nvml.mig_calls import in_mig_mode

NEVER = XidPolicy(clean_passes=1, quiet_s=3600)
FOUND = instance(3, "2g.10gb", 0)


def errors_of() -> InstanceErrors:
    """Card 0 is in MIG mode and has an instance; card 1 is not."""
    known = {uuid(0): divided(0, FOUND), uuid(1): card(1)}
    return InstanceErrors(known.get)


@pytest.mark.parametrize(
    ("index", "ids", "numbers"),
    [
        (0, (3, 0), (3, 0)),
        (0, (0, 0), (0, 0)),
        (0, (3, NO_INSTANCE), (3,)),
        (0, (NO_INSTANCE, NO_INSTANCE), ()),
        (0, (NO_INSTANCE, 0), ()),
        (1, (0, 0), ()),
        (2, (3, 0), ()),
    ],
    ids=["named", "zero", "whole-gi", "card", "half", "not-in-mig-mode", "unknown-card"],
)
def test_which_instance_an_event_names(
    index: int, ids: tuple[int, int], numbers: tuple[int, ...]
) -> None:
    assert errors_of().numbers_of(uuid(index), *ids) == numbers


def test_flood_of_different_errors_is_bounded_and_all_are_counted() -> None:
    errors = errors_of()
    for number in range(10 * MAX_KINDS):
        errors.enter(uuid(0), (number, 0), 94)
    found = errors.take()
    assert len(found) == MAX_KINDS + 1
    assert sum(each.count for each in found) == 10 * MAX_KINDS
    assert found[-1].numbers == ()


def test_remedy_names_what_to_do() -> None:
    contained, broken = why_of(uuid(0), 94), why_of(uuid(0), 95)
    assert contained.startswith("XID 94: contained ECC error; other instances of the card go on")
    assert "delete the pod" in contained
    assert f"{names.NODE_CORDON}={uuid(0)}" in broken
    assert "nvidia-smi -r" in broken


@shows(
    "M19",
    fault="an XID that means a reset names one MIG instance, then another that nobody knows",
    happens="the card stays healthy and its other instances go on; each error is that instance's",
)
def test_hazard_19_an_instance_that_fails_is_no_fault_of_its_card(start: Open, stub: Stub) -> None:
    lines = in_mig_mode(1)
    stub.write(*lines)
    stub.mig.make(UUIDS[1], "3g.20gb", 0)
    (made,) = stub.mig.instances(UUIDS[1])
    backend = start(xids=NEVER)
    before = [found.unhealthy_reason for found in backend.scan()]
    wait_listening(backend, stub)
    stub.write(*lines, f"xid {next(sequence)} 1 95 {made.gi} 0", f"xid {next(sequence)} 1 95 44 0")
    card_1 = Uuid(UUIDS[1])
    eventually(lambda: backend.error_counts() == {(card_1, 95): 2}, 10.0)
    assert [found.unhealthy_reason for found in backend.scan()] == before
    named, unknown = backend.part_errors()
    assert (named.card, named.numbers, named.uuid) == (card_1, (made.gi, 0), made.uuid)
    assert (unknown.numbers, unknown.uuid) == ((44, 0), "")


@shows(
    "G29",
    fault="a program causes a storm of XIDs",
    happens="all are counted, at four passes over the cards a second and one line a minute",
)
def test_storm_of_xids_costs_few_passes_and_lines(
    start: Open, stub: Stub, caplog: pytest.LogCaptureFixture
) -> None:
    backend = start(xids=NEVER)
    wait_listening(backend, stub)
    caplog.set_level("INFO")
    count = "nvmlDeviceGetCount_v2"
    before = stub.calls(count)
    stub.show(*(f"xid {next(sequence)} 0 31" for _ in range(200)))
    eventually(lambda: backend.error_counts().get((Uuid(UUIDS[0]), 31)) == 200, 20.0)
    assert before > 0
    assert stub.calls(count) - before < 100
    assert [record.message for record in caplog.records].count("xid") == 1
