from __future__ import annotations

import pytest

from hami_node.errors import WireError
from hami_node.wire.values import MAX_INT32, parse_bool, parse_whole


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("+5", 5), ("007", 7), (str(MAX_INT32), MAX_INT32)]
)
def test_parse_whole_decimal_number_is_read(text: str, value: int) -> None:
    assert parse_whole(text, "key") == value


@pytest.mark.parametrize(
    "text", ["", " 5", "5 ", "1_0", "0x1", "1.0", "-1", "1e3", str(MAX_INT32 + 1), "9" * 5000, "٣"]
)
def test_parse_whole_anything_else_is_a_wire_error_with_the_key(text: str) -> None:
    with pytest.raises(WireError, match="key"):
        parse_whole(text, "key")


def test_parse_bool_unknown_word_is_a_wire_error_with_the_key() -> None:
    with pytest.raises(WireError, match="key"):
        parse_bool("yes", "key")
