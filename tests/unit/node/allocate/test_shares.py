from __future__ import annotations

import pytest

from hami_node.engine.ranking import BINPACK
from hami_node.model import Uuid
from hami_node.node.cards.preference import CardChoice, choose_ids
from tests.fakes.cards import card

A, B, C = (tuple(f"{uuid}-{i}" for i in range(4)) for uuid in "abc")


@pytest.mark.parametrize(
    ("available", "must", "size", "wanted"),
    [
        ((*A, *B), (), 1, ["a-0"]),
        ((*A, *B[2:]), (), 1, ["b-2"]),
        ((*A, *B[1:], *C[3:]), (), 2, ["c-3", "b-1"]),
        ((*A, *B), ("a-3",), 2, ["a-3", "b-0"]),
        ((*A[:2], *B[:2]), (), 3, ["a-0", "b-0", "a-1"]),
        (A, ("a-1", "a-2"), 2, ["a-1", "a-2"]),
        (A, ("a-1", "a-2", "a-3"), 2, ["a-1", "a-2"]),
        (A[:1], (), 3, ["a-0"]),
        ((), (), 1, []),
    ],
    ids=[
        "all-free",
        "fullest",
        "fullest-two",
        "beside-what-an-init-container-had",
        "more-than-cards",
        "all-given",
        "more-given",
        "too-few",
        "none",
    ],
)
def test_spread_over_cards_the_fullest_first(
    available: tuple[str, ...], must: tuple[str, ...], size: int, wanted: list[str]
) -> None:
    cards = tuple(card(at, uuid=Uuid(uuid), slots=4) for at, uuid in enumerate("abc"))
    choice = CardChoice(cards=cards, policy=BINPACK)
    assert choose_ids(available, must, size, choice=choice) == wanted
