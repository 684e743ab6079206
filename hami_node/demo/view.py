"""The output of the demo: steps as they happen, then a table. Plain text without a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hami_node.demo.steps import EMPTY, FULL, Quote, Rows, Shown

GOOD: Final = "✓"
BAD: Final = "✗"
WIDTH_IN_A_FILE: Final = 110
INDENT: Final = 6
SYMBOLS: Final = {GOOD: "ok", BAD: "FAILED", FULL: "#", EMPTY: "."}
"""What is written where the encoding has no such symbol."""


class View:
    """Writes to a stream; a terminal gets colours and progress."""

    def __init__(self, stream: TextIO) -> None:
        """Use only symbols that the stream's encoding can write."""
        is_terminal = stream.isatty()
        self._console = Console(
            file=stream, width=None if is_terminal else WIDTH_IN_A_FILE, highlight=False
        )
        self._instead: dict[int, str] = {}
        try:
            "".join(SYMBOLS).encode(getattr(stream, "encoding", None) or "ascii")
        except (UnicodeEncodeError, LookupError):
            self._instead = {ord(symbol): plain for symbol, plain in SYMBOLS.items()}

    def begin(self) -> None:
        """Explain what is real and what is simulated."""
        self.line("hami-node demo", "bold")
        self.line(
            "Real: daemons and extender, as processes; their gRPC, HTTP and annotations.\n"
            "Simulated: the cards, kubelet, the API server and kube-scheduler. "
            "No cluster and no GPU is touched.\n",
            "dim",
        )

    def running(self, number: int, of: int, title: str) -> AbstractContextManager[object]:
        """Show that a step is running; only on a terminal."""
        if not self._console.is_terminal:
            return nullcontext()
        return self._console.status(f"[{number}/{of}] {title}", spinner="dots")

    def step_passed(self, number: int, title: str, seen: Sequence[Shown], took_s: float) -> None:
        """Show a step that passed."""
        self._step(GOOD, "green", number, title, f"{took_s:.2f} s")
        for part in seen:
            if isinstance(part, Quote):
                self._indented(Text(f'"{part}"', style="yellow"), INDENT + 2)
            elif isinstance(part, str):
                self._indented(Text(part, style="dim"))
            else:
                self._indented(self._table(part))

    def step_failed(self, number: int, title: str, why: str, took_s: float) -> None:
        """Show a step that failed."""
        self._step(BAD, "bold red", number, title, f"{took_s:.2f} s")
        self._indented(Text(why, style="red"))

    def step_skipped(self, number: int, title: str) -> None:
        """Show a step that was skipped after a failure."""
        self._step("-", "dim", number, title, "not reached")

    def _step(self, mark: str, style: str, number: int, title: str, note: str) -> None:
        mark = mark.translate(self._instead)
        parts = ((mark, style), f" {number:2}  ", (title, "bold"), "  ", (f"({note})", "dim"))
        self._write(Text.assemble(*parts))

    def log_lines(self, title: str, lines: Sequence[str]) -> None:
        """Show the end of a program's log, uncut."""
        self._indented(Text(f"last log lines of {title}:", style="bold"))
        for line in lines or ("(it logged nothing)",):
            self._console.print(Text(" " * INDENT + line), soft_wrap=True)

    def cards(self, rows: Rows) -> None:
        """Show every card, and below it its holders."""
        if len(rows) == 1:  # no node has reported
            return
        self.line("\nCards and their holders, read back from the annotations", "bold")
        self._write(self._table(rows))

    def verdict(self, of: int, failed: Sequence[str], skipped: int, took_s: float) -> None:
        """Show the last lines: whether all steps passed, and which failed."""
        is_good = not failed and not skipped
        word, style = (GOOD, "green") if is_good else (BAD, "bold red")
        passed = f"all {of}" if is_good else f"{of - len(failed) - skipped} of {of}"
        self._write(Text())
        verdict = (f"{passed} steps passed in {took_s:.1f} s", "bold")
        self._write(Text.assemble((word.translate(self._instead), style), " ", verdict))
        for title in failed:
            self._indented(Text(f"failed: {title}", "red"))
        if skipped:
            self._indented(Text(f"not reached: {skipped} steps after it", "red"))

    def kept(self, commands: Sequence[tuple[str, str]]) -> None:
        """Show the commands to try while everything keeps running."""
        self.line("\nEverything keeps running until Ctrl-C. Try in another terminal:", "bold")
        for purpose, command in commands:
            if purpose:
                self.line(f"  # {purpose}", "dim")
            self._console.print(Text(f"  {command}"), soft_wrap=True)

    def line(self, text: str, style: str = "") -> None:
        """Write a line."""
        self._write(Text(text, style))

    def _table(self, rows: Rows) -> Table:
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for name in rows[0]:
            column = name.removesuffix("#")
            table.add_column(column, justify="left" if column == name else "right", overflow="fold")
        for row in rows[1:]:
            style = "cyan" if row[0].startswith(" ") else ""
            table.add_row(*(Text(cell.translate(self._instead), style) for cell in row))
        return table

    def _indented(self, what: RenderableType, by: int = INDENT) -> None:
        self._write(Padding(what, (0, 0, 0, by), expand=False))

    def _write(self, what: RenderableType) -> None:
        if self._console.is_terminal:
            self._console.print(what)
            return
        with self._console.capture() as captured:
            self._console.print(what)
        lines = (line.rstrip() for line in captured.get().splitlines())
        self._console.file.write("".join(f"{line}\n" for line in lines))
        self._console.file.flush()
