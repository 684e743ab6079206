"""MIG instances that other plugins gave out: the cards that they close."""

from __future__ import annotations

import pytest

from hami_node.model import Device
from hami_node.vendors.nvidia.node.foreign_ids import cards_named
from tests.fakes.cards import card, uuid
from tests.fakes.mig_cards import divided, instance

HELD = instance(9, "1g.5gb", 2)
NAME = HELD.device.uuid if HELD.device else ""


@pytest.mark.parametrize(
    ("cards", "closed"),
    [
        ((divided(0), divided(1, HELD), card(2)), [1]),
        ((divided(0), divided(1), card(2)), []),
        ((divided(0, problem="timeout"), divided(1), card(2)), [0, 1]),
        ((divided(0, problem="timeout"), divided(1, HELD)), [1]),
        ((card(0),), []),
    ],
    ids=["known", "gone", "one-unread", "found-anyway", "no-mig"],
)
def test_instance_closes_its_own_card_or_where_that_is_unknown_any(
    cards: tuple[Device, ...], closed: list[int]
) -> None:
    for name in (NAME, f"{NAME}::1"):
        assert cards_named(name, cards) == tuple(uuid(index) for index in closed)
