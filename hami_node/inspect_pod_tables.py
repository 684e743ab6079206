"""What `inspect pod` shows a person."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TextIO

from rich.console import Group, RenderableType
from rich.text import Text

from hami_node.inspect_tables import ROOMY, Cell, console_of, holders, problems, safe, span, table
from hami_node.inspection.pod import CardRoom, NodeVerdict, PodState, PodView, Verdict

MAX_NODES: Final = 40
"""Nodes shown in the table; JSON has all."""
_STYLES: Final = {
    Verdict.FITS: "green",
    Verdict.NO_ROOM: "yellow",
    Verdict.NEVER: "red",
    Verdict.NOT_OFFERED: "red",
}
_GOOD: Final = (PodState.BOUND, PodState.OVER, PodState.ASKS_NOTHING)


def show_pod(view: PodView, stream: TextIO | None = None, width: int | None = None) -> None:
    """Print one pod's state, what each node says to it, and what would help; `width` in columns."""
    console = console_of(stream, width)
    is_roomy = console.width >= ROOMY
    parts: list[RenderableType] = [_head(view)]
    if view.held:
        parts.append(holders(view.held, is_roomy))
    if view.nodes:
        parts.append(_verdicts(view.nodes[:MAX_NODES], is_roomy))
        parts += _left_out(view)
    style = "green" if view.state in _GOOD else "yellow"
    parts.append(safe(Text(view.summary, style=style)))
    parts += [safe(f"- {cure}") for cure in view.cures]
    if view.problems:
        parts.append(problems(view.problems))
    parts.append(Text(f"({view.basis})", style="dim"))
    console.print(Group(*parts))


def _head(view: PodView) -> Text:
    said = [f"pod {view.namespace}/{view.pod}", f"{view.phase}, {view.state}"]
    if view.node:
        said.append(f"node {view.node}")
    if view.asks:
        said.append(f"asks {view.asks}")
    if view.waits_s is not None:
        said.append(f"since {span(view.waits_s)}")
    return safe(Text(": ".join((said[0], "; ".join(said[1:]))), style="bold"))


def _verdicts(nodes: Iterable[NodeVerdict], is_roomy: bool) -> RenderableType:
    rows: list[tuple[Cell, ...]] = []
    for one in nodes:
        shown = f"{one.verdict}: {one.why}" if one.why else str(one.verdict)
        verdict = Text(shown, style=_STYLES[one.verdict])
        rows.append((one.node, verdict, *_card(one.best, is_roomy)))
    columns = ["node", "verdict", "best card#", "slots#", "memory MiB#", "cores#"]
    extra = ["model", "uuid"] if is_roomy else []
    return table("what each node says; free on its best card", [*columns, *extra], rows)


def _card(best: CardRoom | None, is_roomy: bool) -> tuple[Cell, ...]:
    if best is None:
        return ("-",) * (6 if is_roomy else 4)
    numbers = (best.index, best.slots_free, best.memory_free_mib, best.cores_free)
    style = "" if best.is_usable else "dim"
    cells = tuple(Text(str(number), style=style) for number in numbers)
    return (*cells, best.model, best.uuid) if is_roomy else cells


def _left_out(view: PodView) -> list[RenderableType]:
    more = len(view.nodes) - MAX_NODES
    parts = [f"{more} more nodes with cards (-o json has all)"] if more > 0 else []
    if view.other_nodes:
        parts.append(f"nodes without cards: {view.other_nodes}")
    return [Text("; ".join(parts), style="dim")] if parts else []
