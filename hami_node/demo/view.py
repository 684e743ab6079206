"""The output of the demo: steps as they happen, then a table. Plain text without a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hami_node.demo.cards import CardLine
from hami_node.demo.tour import Rows, Seen

WIDTH_IN_A_FILE: Final = 110
INDENT: Final = 6
BAR_CELLS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """The symbols of the output: for encodings that have them, and for others."""

    good: str
    bad: str
    full: str
    empty: str

    @classmethod
    def for_encoding(cls, encoding: str) -> Marks:
        """Symbols that the encoding can write."""
        nice = cls(good="✓", bad="✗", full="█", empty="░")
        try:
            "".join((nice.good, nice.bad, nice.full, nice.empty)).encode(encoding)
        except (UnicodeEncodeError, LookupError):
            return cls(good="ok", bad="FAILED", full="#", empty=".")
        return nice


class View:
    """Writes to a stream."""

    def __init__(self, stream: TextIO) -> None:
        """Write to this stream; a terminal gets colours and progress."""
        is_terminal = stream.isatty()
        self._console = Console(
            file=stream, width=None if is_terminal else WIDTH_IN_A_FILE, highlight=False
        )
        self._marks = Marks.for_encoding(getattr(stream, "encoding", None) or "ascii")

    def begin(self) -> None:
        """Explain what is real and what is simulated."""
        self._write(Text("hami-node demo", style="bold"))
        self._write(
            Text(
                "Real: daemons and extender, as processes; their gRPC, HTTP and annotations.\n"
                "Simulated: the cards, kubelet, the API server and kube-scheduler. "
                "No cluster and no GPU is touched.\n",
                style="dim",
            )
        )

    @contextmanager
    def running(self, number: int, of: int, title: str) -> Iterator[None]:
        """Show that a step is running; only on a terminal."""
        if not self._console.is_terminal:
            yield
            return
        with self._console.status(f"[{number}/{of}] {title}", spinner="dots"):
            yield

    def step_passed(self, number: int, title: str, seen: Seen, took_s: float) -> None:
        """Show a step that passed."""
        self._step(self._marks.good, "green", number, title, f"{took_s:.2f} s")
        for line in seen.lines:
            self._write(_indented(Text(line, style="dim")))
        if seen.quote:
            self._write(_indented(Text(f'"{seen.quote}"', style="yellow"), INDENT + 2))
        if seen.then:
            self._write(_indented(Text(seen.then, style="dim")))
        if seen.rows is not None:
            self._write(_indented(_table(seen.rows)))

    def step_failed(self, number: int, title: str, why: str, took_s: float) -> None:
        """Show a step that failed."""
        self._step(self._marks.bad, "bold red", number, title, f"{took_s:.2f} s")
        self._write(_indented(Text(why, style="red")))

    def step_skipped(self, number: int, title: str) -> None:
        """Show a step that was skipped after a failure."""
        self._step("-", "dim", number, title, "not reached")

    def _step(self, mark: str, style: str, number: int, title: str, note: str) -> None:
        self._write(
            Text.assemble(
                (mark, style), f" {number:2}  ", (title, "bold"), "  ", (f"({note})", "dim")
            )
        )

    def log_lines(self, title: str, lines: Sequence[str]) -> None:
        """Show the end of a program's log, uncut."""
        self._write(_indented(Text(f"last log lines of {title}:", style="bold")))
        for line in lines or ("(it logged nothing)",):
            self._console.print(Text(" " * INDENT + line), soft_wrap=True)

    def cards(self, lines: Iterable[CardLine]) -> None:
        """Show the final table: every card, and below it its holders."""
        shown = tuple(lines)
        if not shown:
            return
        table = Table(
            title="Cards and their holders, read back from the annotations",
            title_justify="left",
            title_style="bold",
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        for column in ("card", "health", "slots#", "memory#", "cores#"):
            table.add_column(
                column.removesuffix("#"), justify="right" if column.endswith("#") else "left"
            )
        for line in shown:
            table.add_row(*self._card_cells(line))
            for held in line.holders:
                memory = "-" if held.memory_mib is None else f"{held.memory_mib} MiB"
                cells = (f"  {held.owner}", "", str(held.slots), memory, held.shown_cores)
                table.add_row(*(Text(cell, style="cyan") for cell in cells))
        self._write(Text())
        self._write(table)

    def _card_cells(self, line: CardLine) -> tuple[Text, ...]:
        used_mib = sum(held.memory_mib or 0 for held in line.holders)
        memory = Text("-")
        if line.memory_mib is not None:
            cells = -(-used_mib * BAR_CELLS // line.memory_mib)
            memory = Text.assemble(
                (self._marks.full * cells, "green"),
                (self._marks.empty * (BAR_CELLS - cells), "dim"),
                f" {used_mib:5}/{line.memory_mib} MiB",
            )
        slots = f"{sum(held.slots for held in line.holders)}/{line.slots}"
        health = Text("ok", "green") if line.is_healthy else Text("FAILED", "red")
        model = line.model.removeprefix(f"{line.vendor} ")
        name = Text(f"{line.node} {line.card}  {model}")
        return (name, health, Text(slots), memory, Text(line.cores))

    def verdict(self, of: int, failed: Sequence[str], skipped: int, took_s: float) -> None:
        """Show the last lines: whether all steps passed, and which failed."""
        self._write(Text())
        if not failed and not skipped:
            mark = Text(f"{self._marks.good} ", "green")
            self._write(mark + Text(f"all {of} steps passed in {took_s:.1f} s", "bold"))
            return
        mark = Text(f"{self._marks.bad} ", "bold red")
        passed = of - len(failed) - skipped
        self._write(mark + Text(f"{passed} of {of} steps passed in {took_s:.1f} s", "bold"))
        for title in failed:
            self._write(_indented(Text(f"failed: {title}", "red")))
        if skipped:
            self._write(_indented(Text(f"not reached: {skipped} steps after it", "red")))

    def kept(self, commands: Sequence[tuple[str, str]]) -> None:
        """Show the commands to try while everything keeps running."""
        self._write(
            Text("\nEverything keeps running until Ctrl-C. Try in another terminal:", "bold")
        )
        for purpose, command in commands:
            if purpose:
                self._write(Text(f"  # {purpose}", "dim"))
            self._console.print(Text(f"  {command}"), soft_wrap=True)

    def line(self, text: str) -> None:
        """Write a line."""
        self._write(Text(text))

    def _write(self, what: RenderableType) -> None:
        if self._console.is_terminal:
            self._console.print(what)
            return
        with self._console.capture() as captured:
            self._console.print(what)
        lines = (line.rstrip() for line in captured.get().splitlines())
        self._console.file.write("".join(f"{line}\n" for line in lines))
        self._console.file.flush()


def _indented(what: RenderableType, by: int = INDENT) -> Padding:
    return Padding(what, (0, 0, 0, by), expand=False)


def _table(rows: Rows) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in rows.columns:
        is_number = column.endswith("#")
        table.add_column(
            column.removesuffix("#"), justify="right" if is_number else "left", overflow="fold"
        )
    for row in rows.rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
