"""Lists of words in annotations: cards by UUID, the cordon list of a node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.model import UuidWish
from hami_node.wire import names
from hami_node.wire.wishes import decode_cordon, decode_uuid_wish, decode_words

USE, NOUSE = "acme.example/use", "acme.example/nouse"


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, ()), ("", ()), (" , ", ()), ("V100, h100 ,", ("V100", "h100")), ("a,a", ("a", "a"))],
)
def test_decode_words_drops_blanks_and_empty_words(text: str | None, words: tuple[str]) -> None:
    assert decode_words(text) == words


@pytest.mark.parametrize(
    ("annotations", "wish"),
    [
        ({}, UuidWish()),
        ({USE: " , "}, UuidWish()),
        ({USE: "A ,"}, UuidWish(use=frozenset({"A"}))),
        ({NOUSE: "A"}, UuidWish(nouse=frozenset({"A"}))),
        ({USE: "A", NOUSE: "B,C"}, UuidWish(use=frozenset({"A"}), nouse=frozenset({"B", "C"}))),
    ],
)
def test_decode_uuid_wish(annotations: dict[str, str], wish: UuidWish) -> None:
    assert decode_uuid_wish(annotations, USE, NOUSE) == wish


@pytest.mark.parametrize(
    ("use", "nouse", "admitted"),
    [
        (None, frozenset(), True),
        (frozenset({"a"}), frozenset(), True),
        (frozenset({"b"}), frozenset(), False),
        (frozenset({"a"}), frozenset({"a"}), False),
        (None, frozenset({"a"}), False),
    ],
)
def test_uuid_wish_admits(
    use: frozenset[str] | None, nouse: frozenset[str], admitted: bool
) -> None:
    assert UuidWish(use=use, nouse=nouse).admits("a") is admitted


def test_decode_cordon() -> None:
    assert decode_cordon({names.NODE_CORDON: " GPU-0 ,,GPU-1,"}) == {"GPU-0", "GPU-1"}
    assert decode_cordon({}) == frozenset()


@given(st.dictionaries(st.sampled_from([USE, NOUSE, names.NODE_CORDON]), st.text()))
def test_decoders_never_raise(annotations: dict[str, str]) -> None:
    assert isinstance(decode_uuid_wish(annotations, USE, NOUSE), UuidWish)
    assert isinstance(decode_cordon(annotations), frozenset)
