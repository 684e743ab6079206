"""Cut text keeps its limit and says that it was cut; a user's text is quoted where needed."""

import pytest

from hami_node.text import LONGEST_SHOWN, cut, cut_to_bytes, shown


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        pytest.param("", 5, "", id="empty"),
        pytest.param("12345", 5, "12345", id="at the limit"),
        pytest.param("123456", 5, "12...", id="above it"),
    ],
)
def test_cut_keeps_the_limit(text: str, limit: int, expected: str) -> None:
    assert cut(text, limit) == expected
    assert cut_to_bytes(text, limit) == expected


def test_cut_to_bytes_counts_bytes_and_halves_no_character() -> None:
    assert cut_to_bytes("äää", 6) == "äää"
    assert cut_to_bytes("ääää", 6) == "ä..."


@pytest.mark.parametrize(
    ("text", "expected"),
    [("main", "main"), ("", "''"), ("a b", "'a b'"), ("\n", r"'\n'"), ("é", "'é'")],
    ids=["plain", "empty", "blank", "newline", "letter"],
)
def test_shown_quotes_what_is_no_plain_word(text: str, expected: str) -> None:
    assert shown(text) == expected


def test_shown_cuts_long_texts() -> None:
    assert len(shown("x" * 1000)) == LONGEST_SHOWN
