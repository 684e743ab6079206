"""The output of `inspect pod` as tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TextIO

from rich.console import Group, RenderableType
from rich.text import Text

from hami_node.cli.tables import ROOMY, Cell, console_of, holders, problems, safe, span, table
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
    """Print a pod's state, the verdict of each node, and what would help; `width` in columns."""
    console = console_of(stream, width)
    is_roomy = console.width >= ROOMY
    parts: list[RenderableType] = [_head(view)]
    if view.held:
        parts.append(holders(view.held, console.width))
    if view.nodes:
        parts.append(_verdicts(view.nodes[:MAX_NODES], is_roomy))
        parts += _left_out(view)
    style = "green" if view.state in _GOOD else "yellow"
    parts.append(safe(Text(view.summary, style=style)))
    if view.resize:
        parts.append(safe(f"resize: {view.resize}"))
    parts += [safe(f"- {hint}") for hint in view.cures]
    if view.problems:
        parts.append(problems(view.problems))
    parts.append(Text(f"({view.basis})", style="dim"))
    console.print(Group(*parts))


def _head(view: PodView) -> Text:
    facts = [f"{view.phase}, {view.state}"]
    if view.node:
        facts.append(f"node {view.node}")
    if view.asks:
        facts.append(f"asks {view.asks}")
    if view.waits_s is not None:
        facts.append(f"since {span(view.waits_s)}")
    return safe(Text(f"pod {view.namespace}/{view.pod}: {'; '.join(facts)}", style="bold"))


def _verdicts(nodes: Iterable[NodeVerdict], is_roomy: bool) -> RenderableType:
    rows: list[tuple[Cell, ...]] = []
    for node in nodes:
        shown = f"{node.verdict}: {node.why}" if node.why else str(node.verdict)
        verdict = Text(shown, style=_STYLES[node.verdict])
        rows.append((node.node, verdict, *_card(node.best, is_roomy)))
    columns = ["node", "verdict", "best card#", "slots#", "memory MiB#", "cores#"]
    extra = ["model", "uuid"] if is_roomy else []
    return table("verdict of each node; free on its best card", [*columns, *extra], rows)


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
