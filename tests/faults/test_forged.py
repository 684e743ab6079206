"""Reservations that a user wrote: nothing is given, nothing is left behind."""

from __future__ import annotations

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.fakes.cards import MEMORY_MIB, uuid
from tests.fakes.pods import Box, Part, pod_body, reservation
from tests.fakes.waiting import eventually
from tests.integration.rig import LIMIT_S, Rig, inside
from tests.reliability import shows

RUNNING = 30_000


@shows(
    "P4",
    fault="a user writes a reservation by hand: on a full card, beyond the limits, on a part of a "
    "divided card, of another maker, twice on one card",
    happens="Allocate refuses it with the reason and an Event; others keep what they have",
)
@pytest.mark.parametrize(
    ("box", "text"),
    [
        (Box(memory_mib=20_000), f"{uuid(0)},NVIDIA,20000,0:;"),
        (Box(memory_mib=100), f"{uuid(1)},NVIDIA,20000,100:;"),
        (Box(memory_mib=10_240), f"{uuid(1)}[1-0],NVIDIA,10240,0:;"),
        (Box(memory_mib=100), f"{uuid(1)},AWSNeuron,100,1:;"),
        (Box(memory_mib=100, cards=2), f"{uuid(1)},NVIDIA,100,0:{uuid(1)},NVIDIA,100,0:;"),
        (Box(memory_mib=100), f"{uuid(1)},NVIDIA,-1,0:;"),
    ],
    ids=["full-card", "beyond-limits", "part", "other-vendor", "twice", "negative"],
)
def test_forged_reservation_gets_nothing(rig: Rig, box: Box, text: str) -> None:
    rig.place(
        "running", [Box(memory_mib=RUNNING)], {"main": [Part(uuid=uuid(0), memory_mib=RUNNING)]}
    )
    assert rig.admit("running").is_admitted
    rig.bind("forged", [box], reservation(text))
    answer = rig.admit("forged")
    assert not answer.responses
    assert "default/forged/main" in answer.refusal
    assert rig.bind_phase("forged") == names.PHASE_FAILED
    eventually(lambda: any("forged" in text for text in rig.events("AllocationRefused")), LIMIT_S)
    assert not list(rig.hook.rglob("*uid-forged*"))
    rest = MEMORY_MIB - RUNNING
    rig.place("rest", [Box(memory_mib=rest)], {"main": [Part(uuid=uuid(0), memory_mib=rest)]})
    beside = rig.admit("rest")
    assert inside(beside)[f"{nvidia_names.ENV_MEMORY_LIMIT}_0"] == f"{rest}m"


@shows(
    "P4",
    fault="a tenant's pods without cards carry annotations of 250 KB that name thousands of them",
    happens="nothing of it counts or is put on record: kubelet lists no device of ours for them",
)
def test_annotations_of_pods_without_cards_fill_no_record(rig: Rig) -> None:
    grants = "".join(f"GPU-{number:08d}-x,NVIDIA,1,0:" for number in range(9000)) + ";"
    for number in range(40):
        body = pod_body(f"t{number}", [Box(cards=0)], {nvidia_names.POD_ALLOCATED: grants})
        body["spec"]["containers"][0]["resources"]["limits"] = {"a.b/c": "1"}
        body["status"]["phase"] = "Running"
        rig.api.create("pods", body)
    rig.wait_seen("t39")
    for card in (0, 1):
        name = f"victim-{card}"
        rig.place(name, [Box(memory_mib=1000)], {"main": [Part(uuid=uuid(card), memory_mib=1000)]})
        answer = rig.admit(name)
        assert answer.is_admitted, answer.refusal
    assert (rig.record / "grants.record").stat().st_size < 10_000
