"""Nodes stay sorted through any inserts and removes, and shelves are passed over rightly."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from hami_node.engine.fleet.needs import Need, Needs
from hami_node.engine.fleet.node_order import SHELF_SIZE, NodeOrder
from hami_node.engine.fleet.summaries import Bounds, NodeSummary, Room

ANY = Needs(asks=(), impossible=False)


def _summary(score: float, memory_mib: int = 100) -> NodeSummary:
    return NodeSummary(
        score=score,
        bounds=Bounds(memory_mib=(memory_mib,), cores=(100,), idle=1, kinds=1),
        rooms=(Room(memory_mib, 100, True, 0),),
        group=memory_mib,
    )


def _needs(memory_mib: int) -> Needs:
    need = Need(
        count=1,
        memory_mib=memory_mib,
        memory_by_kind={0: memory_mib},
        kinds=1,
        cores=1,
        idle_kinds=0,
    )
    return Needs(asks=(need,), impossible=False)


def walked(order: NodeOrder, needs: Needs) -> list[str]:
    return [name for _, names in order.walk(needs) for name in names]


@pytest.mark.parametrize("is_fullest_first", [True, False])
def test_order_follows_scores_and_names_after_any_change(is_fullest_first: bool) -> None:
    draw = random.Random(1)
    order = NodeOrder(is_fullest_first=is_fullest_first)
    held: dict[str, NodeSummary] = {}
    for step in range(6 * SHELF_SIZE):
        name = f"n{draw.randrange(4 * SHELF_SIZE)}"
        if name in held:
            order.remove(name, held.pop(name))
        if step % 3:
            held[name] = _summary(float(draw.randrange(5)))
            order.insert(name, held[name])
    sign = -1 if is_fullest_first else 1
    expected = sorted(held, key=lambda name: (sign * held[name].score, name))
    assert walked(order, ANY) == expected
    for name in list(held):
        order.remove(name, held.pop(name))
    assert walked(order, ANY) == []


def test_walk_passes_over_nodes_and_shelves_that_cannot_fit() -> None:
    order = NodeOrder(is_fullest_first=False)
    for number in range(4 * SHELF_SIZE):
        order.insert(f"n{number:04}", _summary(0.0, memory_mib=number))
    wanted = 4 * SHELF_SIZE - 2
    assert walked(order, _needs(wanted)) == [f"n{number:04}" for number in (wanted, wanted + 1)]


def test_walk_sees_a_shelf_anew_after_a_change() -> None:
    order = NodeOrder(is_fullest_first=False)
    order.insert("a", _summary(0.0, memory_mib=10))
    assert walked(order, _needs(20)) == []
    order.insert("b", _summary(0.0, memory_mib=20))
    assert walked(order, _needs(20)) == ["b"]


def test_shelves_are_joined_only_where_one_was_looked_through_in_vain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joined: list[int] = []
    join = Bounds.joined

    def noted(group: Sequence[Bounds]) -> Bounds:
        joined.append(len(group))
        return join(group)

    monkeypatch.setattr(Bounds, "joined", noted)
    order = NodeOrder(is_fullest_first=False)
    for number in range(8 * SHELF_SIZE):
        order.insert(f"n{number:04d}", _summary(float(number), memory_mib=number))
    assert next(name for _, names in order.walk(_needs(0)) for name in names) == "n0000"
    assert joined == []
    last = f"n{8 * SHELF_SIZE - 1:04d}"
    for _ in range(2):
        assert walked(order, _needs(8 * SHELF_SIZE - 1)) == [last]
    assert sum(joined) == 8 * SHELF_SIZE
