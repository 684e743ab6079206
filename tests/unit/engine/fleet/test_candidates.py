"""Whether a node is among those that may be chosen, however often that is asked."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from hami_node.engine.fleet.candidates import FEW_LOOKS, among

NAMES = tuple(f"n{number}" for number in range(50))


@pytest.mark.parametrize(
    "names",
    [NAMES, list(NAMES), frozenset(NAMES), dict.fromkeys(NAMES), ()],
    ids=["tuple", "list", "set", "dict", "none"],
)
def test_every_look_has_the_same_answer(names: Collection[str]) -> None:
    is_among = among(names)
    for _ in range(FEW_LOOKS + 2):
        assert is_among("n49") is bool(names)
        assert not is_among("n")


def test_name_is_looked_up_and_not_compared_in_part() -> None:
    is_among = among(["node-10", "node-2"])
    assert [name for name in ("node-1", "node-10", "node-2", "") if is_among(name)] == [
        "node-10",
        "node-2",
    ]
