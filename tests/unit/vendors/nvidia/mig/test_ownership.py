"""Whose the instances on a card are, by the record."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hami_node.vendors.divided import PartState, PartView
from hami_node.vendors.nvidia.mig.ownership import identity_of, owned_on
from tests.fakes.cards import uuid
from tests.fakes.mig_cards import instance

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


CASES: dict[str, tuple[list[PartView], str]] = {
    "no-record": ([], "others"),
    "live": ([entry()], "ours"),
    "draining": ([entry(state=PartState.DRAINING)], "ours"),
    "stale": ([entry(state=PartState.STALE)], "stale"),
    "lost": ([entry(state=PartState.LOST)], "others"),
    "begun": ([entry(state=PartState.MAKING, numbers=(), uuid="")], "ours"),
    "begun-elsewhere": ([entry(state=PartState.MAKING, numbers=(), uuid="", start=2)], "others"),
    "begun-of-another-kind": (
        [entry(state=PartState.MAKING, numbers=(), uuid="", kind="1g.10gb")],
        "others",
    ),
    "half-made": ([entry(state=PartState.MAKING, numbers=(3,), uuid="")], "ours"),
    "number-used-again": ([entry(uuid="MIG-11111111-0000-5000-8000-000000000000")], "others"),
    "another-number": ([entry(numbers=(4, 0))], "others"),
    "another-card": ([entry(card=uuid(1))], "others"),
}


@pytest.mark.parametrize(("own", "whose"), CASES.values(), ids=CASES)
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
