"""Closed cards on the node object."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hami_node.model import Uuid
from hami_node.wire import names
from hami_node.wire.closed import decode_closed, encode_closed
from tests.unit.wire.totality import is_total


def test_reasons_come_back_and_none_is_no_annotation() -> None:
    reasons = {Uuid("GPU-b"): 'held by "b"', Uuid("GPU-a"): "held"}
    text = encode_closed(reasons)
    assert text is not None
    assert decode_closed({names.NODE_CLOSED_CARDS: text}) == reasons
    assert encode_closed({}) is None
    assert decode_closed({}) == {}


@given(st.text())
def test_any_text_gives_reasons_or_a_named_error(text: str) -> None:
    assert is_total(lambda value: decode_closed({names.NODE_CLOSED_CARDS: value}), text)
