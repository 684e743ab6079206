"""The output of `migrate` for people."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Final, TextIO

import click

from hami_node.cli.show.screen import Cell, Screen, Styled, Table, heads, screen_of
from hami_node.migrate.found.findings import Finding, Level
from hami_node.migrate.plan import Plan
from hami_node.migrate.seen.reading import Unread
from hami_node.migrate.steps import State, Step
from hami_node.migrate.values.mapping import Mapped

MAX_SHOWN: Final = 10
"""Problems, and gaps, that are shown; the first are the worst."""
_MAX_VALUE: Final = 40
_MAX_VALUES: Final = 100
_COLUMNS: Final = 68
"""Of a command, beside `$` and the backslash: 80 in all."""
_PROGRAMS: Final = ("kubectl ", "helm ", "hami-node ")
_WORD: Final = re.compile(r"(?:'[^']*'|\"[^\"]*\"|[^\s'\"]|['\"])+")
"""A word of a command: what is in quotes is not divided."""


def show_plan(plan: Plan, stream: TextIO | None = None, width: int | None = None) -> None:
    """Print what runs, what is found, what could not be read, and the steps."""
    screen = screen_of(stream, width)
    columns = heads("what | where | how ...")
    if plan.runs:
        rows = [(row.what, row.where, row.state) for row in plan.runs]
        screen.table(Table("what runs", columns, rows))
    if plan.findings:
        screen.line(Styled("what to know", "bold"))
        _findings(screen, plan.findings)
    _gaps(screen, plan.gaps)
    for number, step in enumerate(plan.steps, 1):
        _step(screen, number, step, stream)


def show_check(
    plan: Plan,
    also: Sequence[Finding],
    stream: TextIO | None = None,
    width: int | None = None,
) -> None:
    """Print the first problems, or that there are none."""
    screen = screen_of(stream, width)
    wrong = (*plan.problems, *also)
    if wrong:
        _findings(screen, wrong[:MAX_SHOWN])
        _rest(screen, len(wrong))
        screen.line(Styled(f"problems: {len(wrong)}", "red"))
    elif plan.gaps:
        screen.line(Styled("nothing wrong was found, but not everything could be read", "yellow"))
    else:
        screen.line(Styled("nothing is wrong", "green"))
    cautions = len(plan.findings) - len(plan.problems)
    if cautions:
        screen.line(f"to know before the next step: {cautions}, see hami-node migrate plan")
    following = next((step for step in plan.steps if step.state is State.NEXT), None)
    if following is not None:
        screen.line(f"next step: {following.name}")
    _gaps(screen, plan.gaps)


def show_values(mapped: Mapped, stream: TextIO | None = None, width: int | None = None) -> None:
    """Print what became of each value; to standard error, beside the values themselves."""
    screen = screen_of(stream or sys.stderr, width)
    rows: list[Sequence[Cell]] = [(one.path, one.ours, one.note) for one in mapped.taken]
    _values(screen, "taken over", ("HAMi's value", "ours", "to know"), rows)
    rows = [(one.path, _value(one.value), one.why) for one in mapped.left_out]
    _values(screen, "left out", ("HAMi's value", "was", "why"), rows)
    rows = [
        (Styled(one.path, "red"), _value(one.value), _meant(one.meant)) for one in mapped.unknown
    ]
    _values(screen, "no chart of HAMi's has these", ("value", "was", "meant"), rows)
    if not (mapped.taken or mapped.left_out or mapped.unknown):
        screen.line("every value is HAMi's default: nothing to take over")


def _values(
    screen: Screen, title: str, names: tuple[str, str, str], rows: Sequence[Sequence[Cell]]
) -> None:
    if rows:
        name, second, words = names
        columns = heads(f"{name} | {second} | {words} ...")
        screen.table(Table(title, columns, rows[:_MAX_VALUES]))
        if len(rows) > _MAX_VALUES:
            screen.line(f"and {len(rows) - _MAX_VALUES} more: -o json has all of them")


def _meant(known: str) -> str:
    return f"did you mean {known}?" if known else ""


def _value(value: object) -> str:
    text = str(value)
    return text if len(text) <= _MAX_VALUE else text[:_MAX_VALUE] + "..."


def _findings(screen: Screen, found: Iterable[Finding]) -> None:
    for one in found:
        screen.line(Styled(one.where, "red" if one.level is Level.PROBLEM else "yellow"))
        _text(screen, one.why, 4)
        _text(screen, f"-> {one.cure}", 4)
    screen.line()


def _text(screen: Screen, text: str, indent: int) -> None:
    """A sentence, indented."""
    for line in wrap(text, screen.width - indent, break_on_hyphens=False):
        screen.line(" " * indent + line)


def _gaps(screen: Screen, gaps: Sequence[Unread]) -> None:
    if gaps:
        columns = heads("what | why ...")
        rows = [(gap.what, gap.why) for gap in gaps[:MAX_SHOWN]]
        screen.table(Table("not read, and so not judged", columns, rows))
        _rest(screen, len(gaps))


def _rest(screen: Screen, count: int) -> None:
    if count > MAX_SHOWN:
        screen.line(f"and {count - MAX_SHOWN} more: -o json has all of them")


def _step(screen: Screen, number: int, step: Step, stream: TextIO | None) -> None:
    title = f"{number}. {step.name} ({step.state})"
    screen.line(Styled(title, "green" if step.state is State.DONE else "bold"))
    _text(screen, step.what, 3)
    if step.state is State.DONE:
        screen.line()
        return
    if step.gap:
        _text(screen, f"users notice: {step.gap}", 3)
    for command in step.commands:
        _print(f"   $ {folded(command)}", stream)
    for line in step.see:
        _print(f"   see:  {_said(line)}", stream)
    for line in step.undo:
        _print(f"   undo: {_said(line)}", stream)
    screen.line()


def folded(command: str) -> str:
    """The command on lines of 80 columns, as a shell takes it; a long word stays whole."""
    lines, line = [], ""
    for word in _WORD.findall(command):
        if line and len(line) + len(word) + 1 > _COLUMNS:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return " \\\n       ".join((*lines, line))


def _said(line: str) -> str:
    """A sentence, a command, or `command: what it shows`, on lines of 80 columns."""
    if len(line) <= _COLUMNS + 3:  # no backslash
        return line
    command, _, words = line.partition(": ")
    if not line.startswith(_PROGRAMS):
        command, words = "", line
    words = f"-> {words}" if command and words else words
    rest = wrap(words, _COLUMNS, break_long_words=False, break_on_hyphens=False)
    shown = [folded(command)] if command else []
    return "\n         ".join((*shown, *rest))


def _print(text: str, stream: TextIO | None) -> None:
    """Not wrapped, to be copied; without control characters: parts come from other writers."""
    plain = "".join(char if char.isprintable() or char == "\n" else "?" for char in text)
    click.echo(plain, file=stream or sys.stdout)
