"""Which IDs kubelet should take, with and without a reservation."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.kubelet_api import deviceplugin_pb2 as api
from hami_node.model import Uuid, uuid_of
from hami_node.node.cards.inventory import MAX_MESSAGE_BYTES
from hami_node.node.cards.preference import CardChoice, choose_ids
from tests.fakes.cards import card, uuid

CARDS = tuple(card(i, numa=i // 4) for i in range(8))
IDS = [name for each in CARDS for name in each.device_ids]
PAIRS = {
    uuid(a): {uuid(b): 200 if a // 2 == b // 2 else 10 for b in range(8) if b != a}
    for a in range(8)
}
"""Cards 0 and 1, 2 and 3, ... are linked."""


def free(*slots: int) -> list[str]:
    """So many free IDs of each card."""
    return [f"{uuid(i)}-{9 - at}" for i, count in enumerate(slots) for at in range(count)]


def chosen_cards(ids: list[str]) -> list[int]:
    numbers = {uuid(i): i for i in range(8)}
    return [numbers[uuid_of(name)] for name in ids]


def choose(available: list[str], size: int, *must: str, policy: str = "") -> list[int]:
    choice = CardChoice(cards=CARDS, scores=PAIRS, policy=policy)
    return chosen_cards(choose_ids(available, must, size, choice=choice))


@pytest.mark.parametrize(
    ("policy", "expected"), [("binpack", 5), ("spread", 2), ("", 2), ("numa, binpack", 5)]
)
def test_single_card_is_the_fuller_or_the_emptier_by_policy(policy: str, expected: int) -> None:
    assert choose(free(3, 3, 9, 3, 3, 1, 3, 3), 1, policy=policy) == [expected]


def test_single_card_among_equals_is_the_worst_linked() -> None:
    assert choose(free(5, 5, 5, 0, 5, 5, 5, 5), 1) == [2], "its partner is not free"


@pytest.mark.parametrize(("size", "expected"), [(2, [0, 1]), (4, [0, 1, 2, 3])])
def test_several_cards_are_linked_and_of_one_numa_node(size: int, expected: list[int]) -> None:
    assert sorted(choose(IDS, size)) == expected


def test_numa_node_with_enough_cards_comes_before_better_links() -> None:
    available = free(1, 1, 0, 0, 1, 0, 1, 1)
    assert sorted(choose(available, 3)) == [4, 6, 7]


def test_cards_of_several_numa_nodes_are_taken_where_none_has_enough() -> None:
    assert sorted(choose(IDS, 6)) == [0, 1, 2, 3, 4, 5]


def test_each_card_is_taken_once_before_any_is_taken_twice() -> None:
    assert sorted(choose(IDS, 8)) == list(range(8))
    assert sorted(choose(free(4, 0, 0, 0, 1, 0, 0, 0), 4)) == [0, 0, 0, 4]


def test_what_must_be_there_is_there_and_more_comes_from_its_numa_node() -> None:
    must = (f"{uuid(5)}-0", f"{uuid(6)}-1")
    found = choose(IDS, 4, *must)
    assert found[:2] == [5, 6]
    assert sorted(found) == [4, 5, 6, 7]
    assert choose(IDS, 1, *must) == [5], "kubelet asks for no more"


def test_reserved_cards_come_first_and_count_for_what_must_be_there() -> None:
    reserved = [uuid(6), uuid(1), uuid(6)]
    choice = CardChoice(cards=CARDS, scores=PAIRS)
    ids = choose_ids(IDS, [f"{uuid(6)}-3"], 3, reserved=reserved, choice=choice)
    assert chosen_cards(ids) == [6, 1, 6]


def test_reserved_card_without_free_ids_is_replaced_by_another() -> None:
    choice = CardChoice(cards=CARDS, scores=PAIRS)
    ids = choose_ids(free(0, 2), [], 1, reserved=[uuid(0)], choice=choice)
    assert chosen_cards(ids) == [1]


def test_cards_of_unknown_numa_nodes_are_no_group() -> None:
    cards = tuple(card(i, numa=None if i < 2 else 1) for i in range(4))
    ids = [name for each in cards for name in each.device_ids]
    choice = CardChoice(cards=cards)
    assert sorted(chosen_cards(choose_ids(ids, [], 2, choice=choice))) == [2, 3]


def test_largest_message_that_kubelet_may_send_is_answered() -> None:
    ids = [f"{uuid(i % 8)}-{i}" for i in range(87_000)]
    random.Random(1).shuffle(ids)
    request = api.ContainerPreferredAllocationRequest(available_deviceIDs=ids)
    assert 0.9 * MAX_MESSAGE_BYTES < request.ByteSize() <= MAX_MESSAGE_BYTES
    choice = CardChoice(cards=CARDS, scores=PAIRS)
    found = choose_ids(ids, [], len(ids), choice=choice)
    assert sorted(found) == sorted(ids)
    assert choose_ids(ids, ids, 3, choice=choice) == ids[:3]


NAMES = st.lists(st.sampled_from([*IDS, "", "-", "nvidia0", f"{uuid(9)}-1", uuid(3)]), max_size=30)


@given(NAMES, NAMES, st.integers(-2, 40), st.lists(st.sampled_from(range(10)), max_size=5))
def test_any_question_gets_each_id_once_and_never_more_than_asked(
    available: list[str], must: list[str], size: int, reserved: list[int]
) -> None:
    choice = CardChoice(cards=CARDS, scores=PAIRS)
    wanted = [Uuid(uuid(i)) for i in reserved]
    found = choose_ids(available, must, size, reserved=wanted, choice=choice)
    everything = {*available, *must}
    assert len(found) == len(set(found)) == min(max(size, 0), len(everything))
    assert everything.issuperset(found)
    assert set(found).issuperset(list(dict.fromkeys(must))[: max(size, 0)])
