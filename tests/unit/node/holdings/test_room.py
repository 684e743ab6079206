from __future__ import annotations

from dataclasses import replace

import pytest

from hami_node.engine.usage import DeviceUsage
from hami_node.model import ContainerKind
from hami_node.node.holdings.room import closed_ids, fixed_use, without
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from tests.fakes.cards import MEMORY_MIB, card, uuid
from tests.fakes.ledgers import an_entry

QUARTER_MIB = MEMORY_MIB // 4
VENDOR = nvidia_protocol()
CUT = card(0, slots=4)


def used(memory_mib: int = 0, cores: int = 0) -> DeviceUsage:
    return DeviceUsage(device=CUT, memory_used_mib=memory_mib, cores_used=cores)


@pytest.mark.parametrize(
    ("usage", "held", "open_slots"),
    [
        (None, "", "0123"),
        (used(), "", "0123"),
        (used(QUARTER_MIB, 25), "2", "0123"),
        (used(1), "", "012"),
        (used(QUARTER_MIB), "", "012"),
        (used(QUARTER_MIB + 1), "", "01"),
        (used(QUARTER_MIB + 1), "1", "012"),
        (used(3 * QUARTER_MIB, 75), "12", "012"),
        (used(cores=80), "", ""),
        (used(MEMORY_MIB * 2, 300), "", ""),
        (used(MEMORY_MIB * 2, 300), "3", "3"),
    ],
)
def test_closed_what_nobody_holds_and_there_is_no_room_for(
    usage: DeviceUsage | None, held: str, open_slots: str
) -> None:
    ids = {f"{uuid(0)}-{slot}" for slot in held}
    closed = closed_ids([CUT], {} if usage is None else {CUT.uuid: usage}, ids)
    assert sorted({"0123"[i] for i in range(4)} - {name[-1] for name in closed}) == list(open_slots)


def test_room_counts_fixed_shares_only_and_a_pod_at_its_peak() -> None:
    grants = f"{uuid(0)},NVIDIA,{QUARTER_MIB},25:;"
    share = an_entry("p", resource="nvidia.com/gpu-1of4", grants=grants)
    entries = [
        share,
        replace(share, container="setup", kind=ContainerKind.INIT),
        replace(share, container="odd", grants=(), problem="can't be read"),
        replace(share, pod_uid="uid-q", pod="q", resource="nvidia.com/gpu"),
        replace(share, pod_uid="uid-r", pod="r", vendor="ACME"),
    ]
    cards = (CUT, card(1))
    taken = fixed_use(entries, [VENDOR], cards)
    assert {key: use.memory_used_mib for key, use in taken.items()} == {uuid(0): QUARTER_MIB}
    left = without(cards, taken)
    assert [(it.memory_mib, it.cores) for it in left] == [
        (MEMORY_MIB - QUARTER_MIB, 75),
        (MEMORY_MIB, 100),
    ]
