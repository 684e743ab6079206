"""Where instances of a geometry go: whatever the order of requests, all of them find a place."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.vendors.nvidia.mig.layout import CardProfile, MigPlacement
from hami_node.vendors.nvidia.node.mig.wanted import arranged
from tests.fakes.mig_driver import MODELS

CARDS = {
    model.removeprefix("NVIDIA ").split(" Blackwell")[0]: kinds for model, kinds in MODELS.items()
}


def named(card: str, *names: str) -> list[CardProfile]:
    by_name = {each.name: each for each in CARDS[card]}
    return [by_name[name] for name in names]


def fits(geometry: Sequence[CardProfile], taken: tuple[MigPlacement, ...] = ()) -> bool:
    """By trying everything, which the product does not."""
    if any(count > profile.instance_count for profile, count in Counter(geometry).items()):
        return False
    if not geometry:
        return True
    first, *rest = geometry
    return any(
        fits(rest, (*taken, place))
        for place in first.placements
        if not any(map(place.overlaps, taken))
    )


@functools.cache
def geometries(card: str) -> tuple[tuple[CardProfile, ...], ...]:
    """Every set of up to 4 instances that the card can hold."""
    return tuple(
        kinds
        for count in range(1, 5)
        for kinds in itertools.combinations_with_replacement(CARDS[card], count)
        if fits(kinds)
    )


def orders(geometry: Sequence[CardProfile]) -> Iterator[Sequence[int]]:
    """Every order in which it matters which profile is asked for next."""
    seen = set()
    for order in itertools.permutations(range(len(geometry))):
        names = tuple(geometry[at].name for at in order)
        if names not in seen:
            seen.add(names)
            yield order


def served(
    geometry: Sequence[CardProfile], order: Sequence[int], foreign: tuple[MigPlacement, ...] = ()
) -> list[MigPlacement | None]:
    """The places of the instances, asked for in this order."""
    taken, left, found = list(foreign), list(order), []
    for at in order:
        left.remove(at)
        place = arranged(geometry[at], [geometry[other] for other in left], taken)
        found.append(place)
        if place is not None:
            assert place in geometry[at].placements
            assert not any(map(place.overlaps, taken))
            taken.append(place)
    return found


@pytest.mark.parametrize("card", sorted(CARDS))
def test_geometry_that_fits_is_served_in_any_order(card: str) -> None:
    for geometry in geometries(card):
        for order in orders(geometry):
            assert None not in served(geometry, order), [each.name for each in geometry]


@pytest.mark.parametrize(
    ("card", "names"),
    [
        ("A100-SXM4-40GB", ["1g.5gb"] * 7),
        ("A100-SXM4-40GB", ["2g.10gb"] * 3 + ["1g.5gb"]),
        ("A100-SXM4-40GB", ["1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb", "3g.20gb"]),
        ("A100-SXM4-40GB", ["4g.20gb", "2g.10gb", "1g.5gb"]),
        ("A100-SXM4-40GB", ["1g.10gb"] * 4),
        ("H100 80GB HBM3", ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]),
    ],
)
def test_full_geometries_are_served_in_any_order(card: str, names: list[str]) -> None:
    geometry = named(card, *names)
    for order in orders(geometry):
        assert None not in served(geometry, order)


@given(st.data())
def test_instances_that_go_and_come_again_find_a_place(data: st.DataObject) -> None:
    """Pods end in any order, and others take their slots."""
    card = data.draw(st.sampled_from(sorted(CARDS)))
    geometry = data.draw(st.sampled_from(geometries(card)))
    held: dict[int, MigPlacement] = {}
    for _ in range(data.draw(st.integers(1, 25))):
        slot = data.draw(st.integers(0, len(geometry) - 1))
        if slot in held:
            del held[slot]
            continue
        rest = [each for at, each in enumerate(geometry) if at != slot and at not in held]
        place = arranged(geometry[slot], rest, held.values())
        assert place is not None
        held[slot] = place


def test_what_somebody_else_has_made_is_worked_around() -> None:
    geometry = named("A100-SXM4-40GB", "1g.5gb", "2g.10gb", "2g.10gb")
    foreign = (MigPlacement(start=1, size=1),)
    for order in itertools.permutations(range(3)):
        assert None not in served(geometry, order, foreign)


def test_places_that_have_to_be_freed_first_come_last() -> None:
    (kind,) = named("A100-SXM4-40GB", "1g.5gb")
    stale = [MigPlacement(start=start, size=1) for start in range(6)]
    assert arranged(kind, [], [], costly=stale) == MigPlacement(start=6, size=1)
    assert arranged(kind, [], stale[:3], costly=stale[3:]) == MigPlacement(start=6, size=1)


def test_nothing_fits_on_a_full_card() -> None:
    (kind,) = named("A30", "4g.24gb")
    assert arranged(kind, [], [MigPlacement(start=3, size=1)]) is None


@given(st.integers(1, 10_000))
def test_absurd_geometry_costs_no_time(count: int) -> None:
    kinds = CARDS["A100-SXM4-40GB"]
    rest = [kind for kind in kinds for _ in range(min(count, 100))]
    assert arranged(kinds[0], rest, []) is not None
