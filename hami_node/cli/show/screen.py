"""Text and tables on a terminal of any width, in a pipe, and where there is only ASCII.

Nothing wraps in the middle of a name: columns that matter less are left out, sentences wrap at
words or go below their row, and only then is a name shortened. In a pipe a row is a line.
"""

from __future__ import annotations

import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TextIO

from hami_node.config.sources import environment

WIDTH_IN_A_FILE: Final = 240
"""Columns when the output is no terminal: nothing is left out, and no row is broken."""
_LEAST: Final = 40
"""Columns that even the smallest terminal counts for."""
_GAP: Final = 2
_WORDS_ROOM: Final = 28
"""Columns that sentences need beside other columns; with less they go below their row."""
_RULE: Final = 40
"""How far the line below the heads of columns goes on below sentences."""
_INDENT: Final = 4
_SHORTEST: Final = 12
"""Characters that are left of a name at least, as long as that helps."""
_TINY: Final = 4
_READABLE: Final = 20
"""Characters of a long name for which columns that matter less make room."""
_LONGEST: Final = 2000
"""Characters of a cell: an annotation may have 256 KiB."""
_STYLES: Final = {"red": "31", "green": "32", "yellow": "33", "bold": "1", "dim": "2"}
_NOTHING: Final = ("", "-")
_ASCII: Final = str.maketrans({"█": "#", "░": ".", "─": "-", "…": "~"})
_REORDERING: Final = frozenset({"R", "AL", "AN", "LRE", "LRO", "RLE", "RLO", "LRI", "RLI", "FSI"})


@dataclass(frozen=True, slots=True)
class Styled:
    """A text in a style: red, green, yellow, bold, dim, or "" for none."""

    text: str
    style: str = ""


Cell = str | Styled


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table.

    Attributes:
        name: its head.
        is_number: aligned to the right.
        is_words: holds sentences, which wrap at words; those of the last column go below their row
            where there is little room.
        is_long: holds names that are shortened before other columns are left out.
        drop: columns with the largest number are left out first where there is little room; 0 for
            those that always stay.
    """

    name: str
    is_number: bool = False
    is_words: bool = False
    is_long: bool = False
    drop: int = 0


_HEAD: Final = re.compile(r"(.*?) ?(#?)(~?)(?:!(\d))?(\.\.\.)?", re.DOTALL)


def heads(said: str) -> list[Column]:
    """Columns by their names and marks: `pod ~ | memory MiB # | uuid !2 | why ...`.

    # is a number, ~ a long name, ... sentences, and a column with a number after ! may be left out.
    """
    marks = [found for each in said.split(" | ") if (found := _HEAD.fullmatch(each))]
    return [
        Column(
            name=found[1],
            is_number=bool(found[2]),
            is_long=bool(found[3]),
            drop=int(found[4] or 0),
            is_words=bool(found[5]),
        )
        for found in marks
    ]


@dataclass(frozen=True, slots=True)
class Table:
    """A table; "" for no title."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]


