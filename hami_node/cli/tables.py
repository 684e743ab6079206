"""The output of `inspect` and `check-config` as tables."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hami_node.inspection.views import (
    CardView,
    ClusterView,
    DividedCardView,
    HolderView,
    NodeView,
    PartView,
    Problem,
    TotalsView,
    WaitingView,
)
from hami_node.wire import names

WIDTH_IN_A_FILE: Final = 240
"""Columns when the output is no terminal: nothing is cut in a pipe."""
STALE_S: Final = 90
"""A handshake older than this is shown as a warning; schedulers give up after 60 to 90 s."""
BAR_CELLS: Final = 10
ROOMY: Final = 165
"""Columns from which UUIDs are shown in full and bars are drawn."""
WIDE: Final = 130
"""Columns from which limiters are shown."""
NARROW: Final = 100
"""With fewer columns a node's means of identification are left out."""
MAX_NAMED: Final = 5
"""Nodes that are named for one way of handing over cards."""

WELL_STATES: Final = frozenset({"live", "offered"})
"""The states of parts that nobody has to look at."""
_UUID: Final = re.compile(r"([A-Za-z]+-[0-9a-f]{8})-[0-9a-f]{4}-", re.IGNORECASE)
"""A prefix and a random UUID, whose first group is enough to distinguish cards."""

Cell = str | Text


def show_cluster(view: ClusterView, stream: TextIO | None = None, width: int | None = None) -> None:
    """Print nodes, cards, holders and all problems; `width` in columns."""
    console = console_of(stream, width)
    is_roomy = console.width >= ROOMY
    parts: list[RenderableType] = []
    if view.nodes:
        parts.append(_nodes(view.nodes, console.width))
        if any(node.hand_over for node in view.nodes):
            parts.append(_hand_overs(view.nodes))
        parts.append(_cards(view.cards, is_roomy))
        parts += [_divided(view.divided, is_roomy)] if view.divided else []
        parts += [_parts(view.parts, is_roomy)] if view.parts else []
    else:
        parts.append(Text("no node has published cards\n", style="yellow"))
    if view.holders:
        parts.append(holders(view.holders, console.width))
    elif view.nodes:
        parts.append(Text("no pod holds a slice\n", style="dim"))
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
        shown = _plain(value)
        style = "bold" if origin else "dim"
        rows.append((Text(name, style=style), Text(shown, style=style), origin or "default"))
    console_of(stream).print(table("effective settings", ("setting", "value", "source"), rows))


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        value = [f"{key}={of_key}" for key, of_key in value.items()]
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    if value is None or value == "":
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


def console_of(stream: TextIO | None, width: int | None = None) -> Console:
    """The console for a stream; `width` in columns."""
    out = stream or sys.stdout
    if width is None and not out.isatty():
        width = WIDTH_IN_A_FILE
    return Console(file=out, width=width, highlight=False)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Table:
    """A table; a column whose name ends in `#` holds numbers, aligned to the right."""
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
    """Text without markup and control characters: parts of it come from other writers."""
    text = cell if isinstance(cell, Text) else Text(cell)
    if text.plain.isprintable():
        return text
    plain = "".join(char if char.isprintable() else "?" for char in text.plain)
    return Text(plain, style=text.style)


def _nodes(nodes: Iterable[NodeView], width: int) -> Table:
    is_narrow, is_wide = width < NARROW, width >= WIDE
    rows = [
        (
            Text(node.name) if node.is_ready else Text(f"{node.name} (not ready)", style="red"),
            str(node.cards),
            node.allocatable or "-",
            _handshake(node),
            node.lock or "-",
            *(() if is_narrow else (node.identity or "-",)),
            *((node.limiter or "-",) if is_wide else ()),
            _marks(node),
        )
        for node in nodes
    ]
    columns = ["node", "cards#", "slots at kubelet#", "handshake", "lock"]
    columns += [*(() if is_narrow else ("identity",)), *(("limiter",) if is_wide else ()), ""]
    return table("nodes", columns, rows)


def _marks(node: NodeView) -> Text:
    marks = [Text("SIMULATED", style="yellow")] if node.is_simulated else []
    marks += [Text("standalone")] if node.is_standalone else []
    return Text(" ").join(marks)


