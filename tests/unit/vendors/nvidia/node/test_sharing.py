from __future__ import annotations

import pytest

from hami_node.model import Device, Uuid
from hami_node.vendors.nvidia.mig.offer import MODE_ON
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.node.sharing import offered_cards
from hami_node.vendors.nvidia.settings import NvidiaSettings
from tests.fakes.cards import card, uuid

OFFERED = ("uuid", "index", "mode", "slots", "memory_mib", "cores", "healthy", "unhealthy_reason")


def physical(index: int = 0, **changes: object) -> Device:
    return card(index, slots=1, **changes)


@pytest.mark.parametrize(
    ("settings", "given", "wanted"),
    [
        (NvidiaSettings(), physical(), card()),
        (NvidiaSettings(split_count=3), physical(), card(slots=3)),
        (NvidiaSettings(memory_scaling=1.5), physical(), card(memory_mib=61440)),
        (NvidiaSettings(memory_scaling=0.333), physical(memory_mib=1000), card(memory_mib=333)),
        (NvidiaSettings(core_scaling=2.5), physical(), card(cores=250)),
        (
            NvidiaSettings(split_count=7, memory_scaling=2, core_scaling=2),
            physical(mode=Mode.MIG, cores=100),
            card(mode=Mode.MIG, slots=7, healthy=False, unhealthy_reason=MODE_ON),
        ),
        (
            NvidiaSettings(),
            physical(healthy=False, unhealthy_reason="XID 48"),
            card(healthy=False, unhealthy_reason="XID 48"),
        ),
    ],
    ids=["default", "split", "memory-up", "memory-down", "cores", "mig-never-scaled", "unhealthy"],
)
def test_offered_cards_settings_applied_gives_the_offered_card(
    settings: NvidiaSettings, given: Device, wanted: Device
) -> None:
    (found,) = offered_cards((given,), settings)
    assert [getattr(found, name) for name in OFFERED] == [getattr(wanted, name) for name in OFFERED]


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        (NvidiaSettings(), [0, 1, 2]),
        (NvidiaSettings(filter_uuids=(uuid(1),)), [0, 2]),
        (NvidiaSettings(filter_indexes=(0, 2)), [1]),
        (NvidiaSettings(filter_uuids=(uuid(0),), filter_indexes=(1,)), [2]),
        (NvidiaSettings(filter_uuids=("GPU-nobody",)), [0, 1, 2]),
    ],
    ids=["none", "by-uuid", "by-index", "both", "unknown"],
)
def test_offered_cards_filtered_cards_are_left_out(
    settings: NvidiaSettings, left: list[int]
) -> None:
    cards = tuple(physical(index) for index in range(3))
    assert [given.index for given in offered_cards(cards, settings)] == left


def test_offered_cards_any_order_comes_out_sorted_by_index_and_uuid() -> None:
    twin = physical(1, uuid=Uuid("GPU-a"))
    cards = (physical(2), twin, physical(0), physical(1))
    found = offered_cards(cards, NvidiaSettings())
    assert [given.uuid for given in found] == [uuid(0), uuid(1), Uuid("GPU-a"), uuid(2)]
    assert found == offered_cards(cards[::-1], NvidiaSettings())
