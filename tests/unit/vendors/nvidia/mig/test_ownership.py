"""Whose the instances on a card are, by the record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hami_node.vendors.divided import PartState, PartView
from hami_node.vendors.nvidia.mig.details import DriverCard
from hami_node.vendors.nvidia.mig.ownership import Owned, identity_of, owned_on, with_marks
from tests.fakes.cards import card, uuid
from tests.fakes.mig_cards import divided, instance

FOUND = instance(3, "2g.10gb", 0)
MIG_UUID = "MIG-00000003-0000-5000-8000-000000000000"


def entry(**changes: Any) -> PartView:
    values: dict[str, Any] = {
        "card": uuid(0),
        "kind": "2g.10gb",
        "start": 0,
        "size": 2,
        "state": PartState.LIVE,
        "numbers": (3, 0),
        "uuid": MIG_UUID,
    }
    return PartView(**(values | changes))


@pytest.mark.parametrize(
    ("own", "whose"),
    [
        ([], "others"),
        ([entry()], "ours"),
        ([entry(state=PartState.DRAINING)], "ours"),
        ([entry(state=PartState.STALE)], "stale"),
        ([entry(state=PartState.LOST)], "others"),
        ([entry(state=PartState.MAKING, numbers=(), uuid="")], "ours"),
        ([entry(state=PartState.MAKING, numbers=(), uuid="", start=2)], "others"),
        ([entry(state=PartState.MAKING, numbers=(), uuid="", kind="1g.10gb")], "others"),
        ([entry(state=PartState.MAKING, numbers=(3,), uuid="")], "ours"),
        ([entry(uuid="MIG-11111111-0000-5000-8000-000000000000")], "others"),
        ([entry(numbers=(4, 0))], "others"),
        ([entry(card=uuid(1))], "others"),
    ],
    ids=[
        "no-record",
        "live",
        "draining",
        "stale",
        "lost",
        "begun",
        "begun-elsewhere",
        "begun-of-another-kind",
        "half-made",
        "number-used-again",
        "another-number",
        "another-card",
    ],
)
def test_instance_is_ours_by_card_number_and_uuid_together(own: list[PartView], whose: str) -> None:
    owned = owned_on(uuid(0), (FOUND,), own)
    assert {name: getattr(owned, name) for name in ("ours", "stale", "others")} == {
        "ours": (),
        "stale": (),
        "others": (),
    } | {whose: (FOUND,)}


def test_instance_that_the_record_has_just_forgotten_is_not_taken_for_a_strangers() -> None:
    """A scan may be older than the record by a moment."""
    had = frozenset({identity_of(FOUND)})
    assert owned_on(uuid(0), (FOUND,), (), had).ours == (FOUND,)
    half_gone = replace(FOUND, device=None, compute_instance_ids=())
    assert owned_on(uuid(0), (half_gone,), (), had).ours == (half_gone,)
    half_made = frozenset({identity_of(half_gone)})
    assert owned_on(uuid(0), (FOUND,), (), half_made).ours == (FOUND,)
    other = replace(FOUND, device=instance(5, "2g.10gb", 0).device)
    assert owned_on(uuid(0), (other,), (), had).others == (other,)
    again = instance(4, "2g.10gb", 0)
    assert owned_on(uuid(0), (again,), (), had).others == (again,)


def test_marks_are_on_the_card() -> None:
    stale = instance(9, "1g.5gb", 6)
    marked = with_marks(divided(0, FOUND, stale), Owned(ours=(FOUND,), stale=(stale,)), "why")
    assert isinstance(marked.detail, DriverCard)
    assert marked.detail.ours == frozenset({3})
    assert marked.detail.stale == frozenset({9})
    assert marked.detail.waits_for == "why"
    assert with_marks(card(), Owned(), "why") == card()
