"""Tenants that write what they like on their own pods, on a node whose cards are divided."""

from __future__ import annotations

import json

import pytest

from hami_node.wire import names
from tests.fakes.pods import Box, reservation
from tests.integration.mig_rig import BY_ROWS, ROWS, MigRig, Row
from tests.nvml_stub.control import UUIDS

FREE = Row(start=4)


@pytest.fixture
def rig(bare_mig: MigRig) -> MigRig:
    """A node in MIG mode that serves."""
    bare_mig.launch()
    return bare_mig


def forge(rig: MigRig, uuid: str, gpu_instance_id: int) -> None:
    """A pod that a tenant made on the node, as if it had been served this instance."""
    identity = {
        "migUUID": uuid,
        "gpuInstanceID": gpu_instance_id,
        "computeInstanceID": 0,
    }
    notes = reservation(f"{FREE.part};", to_allocate=";") | {
        ROWS: json.dumps([FREE.json(0, 0) | identity]),
        names.POD_BIND_PHASE: names.PHASE_SUCCESS,
    }
    rig.bind("forged", [Box(memory_mib=4000)], notes)


def wait_pass(rig: MigRig) -> None:
    """Until the card has been looked at twice since."""
    for start in (6, 5):
        rig.serve(f"p{start}", Row(start=start))
        rig.delete(f"p{start}")
        rig.wait(lambda start=start: ("1g.5gb", start) not in rig.places())  # type: ignore[misc]  # mypy can't type a default of a lambda


def test_forged_identity_of_a_foreign_instance_makes_it_nobodys(rig: MigRig) -> None:
    theirs = rig.hardware.make(UUIDS[BY_ROWS], FREE.profile, FREE.start)
    rig.wait(lambda: (FREE.profile, FREE.start) not in rig.offered())
    forge(rig, theirs.uuid, theirs.gi)
    wait_pass(rig)
    assert "container=default/forged/main" not in rig.log  # kubelet lists no card of ours for it
    assert theirs.uuid not in rig.on_record()
    rig.delete("forged")
    wait_pass(rig)
    assert rig.instances() == (theirs,)


def test_forged_identity_of_no_instance_makes_none(rig: MigRig) -> None:
    forge(rig, "MIG-00000000-0000-4000-8000-00000000000a", 11)
    wait_pass(rig)
    assert "container=default/forged/main" not in rig.log
    assert rig.places() == []
    assert rig.events("MigInstanceReplaced") == []
