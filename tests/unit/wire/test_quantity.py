from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.errors import WireError
from hami_node.wire.values import MAX_QUANTITY, parse_quantity, parse_whole_quantity
from tests.unit.wire.totality import is_total


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("4096", 4096),
        ("+5", 5),
        ("-5", -5),
        ("007", 7),
        ("1.5", Fraction(3, 2)),
        ("1.", 1),
        (".5", Fraction(1, 2)),
        ("500m", Fraction(1, 2)),
        ("1500u", Fraction(3, 2000)),
        ("5n", Fraction(5, 10**9)),
        ("1k", 10**3),
        ("1M", 10**6),
        ("1G", 10**9),
        ("1T", 10**12),
        ("1P", 10**15),
        ("1E", 10**18),
        ("1Ki", 2**10),
        ("1Mi", 2**20),
        ("1Gi", 2**30),
        ("1Ti", 2**40),
        ("1Pi", 2**50),
        ("1Ei", 2**60),
        ("1.5Gi", 3 * 2**29),
        ("0.5k", 500),
        ("1e3", 1000),
        ("1E3", 1000),
        ("12e-1", Fraction(6, 5)),
        ("1e+2", 100),
        ("0e99999", 0),
        ("-1Ki", -1024),
    ],
)
def test_parse_quantity_every_form_of_kubernetes(text: str, value: Fraction | int) -> None:
    assert parse_quantity(text, "key") == value


@pytest.mark.parametrize("text", ["1e99999", "100E", "99999Ei", "9" * 99])
def test_parse_quantity_beyond_64_bits_is_cut(text: str) -> None:
    assert parse_quantity(text, "key") == MAX_QUANTITY
    assert parse_quantity(f"-{text}"[:100], "key") == -MAX_QUANTITY


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "1 ",
        "1x",
        "1mi",
        "1KI",
        "1K",
        "e3",
        "1e",
        "1e+",
        "--1",
        "1.2.3",
        ".",
        "٣",
        "9" * 101,
    ],
)
def test_parse_quantity_anything_else_is_a_wire_error_with_the_key(text: str) -> None:
    with pytest.raises(WireError, match="key"):
        parse_quantity(text, "key")


@pytest.mark.parametrize("text", ["1500m", "0.5", "1n", "1e-1"])
def test_parse_whole_quantity_fraction_is_a_wire_error(text: str) -> None:
    with pytest.raises(WireError, match="whole number"):
        parse_whole_quantity(text, "key")


@pytest.mark.parametrize(
    ("text", "value"), [("2000m", 2), ("1.0", 1), ("0.5k", 500), ("8Ki", 8192)]
)
def test_parse_whole_quantity_whole_value_is_read_however_written(text: str, value: int) -> None:
    assert parse_whole_quantity(text, "key") == value


@given(st.integers(-MAX_QUANTITY, MAX_QUANTITY))
def test_parse_quantity_plain_numbers_are_themselves(number: int) -> None:
    assert parse_whole_quantity(str(number), "key") == number


@given(st.text() | st.text(alphabet="0123456789.eE+-mkKMGTPi", max_size=30))
def test_parse_quantity_any_text_gives_a_value_or_a_wire_error(text: str) -> None:
    assert is_total(lambda quantity: parse_quantity(quantity, "key"), text)
