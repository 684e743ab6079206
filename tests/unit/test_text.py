"""Cut text keeps its limit and says that it was cut; a user's text is quoted where needed."""

import pytest

from hami_node.text import LONGEST_SHOWN, count, cut, cut_to_bytes, shown, some


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


@pytest.mark.parametrize(
    ("names", "said"), [((), ""), (("a", "b"), "a, b"), (("a", "b", "c", "d"), "a, b and 2 more")]
)
def test_many_names_are_a_few_and_a_number(names: tuple[str, ...], said: str) -> None:
    assert some(names, 2) == said


def test_one_is_not_many() -> None:
    assert [count(number, "node") for number in (0, 1, 2000)] == [
        "0 nodes",
        "1 node",
        "2,000 nodes",
    ]