class Screen:
    """Writes lines no longer than its width."""

    def __init__(
        self, stream: TextIO, width: int, *, has_colours: bool, is_ascii: bool, is_pipe: bool
    ) -> None:
        """Use `screen_of`; a pipe's rows are never broken."""
        self._stream, self.width, self._is_pipe = stream, width, is_pipe
        self._has_colours, self._is_ascii = has_colours, is_ascii

    def line(self, cell: Cell = "", hang: int = 0) -> None:
        """A text, wrapped at words; further lines are indented by `hang`."""
        text, style = safe(cell)
        parts = [text] if self._is_pipe else _wrapped(text, self.width - hang)
        for number, part in enumerate(parts):
            self._write(" " * (hang if number else 0) + self._styled(part, style))

    def table(self, table: Table) -> None:
        """A table with its title and a blank line after it."""
        rows = [[safe(cell) for cell in row] for row in table.rows]
        table, rows = _without_empty(table, rows)
        shown, widths, is_below = _layout(table.columns, rows, self.width, self._is_pipe)
        columns = [table.columns[index] for index in shown]
        if table.title:
            self._write(self._styled(safe(table.title)[0], "bold"))
        inline = [
            index for index, column in enumerate(columns) if not (column.is_words and is_below)
        ]
        heads = [(column.name, "bold") for column in columns]
        self._row([heads[index] for index in inline], [columns[i] for i in inline], widths)
        under = (
            [*widths[:-1], min(widths[-1], _RULE)] if columns and columns[-1].is_words else widths
        )
        self._write("─" * min(_total(under), self.width))
        for row in rows:
            cells = [row[index] for index in shown]
            self._row([cells[index] for index in inline], [columns[i] for i in inline], widths)
            if is_below and cells[-1][0]:
                for part in _wrapped(cells[-1][0], self.width - _INDENT):
                    self._write(" " * _INDENT + self._styled(part, cells[-1][1]))
        self._write("")

    def _row(
        self, cells: Sequence[tuple[str, str]], columns: Sequence[Column], widths: Sequence[int]
    ) -> None:
        """A row; its last cell may have several lines."""
        pieces: list[list[str]] = [
            _wrapped(text, width) if column.is_words else [_shortened(text, width)]
            for (text, _), column, width in zip(cells, columns, widths, strict=True)
        ]
        for number in range(max(map(len, pieces), default=1)):
            line, pad = "", 0
            for index, column in enumerate(columns):
                part = pieces[index][number] if number < len(pieces[index]) else ""
                space = " " * (widths[index] - columns_of(part))
                styled = self._styled(part, cells[index][1])
                before, after = (space, "") if column.is_number else ("", space)
                line += " " * pad + before + styled
                pad = len(after) + _GAP
            self._write(line.rstrip())

    def _styled(self, text: str, style: str) -> str:
        if self._is_ascii:
            text = "".join(map(_in_ascii, text.translate(_ASCII)))
        if not self._has_colours or not style or not text:
            return text
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"

    def _write(self, line: str) -> None:
        if self._is_ascii:
            line = line.translate(_ASCII)
        self._stream.write(line + "\n")


def screen_of(
    stream: TextIO | None = None,
    width: int | None = None,
    env: Mapping[str, str] | None = None,
    *,
    is_wide: bool = False,
) -> Screen:
    """The screen for a stream.

    Args:
        stream: where to; None for standard output.
        width: in columns; None for $COLUMNS, the terminal's, or what a pipe takes.
        env: the environment; None for ours.
        is_wide: nothing is left out, however wide that is.
    """
    env = environment() if env is None else env
    out = stream or sys.stdout
    is_terminal = out.isatty()
    if width is None and env.get("COLUMNS", "").isdecimal():
        width = max(int(env["COLUMNS"][:4]), _LEAST)
    is_pipe = is_wide or (width is None and not is_terminal)
    if width is None or is_wide:
        columns = shutil.get_terminal_size((80, 24)).columns
        width = WIDTH_IN_A_FILE if is_pipe else max(columns, _LEAST)
    has_colours = is_terminal and not env.get("NO_COLOR") and env.get("TERM") != "dumb"
    return Screen(
        out,
        width,
        has_colours=has_colours,
        is_ascii=is_ascii_only(out, env),
        is_pipe=is_pipe,
    )


def is_ascii_only(stream: TextIO, env: Mapping[str, str]) -> bool:
    """Whether only ASCII can be written, or the user's locale says so."""
    encoding = (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "")
    locale = env.get("LC_ALL") or env.get("LC_CTYPE") or env.get("LANG") or ""
    return not encoding.startswith("utf") or locale in ("C", "POSIX")


def safe(cell: Cell) -> tuple[str, str]:
    """Text without control characters and its style: parts of it come from other writers.

    Characters that make a terminal show others in another order go as well.
    """
    text, style = (cell, "") if isinstance(cell, str) else (cell.text, cell.style)
    if len(text) > _LONGEST:
        text = text[:_LONGEST] + "…"
    if text.isascii() and text.isprintable():
        return text, style
    return "".join(char if _is_harmless(char) else "?" for char in text), style


def _is_harmless(char: str) -> bool:
    return (
        char.isprintable()
        and unicodedata.bidirectional(char) not in _REORDERING
        and not unicodedata.combining(char)
    )


