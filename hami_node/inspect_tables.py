"""What `inspect` and `check-config` show a person, as tables. Only this module loads rich."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hami_node.inspection.cluster import (
    CardView,
    ClusterView,
    HolderView,
    NodeView,
    Problem,
    TotalsView,
    WaitingView,
)

WIDTH_IN_A_FILE: Final = 240
"""Columns when nobody looks: nothing is cut in a pipe."""
STALE_S: Final = 90
"""A handshake older than this is shown as a warning; schedulers give up after 60 to 90 s."""
BAR_CELLS: Final = 10
ROOMY: Final = 165
"""Columns from which UUIDs stand in full and bars are drawn."""

Cell = str | Text


def show_cluster(view: ClusterView, stream: TextIO | None = None, width: int | None = None) -> None:
    """Print nodes, cards, holders and everything that is broken; `width` in columns."""
    console = console_of(stream, width)
    is_roomy = console.width >= ROOMY
    parts: list[RenderableType] = []
    if view.nodes:
        parts += [_nodes(view.nodes), _cards(view.cards, is_roomy)]
    else:
        parts.append(Text("no node has published cards\n", style="yellow"))
    if view.holders:
        parts.append(holders(view.holders, is_roomy))
    elif view.nodes:
        parts.append(Text("nobody holds a slice\n", style="dim"))
    if view.waiting:
        parts.append(_waiting(view.waiting))
    if view.totals is not None and view.nodes:
        parts.append(Text(_totals(view.totals), style="bold"))
    if view.problems:
        parts.append(problems(view.problems))
    console.print(Group(*parts))


def show_settings(
    settings: Mapping[str, object], origins: Mapping[str, str], stream: TextIO | None = None
) -> None:
    """Print each effective setting with its source."""
    rows = []
    for name, value in settings.items():
        origin = origins.get(name, "")
        shown = ", ".join(map(str, value)) if isinstance(value, list) else _plain(value)
        style = "bold" if origin else "dim"
        rows.append((Text(name, style=style), Text(shown, style=style), origin or "default"))
    console_of(stream).print(table("effective settings", ("setting", "value", "source"), rows))


def _plain(value: object) -> str:
    if value is None or value == "":
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


def console_of(stream: TextIO | None, width: int | None = None) -> Console:
    """Where to print; `width` in columns."""
    out = stream or sys.stdout
    if width is None and not out.isatty():
        width = WIDTH_IN_A_FILE
    return Console(file=out, width=width, highlight=False)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Table:
    """A table; a column whose name ends in `#` is a number, set to the right."""
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", title_style="bold")
    for column in columns:
        is_number = column.endswith("#")
        table.add_column(
            column.removesuffix("#"), justify="right" if is_number else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(safe(cell) for cell in row))
    return table


def safe(cell: Cell) -> Text:
    """Text without markup and control characters: others wrote parts of it."""
    text = cell if isinstance(cell, Text) else Text(cell)
    if text.plain.isprintable():
        return text
    plain = "".join(char if char.isprintable() else "?" for char in text.plain)
    return Text(plain, style=text.style)


def _nodes(nodes: Iterable[NodeView]) -> Table:
    rows = [
        (
            Text(one.name) if one.is_ready else Text(f"{one.name} (not ready)", style="red"),
            str(one.cards),
            one.allocatable or "-",
            _handshake(one),
            one.lock or "-",
            one.identity or "-",
            Text("SIMULATED", style="yellow") if one.is_simulated else "",
        )
        for one in nodes
    ]
    columns = ("node", "cards#", "slots at kubelet#", "handshake", "lock", "identity", "")
    return table("nodes", columns, rows)


def _handshake(node: NodeView) -> Cell:
    if not node.handshake:
        return Text("none", style="red")
    if node.handshake_age_s is None:
        return Text(node.handshake, style="yellow")
    text = f"{node.handshake}, {node.handshake_age_s} s ago"
    return Text(text, style="yellow" if node.handshake_age_s > STALE_S else "")


def _cards(cards: Iterable[CardView], is_roomy: bool) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for one in cards:
        row: tuple[Cell, ...] = (
            one.node,
            str(one.index),
            _model(one, is_roomy),
            _uuid(one.uuid, is_roomy),
            Text("ok", style="green") if one.is_healthy else Text("UNHEALTHY", style="red"),
            f"{one.slots_used}/{one.slots}",
            _used(one.memory_used_mib, one.memory_mib, is_roomy),
            _used(one.cores_used, one.cores, is_roomy),
        )
        numa = "-" if one.numa is None else str(one.numa)
        rows.append((*row, numa, one.mode or "-") if is_roomy else row)
    columns = ["node", "card#", "model", "uuid", "health", "slots#", "memory MiB", "cores"]
    return table("cards", [*columns, "numa#", "mode"] if is_roomy else columns, rows)


def _model(card: CardView, is_roomy: bool) -> str:
    shown = card.model or card.vendor
    return shown if is_roomy else shown.removeprefix("NVIDIA-").removeprefix("NVIDIA ")


def _uuid(uuid: str, is_roomy: bool) -> str:
    """The UUID, or enough of it to tell cards apart; -o json has it in full."""
    return uuid if is_roomy or not uuid.startswith("GPU-") else f"{uuid[:12]}…"


def _used(used: int, total: int, is_roomy: bool) -> Cell:
    """`███░░░░░░░ 3/10`; red when more is granted than there is."""
    if total <= 0:
        return "-" if not used else Text(f"{used}/0", style="red")
    cells = max(min(BAR_CELLS, -(-used * BAR_CELLS // total)), 0)
    bar = "█" * cells + "░" * (BAR_CELLS - cells) + " " if is_roomy else ""
    return Text(f"{bar}{used}/{total}", style="red" if used > total else "")


def holders(views: Iterable[HolderView], is_roomy: bool) -> Table:
    """Who holds which slice."""
    rows = [
        (
            one.namespace,
            one.pod,
            one.container,
            one.node,
            Text("?", style="red") if one.index is None else str(one.index),
            _uuid(one.uuid, is_roomy),
            str(one.memory_mib),
            str(one.cores),
            one.phase if one.is_served else Text(f"{one.phase}, to be served", style="yellow"),
        )
        for one in views
    ]
    columns = ("namespace", "pod", "container", "node", "card#", "uuid", "memory MiB#", "cores#")
    return table("who holds what", (*columns, "state"), rows)


def _waiting(waiting: Iterable[WaitingView]) -> Table:
    rows = [
        (
            f"{one.namespace}/{one.pod}",
            one.asks,
            "?" if one.waits_s is None else span(one.waits_s),
            f"{one.why} ({one.reserved_on})" if one.reserved_on else Text(one.why, style="yellow"),
        )
        for one in waiting
    ]
    return table("who waits", ("pod", "asks", "since", "why"), rows)


def span(seconds: int) -> str:
    """`45 s`, `3 min`, `2 h 5 min` or `4 d 2 h`: two units are enough."""
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if not minutes:
        return f"{seconds} s"
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if not days else f"{days} d {hours % 24} h"


def _totals(totals: TotalsView) -> str:
    said = [f"{totals.cards} cards of {totals.nodes} nodes are offered"]
    if totals.slots:
        said.append(f"{totals.slots_free} of {totals.slots} slots free")
        said.append(f"{totals.memory_free_mib} of {totals.memory_mib} MiB free")
    if totals.largest_index is not None:
        place = f"card {totals.largest_index} of {totals.largest_node}"
        said.append(f"largest slice {totals.largest_mib} MiB ({place})")
    if totals.neuron_cores_free:
        said.append(f"{totals.neuron_cores_free} Neuron cores free")
    return "total: " + ", ".join(said) + "\n"


def problems(found: Iterable[Problem]) -> Table:
    """Everything that is broken."""
    rows = [(Text(one.where, style="red"), one.why) for one in found]
    return table("broken", ("where", "why"), rows)
