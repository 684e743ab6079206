"""MIG instances: profiles with placements (2.10) and geometries (2.8)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.engine.compat import V2_10
from hami_node.engine.fleet.fleet import Fleet, Placed
from hami_node.engine.place import ContainerAsks, PodRequest, Rules
from hami_node.engine.usage import Charge, DeviceUsage, Taken, charged
from hami_node.model import ContainerKind, Grant
from hami_node.vendors.nvidia.cards import (
    NVIDIA,
)
from hami_node.vendors.nvidia.mig.choice import (
    MigUse,
    use_of,
)
from hami_node.vendors.nvidia.mig.layout import (
    DriverCard,
    MigCard,
    MigInstance,
    MigLayout,
    MigPlacement,
    MigProfile,
    TemplateSlot,
    entry_for,
    is_instance,
)
from tests.fakes.mig_cards import A100_40
from tests.unit.engine.cards import (
    A100_PROFILES,
    A100_TEMPLATES,
    ask,
    choose,
    instance,
    mig_card,
    profile,
    template,
    template_card,
)


def _granted(card: DeviceUsage, memory_mib: int) -> tuple[Grant, DeviceUsage]:
    return NVIDIA.grant(card, _chosen(card, memory_mib))


def _chosen(card: DeviceUsage, memory_mib: int) -> Taken:
    choice = choose(card, memory_mib)
    assert choice is not None
    return choice


def _sequence(card: DeviceUsage, asks: list[int]) -> tuple[str, DeviceUsage]:
    """The instances in the order given, `-` for a refused ask, and the card afterwards."""
    given_names = []
    for memory_mib in asks:
        if choose(card, memory_mib) is None:
            given_names.append("-")
            continue
        grant, card = _granted(card, memory_mib)
        part = grant.part
        if isinstance(part, MigInstance):
            given_names.append(f"{part.profile[:2]}@{part.placement.start}")
        else:
            assert isinstance(part, TemplateSlot)
            given_names.append(f"[{part.template}-{part.slot}]")
    return " ".join(given_names), card


@given(
    asks=st.lists(st.sampled_from([4000, 9000, 15000, 19000]), max_size=6),
    profiles=st.permutations([*A100_PROFILES, profile("1g.10gb", 9856, 15, 2, 0, 2, 4, 6)]),
)
def test_as_many_pods_as_there_are_halves_of_cards_fit_in_any_order(
    asks: list[int], profiles: list[MigProfile]
) -> None:
    layout = MigLayout(profiles=tuple(profiles))
    fleet = Fleet(Rules(compat=V2_10))
    fleet.set_node("n", [mig_card(index, detail=layout).device for index in range(3)])
    for number, memory_mib in enumerate(asks):
        container = ContainerAsks(kind=ContainerKind.APP, asks=(ask(1, memory_mib),))
        found = fleet.place(PodRequest(namespace="team", containers=(container,)))
        assert isinstance(found, Placed)
        fleet.add_pod(f"p{number}", "team", "n", found.grants)


def test_unknown_geometry_gives_nothing() -> None:
    card = template_card()
    odd = DeviceUsage(device=card.device, parts=MigUse(template=9, slots=frozenset({0})))
    assert choose(odd, 1) is None


def test_huge_counts_are_not_enumerated() -> None:
    geometry = (template("1g", 1, 1, 2**31), template("2g", 9, 1, 1))
    card = template_card(detail=MigLayout(templates=(geometry,)))
    choice = choose(card, 5)
    assert choice is not None
    assert choice.part == TemplateSlot(template=0, slot=2**31)


def test_huge_placements_are_compared_not_drawn() -> None:
    far = MigPlacement(start=2**62, size=2**62)
    card = DeviceUsage(device=mig_card().device, parts=MigUse(placements=(far,)))
    assert choose(card, 40000) is not None


@pytest.mark.parametrize(
    ("card", "part"),
    [
        pytest.param(template_card(), TemplateSlot(template=9, slot=0), id="geometry that is gone"),
        pytest.param(template_card(), TemplateSlot(template=0, slot=99), id="slot that is gone"),
        pytest.param(template_card(), instance(0, 2), id="placement, where slots are registered"),
        pytest.param(mig_card(), TemplateSlot(template=0, slot=0), id="slot, of profiles"),
        pytest.param(mig_card(), instance(1, 2), id="placement of no profile"),
    ],
)
def test_card_with_an_instance_of_another_division_takes_nothing_more(
    card: DeviceUsage, part: TemplateSlot | MigInstance
) -> None:
    held = Charge(
        uuid=card.device.uuid, vendor=NVIDIA, slots=1, memory_mib=4864, cores=14, parts=(part,)
    )
    after = charged(card, held)
    assert "don't have" in after.contradiction


@pytest.mark.parametrize(
    ("start", "size", "is_possible"), [(4, 4, True), (6, 1, True), (3, 4, False), (8, 1, False)]
)
def test_own_node_keeps_serving_beside_an_instance_that_is_offered_no_more(
    start: int, size: int, *, is_possible: bool
) -> None:
    """Its profile was taken from the list, or its place is withdrawn: the card can hold it."""
    small = MigProfile(
        name="1g.5gb",
        memory_mib=4864,
        cores=15,
        slice_count=1,
        placements=(MigPlacement(start=0, size=1),),
    )
    detail = DriverCard(
        minor=0,
        mig=MigCard(is_enabled=True, is_pending=True, profiles=A100_40),
        layout=MigLayout(profiles=(small,)),
    )
    card = DeviceUsage(device=replace(mig_card().device, detail=detail))
    held = Charge(
        uuid=card.device.uuid,
        vendor=NVIDIA,
        slots=1,
        memory_mib=1,
        cores=1,
        parts=(MigInstance(profile="x", placement=MigPlacement(start=start, size=size)),),
    )
    after = charged(card, held)
    assert (not after.contradiction) == is_possible
    if is_possible:
        assert choose(after, 4000) is not None


def test_part_that_is_taken_is_marked_and_nothing_else() -> None:
    after = NVIDIA.with_part_taken(mig_card(), _chosen(mig_card(), 9000))
    assert after is not None
    assert use_of(after).placements == (MigPlacement(start=0, size=2),)
    assert (after.slots_used, after.memory_used_mib, after.cores_used) == (0, 0, 0)


@pytest.mark.parametrize(
    ("memory_mib", "part", "known"),
    [
        (9856, instance(2, 2, "2g.10gb"), True),
        (9856, instance(2, 2, "1g.10gb"), False),
        (9856, instance(1, 2, "2g.10gb"), False),
        (9000, instance(2, 2, "2g.10gb"), False),
        (9856, None, False),
    ],
    ids=["exact", "odd-name", "odd-start", "odd-size", "none"],
)
def test_is_instance_of_profiles(memory_mib: int, part: MigInstance | None, known: bool) -> None:
    assert is_instance(mig_card().device, memory_mib, part) is known


@pytest.mark.parametrize(
    ("memory_mib", "slot", "known"),
    [(10240, (1, 1), True), (10240, (1, 0), False), (5120, (1, 0), True), (5120, (9, 0), False),
     (5120, (0, 7), False), (5120, (1, 1), False), (20480, (1, 1), False)],
)  # fmt: skip
def test_is_instance_of_geometries(memory_mib: int, slot: tuple[int, int], known: bool) -> None:
    part = TemplateSlot(template=slot[0], slot=slot[1])
    assert is_instance(template_card().device, memory_mib, part) is known


@given(st.lists(st.integers(0, 45000), max_size=12), st.booleans())
def test_instances_never_overlap_and_never_exceed_the_card(
    asks: list[int], is_template: bool
) -> None:
    start = template_card() if is_template else mig_card()
    _, card = _sequence(start, asks)
    assert not card.contradiction
    assert card.memory_used_mib <= card.device.memory_mib
    slices = [
        unit
        for placement in use_of(card).placements
        for unit in range(placement.start, placement.start + placement.size)
    ]
    assert len(slices) == len(set(slices))
    assert len(use_of(card).slots) + len(use_of(card).placements) == card.slots_used


LARGE_LAST = (
    template("1g.5gb", 5120, 14, 2),
    template("1g.10gb", 10240, 14, 1),
    template("2g.10gb", 10240, 28, 2),
)


@pytest.mark.parametrize(
    ("slot", "memory_mib", "cores", "name"),
    [
        (0, 5120, 14, "1g.5gb"),
        (1, 5120, 14, "1g.5gb"),
        (2, 10240, 14, "1g.10gb"),
        (3, 10240, 28, "2g.10gb"),
        (1, 10240, 14, "1g.10gb"),
        (2, 10240, 28, "2g.10gb"),
        (1, 10240, 0, "1g.10gb"),
        (4, 10240, 28, "2g.10gb"),
        (5, 10240, 28, None),
        (0, 10240, 28, None),
        (3, 5120, 14, None),
    ],
)
def test_entry_of_a_slot_is_told_by_the_amounts_where_an_entrys_position_is_written(
    slot: int, memory_mib: int, cores: int, name: str | None
) -> None:
    """2.8 and 2.9 write `[0-1]` for the 1g.10gb of the first pod, and `[0-2]` for a 2g.10gb."""
    entry = entry_for(LARGE_LAST, slot, memory_mib=memory_mib, cores=cores)
    assert (entry.name if entry else None) == name


@pytest.mark.parametrize("is_slot_first", [True, False])
def test_card_takes_nothing_more_while_both_protocols_are_on_it(is_slot_first: bool) -> None:
    parts = (TemplateSlot(template=0, slot=0), instance(2, 1, "1g.5gb"))
    both = template_card(detail=MigLayout(profiles=A100_PROFILES, templates=A100_TEMPLATES))
    for part in parts if is_slot_first else parts[::-1]:
        assert not both.contradiction
        held = Charge(
            uuid=both.device.uuid, vendor=NVIDIA, slots=1, memory_mib=4864, cores=14, parts=(part,)
        )
        both = charged(both, held)
    assert "2.9" in both.contradiction
    assert "2.10" in both.contradiction


def test_charge_of_both_protocols_at_once_is_a_contradiction() -> None:
    parts = (TemplateSlot(template=0, slot=0), instance(2, 1, "1g.5gb"))
    both = template_card(detail=MigLayout(profiles=A100_PROFILES, templates=A100_TEMPLATES))
    held = Charge(
        uuid=both.device.uuid, vendor=NVIDIA, slots=2, memory_mib=9, cores=2, parts=parts, grants=2
    )
    assert "2.10" in charged(both, held).contradiction
