from __future__ import annotations

import io
from collections.abc import Mapping

import pytest

from hami_node.cli.show.screen import Column, Styled, Table, columns_of, safe, screen_of

NODE = "ip-10-0-12-34.eu-central-1.compute.internal"
COLUMNS = (
    Column(name="node"),
    Column(name="cards", is_number=True),
    Column(name="uuid", drop=2),
    Column(name="model", drop=1),
    Column(name="why", is_words=True),
)
ROW = (NODE, "8", "GPU-11111111", "A100-SXM4-40GB", "the card fell off the bus and needs a reset")


def shown(table: Table, width: int | None, env: Mapping[str, str] | None = None) -> list[str]:
    stream = io.StringIO()
    screen_of(stream, width, env or {}).table(table)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(
    ("width", "heads"),
    [
        (130, ["node", "cards", "uuid", "model", "why"]),
        (90, ["node", "cards", "uuid", "model"]),
        (70, ["node", "cards", "model"]),
        (60, ["node", "cards"]),
    ],
)
def test_columns_that_matter_less_are_left_out_first(width: int, heads: list[str]) -> None:
    lines = shown(Table("", COLUMNS, [ROW]), width)
    assert lines[0].split() == heads
    assert max(map(len, lines)) <= width
    assert "fell off the bus" in " ".join(" ".join(lines).split())
    assert NODE in lines[2]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_no_width_and_no_text_breaks_the_layout(width: int) -> None:
    hostile = ("a" * 300, "界" * 90, "\x1b[2J\x9b31m", "x,y" * 500, "w " * 900)
    lines = shown(Table("t", COLUMNS, [hostile]), max(width, 60))
    assert max(map(columns_of, lines)) <= max(width, 60)


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param("\x1b[31mred", id="ansi"),
        pytest.param("\x9b31m", id="c1"),
        pytest.param("\x1b]0;title\x07", id="title"),
        pytest.param("a\u202eb", id="right_to_left_override"),
        pytest.param("\u2066a\u2069", id="isolate"),
        pytest.param("\u05d0\u05d1 7", id="right_to_left_letters"),
        pytest.param("e\u0301" * 3, id="combining"),
        pytest.param("a\rb\nc\td", id="line_ends"),
        pytest.param("\u200b\ufeff", id="invisible"),
        pytest.param("\ud800", id="surrogate"),
    ],
)
def test_what_a_terminal_might_obey_is_a_question_mark(hostile: str) -> None:
    text, _ = safe(hostile)
    assert text.isprintable()
    assert "?" in text
    text.encode("utf-8")


@pytest.mark.parametrize(
    ("env", "is_ascii"),
    [
        ({}, False),
        ({"LC_ALL": "C"}, True),
        ({"LANG": "POSIX"}, True),
        ({"LANG": "C", "LC_ALL": "de_DE.UTF-8"}, False),
        ({"LANG": "C.UTF-8"}, False),
    ],
)
def test_locale_decides_about_the_characters(env: dict[str, str], is_ascii: bool) -> None:
    lines = shown(Table("", COLUMNS[:1], [("█░界…",)]), 80, env)
    assert ("\n".join(lines).isascii(), len(lines[2])) == (is_ascii, 5 if is_ascii else 4)


def test_colours_are_for_terminals_that_want_them() -> None:
    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    def line(env: dict[str, str]) -> str:
        stream = Tty()
        screen_of(stream, 80, env).line(Styled("bad", "red"))
        return stream.getvalue()

    assert line({"TERM": "xterm"}) == "\x1b[31mbad\x1b[0m\n"
    assert line({"TERM": "dumb"}) == line({"NO_COLOR": "1"}) == "bad\n"