def _hand_overs(nodes: Iterable[NodeView]) -> Table:
    """How containers get their cards, each way once, with the nodes on which it is that."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        if node.hand_over:
            found.setdefault(node.hand_over, []).append(node.name)
    rows: list[tuple[Cell, Cell]] = []
    for way, on in sorted(found.items()):
        style = "red" if way.startswith(names.HAND_OVER_REFUSED) else ""
        more = f" and {len(on) - MAX_NAMED} more" if len(on) > MAX_NAMED else ""
        rows.append((Text(way, style=style), ", ".join(on[:MAX_NAMED]) + more))
    return table("hand-over", ("how containers get their cards", "nodes"), rows)


def _handshake(node: NodeView) -> Cell:
    if not node.handshake:
        return "-" if node.is_standalone else Text("none", style="red")
    if node.handshake_age_s is None:
        return Text(node.handshake, style="yellow")
    text = f"{node.handshake}, {node.handshake_age_s} s ago"
    return Text(text, style="yellow" if node.handshake_age_s > STALE_S else "")


def _cards(cards: Iterable[CardView], is_roomy: bool) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for card in cards:
        row: tuple[Cell, ...] = (
            card.node,
            str(card.index),
            _model(card, is_roomy),
            _uuid(card.uuid, is_roomy),
            Text("ok", style="green") if card.is_healthy else Text("UNHEALTHY", style="red"),
            f"{card.slots_used}/{card.slots}",
            _used(card.memory_used_mib, card.memory_mib, is_roomy),
            _used(card.cores_used, card.cores, is_roomy),
        )
        numa = "-" if card.numa is None else str(card.numa)
        rows.append((*row, numa, card.mode or "-") if is_roomy else row)
    columns = ["node", "card#", "model", "uuid", "health", "slots#", "memory MiB", "cores"]
    return table("cards", [*columns, "numa#", "mode"] if is_roomy else columns, rows)


def _divided(cards: Iterable[DividedCardView], is_roomy: bool) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for card in cards:
        pending = f", {card.pending} after the next reset" if card.pending else ""
        kinds = () if card.problem else card.kinds
        free = [f"{kind.name} at {_numbers(kind.free)}" for kind in kinds if kind.free]
        is_said = card.hands_off in card.problem
        why = "; ".join(
            filter(None, (card.problem, "" if is_said else f"hands off: {card.hands_off}"))
        )
        rows.append(
            (
                card.node,
                str(card.index),
                _uuid(card.uuid, is_roomy),
                Text(card.mode + pending, style="yellow" if card.pending else ""),
                ", ".join(free) or "-",
                Text(why, style="red" if card.problem else "yellow"),
            )
        )
    columns = ("node", "card#", "uuid", "mode", "what fits now, and where", "")
    return table("divided cards", columns, rows)


def _parts(parts: Iterable[PartView], is_roomy: bool) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            part.node,
            str(part.index),
            part.kind,
            f"{part.start}+{part.size}",
            "/".join(map(str, part.numbers)) or "-",
            _uuid(part.uuid, is_roomy) or "-",
            Text(part.state, style="green" if part.state in WELL_STATES else "yellow"),
            part.holder or "-",
            part.why,
        )
        for part in parts
    ]
    columns = ("node", "card#", "part", "place", "numbers", "uuid", "state", "container", "")
    return table("parts of divided cards", columns, rows)


def _numbers(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))


def _model(card: CardView, is_roomy: bool) -> str:
    """The model, without the vendor's prefix where there is little room."""
    shown = card.model or card.vendor
    if is_roomy:
        return shown
    return shown.removeprefix(f"{card.vendor}-").removeprefix(f"{card.vendor} ")


def _uuid(uuid: str, is_roomy: bool) -> str:
    """The UUID, or enough of it to distinguish cards; -o json has it in full."""
    found = None if is_roomy else _UUID.match(uuid)
    return f"{found[1]}…" if found else uuid


def _used(used: int, total: int, is_roomy: bool) -> Cell:
    """`███░░░░░░░ 3/10`; red when more is granted than the card has."""
    if total <= 0:
        return "-" if not used else Text(f"{used}/0", style="red")
    cells = max(min(BAR_CELLS, -(-used * BAR_CELLS // total)), 0)
    bar = "█" * cells + "░" * (BAR_CELLS - cells) + " " if is_roomy else ""
    return Text(f"{bar}{used}/{total}", style="red" if used > total else "")


def holders(views: Iterable[HolderView], width: int) -> Table:
    """The table of slices and their holders."""
    is_roomy, is_wide = width >= ROOMY, width >= WIDE
    rows = [
        (
            holder.namespace,
            holder.pod,
            holder.container,
            holder.node,
            *_slice(holder, is_roomy),
            holder.phase
            if holder.is_served
            else Text(f"{holder.phase}, to be served", style="yellow"),
            *((holder.limiter or "-",) if is_wide else ()),
        )
        for holder in views
    ]
    columns = ("namespace", "pod", "container", "node", "card#", "uuid", "memory MiB#", "cores#")
    limiter = ("limiter",) if is_wide else ()
    return table("who holds what", (*columns, "state", *limiter), rows)


def _slice(holder: HolderView, is_roomy: bool) -> tuple[Cell, ...]:
    """Card, UUID, memory and cores; of fixed shares only kubelet and the node know them."""
    if holder.shares:
        return ("-", holder.shares, "-", "-")
    index = Text("?", style="red") if holder.index is None else str(holder.index)
    return (index, _uuid(holder.uuid, is_roomy), str(holder.memory_mib), str(holder.cores))


def _waiting(waiting: Iterable[WaitingView]) -> Table:
    rows = [
        (
            f"{pod.namespace}/{pod.pod}",
            pod.asks,
            "?" if pod.waits_s is None else span(pod.waits_s),
            f"{pod.why} ({pod.reserved_on})" if pod.reserved_on else Text(pod.why, style="yellow"),
        )
        for pod in waiting
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
    facts = [f"{totals.cards} cards of {totals.nodes} nodes are offered"]
    if totals.slots:
        facts.append(f"{totals.slots_free} of {totals.slots} slots free")
        facts.append(f"{totals.memory_free_mib} of {totals.memory_mib} MiB free")
    if totals.largest_index is not None:
        card = f"card {totals.largest_index} of {totals.largest_node}"
        facts.append(f"largest slice {totals.largest_mib} MiB ({card})")
    facts += [f"{free} {cores} free" for cores, free in totals.cores_free.items() if free]
    return "total: " + ", ".join(facts) + "\n"


def problems(found: Iterable[Problem]) -> Table:
    """The table of problems."""
    rows = [(Text(problem.where, style="red"), problem.why) for problem in found]
    return table("broken", ("where", "why"), rows)
