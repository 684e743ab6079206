"""Which instance of a card is taken next, and what is then held, by a plain reckoning beside."""

from __future__ import annotations

import random

import pytest

from hami_node.engine.usage import Charge, DeviceUsage, Taken, charged
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.mig.choice import (
    FROM_THE_TOP,
    MigUse,
    before_choice,
    use_of,
    with_choice,
)
from hami_node.vendors.nvidia.mig.layout import (
    MigInstance,
    MigLayout,
    MigPlacement,
    MigProfile,
    MigTemplate,
)
from hami_node.vendors.nvidia.mode import Mode
from tests.unit.engine.cards import choose, device

SIZES_MIB = (4000, 9000, 19000, 40000)


def _profile(draw: random.Random, number: int) -> MigProfile:
    size = draw.randrange(5)  # 0 is nonsense, and is passed over
    starts = draw.sample(range(8), draw.randint(1, 8))
    return MigProfile(
        name=draw.choice((*FROM_THE_TOP, "2g.", "4g.")) + str(number),
        memory_mib=draw.choice(SIZES_MIB),
        cores=10,
        slice_count=draw.randrange(1, 4),
        placements=tuple(MigPlacement(start=start, size=size) for start in starts),
    )


def _geometry(draw: random.Random) -> tuple[MigTemplate, ...]:
    return tuple(
        MigTemplate(
            name=f"t{n}", memory_mib=draw.choice(SIZES_MIB), cores=10, count=draw.choice((0, 1, 3))
        )
        for n in range(draw.randint(1, 3))
    )


def _card(draw: random.Random, *, has_profiles: bool) -> DeviceUsage:
    if has_profiles:
        layout = MigLayout(profiles=tuple(_profile(draw, n) for n in range(4)))
    else:
        layout = MigLayout(templates=tuple(_geometry(draw) for _ in range(3)))
    card = device(0, mode=Mode.MIG, memory_mib=80000, slots=20, detail=layout)
    return DeviceUsage(device=card, slots_used=2, memory_used_mib=3, cores_used=4)


def _plainly(card: DeviceUsage, wanted_mib: int) -> MigInstance | None:
    """The smallest profile that is large enough, at the first place that is free."""
    held = use_of(card).placements
    for profile in sorted(
        card.device.detail.profiles,  # type: ignore[attr-defined]  # a layout
        key=lambda each: (each.memory_mib, each.slice_count),
    ):
        is_downward = profile.name.startswith(FROM_THE_TOP)
        for place in sorted(profile.placements, key=lambda each: each.start, reverse=is_downward):
            is_free = place.size > 0 and not any(map(place.overlaps, held))
            if profile.memory_mib >= wanted_mib and is_free:
                return MigInstance(profile=profile.name, placement=place)
    return None


def _charged(card: DeviceUsage, choice: Taken) -> DeviceUsage:
    charge = Charge(
        uuid=card.device.uuid,
        vendor=NVIDIA,
        slots=1,
        memory_mib=choice.memory_mib,
        cores=choice.cores,
        parts=(choice.part,),
    )
    return charged(before_choice(card, choice), charge)


@pytest.mark.parametrize("has_profiles", [True, False], ids=["profiles", "geometries"])
def test_part_after_part_is_what_a_charge_records(has_profiles: bool) -> None:
    draw, taken = random.Random(1), 0
    for _ in range(300):
        card = _card(draw, has_profiles=has_profiles)
        wanted_mib = draw.choice(SIZES_MIB)
        while (choice := choose(card, wanted_mib)) is not None:
            if has_profiles:
                assert choice.part == _plainly(card, wanted_mib)
            quick, plain = with_choice(card, choice), _charged(card, choice)
            assert quick is not None
            assert (quick.parts, quick.contradiction) == (plain.parts, plain.contradiction)
            assert (quick.slots_used, quick.memory_used_mib, quick.cores_used) == (2, 3, 4)
            card, taken, wanted_mib = quick, taken + 1, draw.choice(SIZES_MIB)
    assert taken > 300


def test_card_with_instances_of_another_kind_takes_a_closer_look() -> None:
    draw = random.Random(2)
    by_place, by_slot = (_card(draw, has_profiles=has) for has in (True, False))
    for card, used in (
        (by_place, MigUse(template=0, slots=frozenset({1}))),
        (by_slot, MigUse(placements=(MigPlacement(start=0, size=1),))),
    ):
        choice = choose(card, 1)
        assert choice is not None
        mixed = DeviceUsage(device=card.device, parts=used)
        assert with_choice(mixed, choice) is None
