"""The output of the demo: steps as they happen, then a table. Plain text without a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hami_node.demo import pods
from hami_node.demo.stage import GPU_NODE, Stage
from hami_node.demo.steps import Quote, Rows, Shown
from hami_node.vendors.demo import ForeignDevices

WIDTH_IN_A_FILE: Final = 110
INDENT: Final = 6
BAR_CELLS: Final = 8


class View:
    """Writes to a stream; a terminal gets colours and progress."""

    def __init__(self, stream: TextIO) -> None:
        """Use only symbols that the stream's encoding can write."""
        is_terminal = stream.isatty()
        self._console = Console(
            file=stream, width=None if is_terminal else WIDTH_IN_A_FILE, highlight=False
        )
        self._good, self._bad, self._full, self._empty = "✓", "✗", "█", "░"
        try:
            "✓✗█░".encode(getattr(stream, "encoding", None) or "ascii")
        except (UnicodeEncodeError, LookupError):
            self._good, self._bad, self._full, self._empty = "ok", "FAILED", "#", "."

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
        self._step(self._good, "green", number, title, f"{took_s:.2f} s")
        for part in seen:
            if isinstance(part, Quote):
                self._indented(Text(f'"{part}"', style="yellow"), INDENT + 2)
            elif isinstance(part, str):
                self._indented(Text(part, style="dim"))
            else:
                self._indented(_table(part))

    def step_failed(self, number: int, title: str, why: str, took_s: float) -> None:
        """Show a step that failed."""
        self._step(self._bad, "bold red", number, title, f"{took_s:.2f} s")
        self._indented(Text(why, style="red"))

    def step_skipped(self, number: int, title: str) -> None:
        """Show a step that was skipped after a failure."""
        self._step("-", "dim", number, title, "not reached")

    def _step(self, mark: str, style: str, number: int, title: str, note: str) -> None:
        parts = ((mark, style), f" {number:2}  ", (title, "bold"), "  ", (f"({note})", "dim"))
        self._write(Text.assemble(*parts))

    def log_lines(self, title: str, lines: Sequence[str]) -> None:
        """Show the end of a program's log, uncut."""
        self._indented(Text(f"last log lines of {title}:", style="bold"))
        for line in lines or ("(it logged nothing)",):
            self._console.print(Text(" " * INDENT + line), soft_wrap=True)

    def verdict(self, of: int, failed: Sequence[str], skipped: int, took_s: float) -> None:
        """Show the last lines: whether all steps passed, and which failed."""
        is_good = not failed and not skipped
        mark = (f"{self._good} ", "green") if is_good else (f"{self._bad} ", "bold red")
        passed = f"all {of}" if is_good else f"{of - len(failed) - skipped} of {of}"
        self._write(Text())
        self._write(Text.assemble(mark, (f"{passed} steps passed in {took_s:.1f} s", "bold")))
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

    # -- the final table ---------------------------------------------------------------------------
    def cards(self, stage: Stage) -> None:
        """Show every card, and below it its holders; none of a node that has not reported."""
        table = Table(
            title="Cards and their holders, read back from the annotations",
            title_justify="left",
            title_style="bold",
            box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        _add_columns(table, ("card", "health", "slots#", "memory#", "cores#"))
        for row in self._shared_rows(stage):
            table.add_row(*row)
        for part in stage.cast.foreign:
            for row in self._foreign_rows(stage, part):
                table.add_row(*row)
        if table.row_count:
            self._write(Text())
            self._write(table)

    def _shared_rows(self, stage: Stage) -> Iterator[tuple[Text, ...]]:
        for card in stage.registered() or ():
            held = pods.shared_grants(stage, card.uuid)
            used_mib = sum(grant.memory_mib for _, grant in held)
            cells = -(-used_mib * BAR_CELLS // card.memory_mib)
            memory = Text.assemble(
                (self._full * cells, "green"),
                (self._empty * (BAR_CELLS - cells), "dim"),
                f" {used_mib:5}/{card.memory_mib} MiB",
            )
            slots, cores = f"{len(held)}/{card.slots}", sum(grant.cores for _, grant in held)
            name = f"{GPU_NODE} {card.index}  {card.model.removeprefix(f'{card.vendor} ')}"
            yield _row(name, card.healthy, slots, memory, f"{cores}/{card.cores} %")
            for owner, grant in held:
                yield _holder(owner, "1", f"{grant.memory_mib} MiB", f"{grant.cores} %")

    @staticmethod
    def _foreign_rows(stage: Stage, part: ForeignDevices) -> Iterator[tuple[Text, ...]]:
        """All devices of the node in a single row; a slot is a core."""
        devices = part.protocol.registered_on(stage.read_node(part.node))
        held = {
            owner: str(sum(grant.cores.bit_count() for grant in grants))
            for owner, grants in pods.grants_on(stage, part.protocol, part.node)
        }
        if devices:
            cores = sum(device.cores.bit_count() for device in devices)
            used = f"{sum(map(int, held.values()))}/{cores}"
            is_healthy = all(device.healthy for device in devices)
            name = f"{part.node} 0-{len(devices) - 1}  {part.model}"
            yield _row(name, is_healthy, used, Text("-"), used)
            for owner, count in held.items():
                yield _holder(owner, count, "-", count)


def _row(name: str, is_healthy: bool, slots: str, memory: Text, cores: str) -> tuple[Text, ...]:
    health = Text("ok", "green") if is_healthy else Text("FAILED", "red")
    return (Text(name), health, Text(slots), memory, Text(cores))


def _holder(owner: str, *cells: str) -> tuple[Text, ...]:
    return tuple(Text(cell, style="cyan") for cell in (f"  {owner}", "", *cells))


def _table(rows: Rows) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    _add_columns(table, rows[0])
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    return table


def _add_columns(table: Table, names: Sequence[str]) -> None:
    """Add columns; one whose name ends in `#` holds numbers."""
    for name in names:
        justify, shown = ("right", name[:-1]) if name.endswith("#") else ("left", name)
        table.add_column(shown, justify=justify, overflow="fold")  # type: ignore[arg-type] # words