def columns_of(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _in_ascii(char: str) -> str:
    return char if char.isascii() else "?" * columns_of(char)


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of at most this width, broken at spaces; words too long for one also after commas."""
    if columns_of(text) <= width:
        return [text]
    lines, line = [""], 0
    for part in _pieces(text, max(width, 1)):
        size = columns_of(part.rstrip())
        if line and line + size > width:
            lines[-1] = lines[-1].rstrip()
            lines.append("")
            line = 0
        lines[-1] += part
        line += columns_of(part)
    lines[-1] = lines[-1].rstrip()
    return lines


def _pieces(text: str, width: int) -> Iterator[str]:
    """Words with the space after them; those that fit on no line in pieces."""
    for word in text.split():
        parts = [f"{word} "]
        if columns_of(word) > width:
            parts = [part for part in re.split(r"(?<=,)", f"{word} ") if part]
        for part in parts:
            if columns_of(part.rstrip()) <= width:
                yield part
                continue
            step = width if part.isascii() else max(width // 2, 1)  # some take two columns
            for at in range(0, len(part), step):
                yield part[at : at + step]


def _shortened(text: str, width: int) -> str:
    """The text, or its beginning and its end: what tells names apart may be at either."""
    if columns_of(text) <= width:
        return text
    if not text.isascii():
        text = "".join(map(_in_ascii, text))
    head = (width - 1) * 2 // 3
    tail = width - 1 - head
    return text[:head] + "…" + (text[-tail:] if tail > 0 else "")


def _without_empty(
    table: Table, rows: list[list[tuple[str, str]]]
) -> tuple[Table, list[list[tuple[str, str]]]]:
    """Leave out the columns in which nothing stands, and those that may go and hold dashes only."""
    kept = [
        index
        for index, column in enumerate(table.columns)
        if not rows
        or any(row[index][0] not in (_NOTHING if column.drop else ("",)) for row in rows)
    ]
    columns = [table.columns[index] for index in kept]
    shown = Table(table.title, columns, table.rows)
    return shown, [[row[index] for index in kept] for row in rows]


def _layout(
    columns: Sequence[Column],
    rows: Sequence[Sequence[tuple[str, str]]],
    width: int,
    is_pipe: bool,
) -> tuple[list[int], list[int], bool]:
    """Which columns are shown, how wide those beside each other are, and whether words go below."""
    natural = [
        max([columns_of(column.name), *(columns_of(row[index][0]) for row in rows)])
        for index, column in enumerate(columns)
    ]
    shown = list(range(len(columns)))
    has_words = bool(columns) and columns[-1].is_words
    if is_pipe:
        return shown, natural, False
    wanted = [
        min(size, _READABLE) if column.is_long else size
        for size, column in zip(natural, columns, strict=True)
    ]
    while _total(wanted[index] for index in (shown[:-1] if has_words else shown)) > width:
        droppable = [index for index in shown if columns[index].drop]
        if not droppable:
            break
        shown.remove(max(droppable, key=lambda index: columns[index].drop))
    widths = [natural[index] for index in shown]
    if not has_words:
        return shown, _narrowed(widths, columns, shown, width), False
    left = width - _total(widths[:-1]) - _GAP
    if left >= min(natural[-1], max(_WORDS_ROOM, natural[-1] // 3)):
        return shown, [*widths[:-1], min(natural[-1], left)], False
    return shown, _narrowed(widths[:-1], columns, shown, width), True


def _total(widths: Iterable[int]) -> int:
    widths = list(widths)
    return sum(widths) + _GAP * max(len(widths) - 1, 0)


def _narrowed(
    widths: list[int], columns: Sequence[Column], shown: Sequence[int], width: int
) -> list[int]:
    """Take columns from the widest names until the rest fits; at last from whatever is wide."""
    every = range(len(widths))
    names = [place for place in every if not columns[shown[place]].is_number]
    for places, least in ((names, _SHORTEST), (every, _SHORTEST), (every, _TINY)):
        while _total(widths) > width:
            widest = max(places, key=lambda place: widths[place], default=None)
            if widest is None or widths[widest] <= least:
                break
            widths[widest] -= 1
    return widths
