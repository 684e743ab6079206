"""Reservations that a user wrote: nothing is given, nothing is left behind."""

from __future__ import annotations

from dataclasses import dataclass

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.fakes.cards import MEMORY_MIB, uuid
from tests.fakes.pods import Box, Part, pod_body, reservation
from tests.fakes.waiting import eventually
from tests.integration.rig import LIMIT_S, Rig, inside
from tests.reliability import shows

RUNNING = 30_000


@dataclass(frozen=True, kw_only=True)
class Forged:
    """What a container asks for, the reservation that somebody wrote, and why it gets nothing."""

    asks: Box
    allocated: str | None
    waits: str | None = None
    why: str = ""


SMALL = Box(memory_mib=100)
FORGED = {
    "full-card": Forged(
        asks=Box(memory_mib=20_000),
        allocated=f"{uuid(0)},NVIDIA,20000,0:;",
        why="too little free memory",
    ),
    "beyond-limits": Forged(
        asks=SMALL,
        allocated=f"{uuid(1)},NVIDIA,20000,100:;",
        why="more memory than the container asks for",
    ),
    "no-memory-limit": Forged(
        asks=SMALL, allocated=f"{uuid(1)},NVIDIA,0,0:;", why="lifts the memory limit"
    ),
    "more-cores": Forged(
        asks=Box(memory_mib=100, cores=5),
        allocated=f"{uuid(1)},NVIDIA,100,80:;",
        why="more cores than",
    ),
    "no-core-limit": Forged(
        asks=Box(memory_mib=100, cores=5),
        allocated=f"{uuid(1)},NVIDIA,100,0:;",
        why="lifts the core limit",
    ),
    "percent": Forged(
        asks=Box(memory_percent=10),
        allocated=f"{uuid(1)},NVIDIA,5000,0:;",
        why="more memory than the container asks for",
    ),
    "part": Forged(asks=Box(memory_mib=10_240), allocated=f"{uuid(1)}[1-0],NVIDIA,10240,0:;"),
    "other-vendor": Forged(
        asks=SMALL, allocated=f"{uuid(1)},AWSNeuron,100,1:;", why="of another vendor"
    ),
    "twice": Forged(
        asks=Box(memory_mib=100, cards=2),
        allocated=f"{uuid(1)},NVIDIA,100,0:{uuid(1)},NVIDIA,100,0:;",
        why="names one card twice",
    ),
    "negative": Forged(asks=SMALL, allocated=f"{uuid(1)},NVIDIA,-1,0:;"),
    "none": Forged(asks=SMALL, allocated=None, why="it did not come through the scheduler"),
    "unreadable": Forged(asks=SMALL, allocated="rubbish,1;", why="its reservation can't be read"),
    "other-count": Forged(
        asks=SMALL,
        allocated=f"{uuid(0)},NVIDIA,1,1:{uuid(1)},NVIDIA,1,1:;",
        why="asks for 1 cards, its reservation has 2",
    ),
    "used-up": Forged(
        asks=SMALL, allocated=f"{uuid(0)},NVIDIA,100,0:;", waits=";", why="used up before"
    ),
    "card-of-another-node": Forged(
        asks=SMALL,
        allocated="GPU-other,NVIDIA,100,0:;",
        why="the reserved card is not on this node: card GPU-other",
    ),
}


@shows(
    "P4",
    fault="a user writes a reservation by hand: on a full card, beyond the limits, on a part of a "
    "divided card, of another maker, twice on one card",
    happens="Allocate refuses it with the reason and an Event; others keep what they have",
)
def test_forged_reservation_gets_nothing(rig: Rig) -> None:
    rest = MEMORY_MIB - RUNNING
    for name, memory_mib in (("running", RUNNING), ("rest", rest)):
        part = Part(uuid=uuid(0), memory_mib=memory_mib)
        rig.place(name, [Box(memory_mib=memory_mib)], {"main": [part]})
    assert rig.admit("running").is_admitted
    for name, forged in FORGED.items():
        notes = reservation(forged.allocated, to_allocate=forged.waits) if forged.allocated else {}
        rig.bind(name, [forged.asks], notes)
        answer = rig.admit(name)
        assert not answer.responses, name
        assert f"default/{name}/main" in answer.refusal
        assert forged.why in answer.refusal, name
        assert rig.bind_phase(name) == names.PHASE_FAILED
        assert not list(rig.hook.rglob(f"*uid-{name}*"))
    eventually(lambda: len(rig.events("AllocationRefused")) == len(FORGED), LIMIT_S)
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
        rig.serve_one(name, card)
    assert (rig.record / "grants.record").stat().st_size < 10_000
