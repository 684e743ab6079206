"""Numbers for equal values."""

from __future__ import annotations

import pytest

from hami_node.engine.fleet.interning import Interner


def test_equal_values_share_a_number_until_the_last_release() -> None:
    interner = Interner(reuses=False)
    first, again, other = interner.acquire("a"), interner.acquire("a"), interner.acquire("b")
    assert first == again != other
    assert not interner.release(first)
    assert interner.release(first)
    assert len(interner) == 1


@pytest.mark.parametrize("reuses", [True, False])
def test_a_released_number_comes_back_only_where_it_may(reuses: bool) -> None:
    interner = Interner(reuses=reuses)
    number = interner.acquire("a")
    interner.release(number)
    assert (interner.acquire("b") == number) is reuses
