"""A pod explained as text and tables: `inspect pod` and `kubectl hami why`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hami_node.cli.show.screen import Cell, Screen, Styled, Table, heads
from hami_node.cli.show.tables import ROOMY, holders, problems, span
from hami_node.inspection.pod import CardRoom, NodeVerdict, PodState, PodView, Verdict
from hami_node.inspection.story import EventView

MAX_NODES: Final = 40
"""Nodes shown in the table; JSON has all."""
_STYLES: Final = {
    Verdict.FITS: "green",
    Verdict.NO_ROOM: "yellow",
    Verdict.NEVER: "red",
    Verdict.NOT_OFFERED: "red",
}
_GOOD: Final = (PodState.BOUND, PodState.OVER, PodState.ASKS_NOTHING)


def print_pod(view: PodView, screen: Screen) -> None:
    """Print a pod's state, the verdict of each node, and what would help."""
    is_roomy = screen.width >= ROOMY
    screen.line(_head(view))
    if view.held:
        screen.table(holders(view.held, is_roomy))
    if view.nodes:
        screen.table(_verdicts(view.nodes[:MAX_NODES], is_roomy))
        _left_out(view, screen)
    screen.line(Styled(view.summary, "green" if view.state in _GOOD else "yellow"))
    if view.resize:
        screen.line(f"resize: {view.resize}")
    for hint in view.cures:
        screen.line(f"- {hint}", hang=2)
    if view.scheduler_said:
        screen.line(f"kube-scheduler said: {view.scheduler_said}", hang=2)
    if view.events:
        screen.line()
        screen.table(_events(view.events))
    if view.problems:
        screen.table(problems(view.problems))
    screen.line(Styled(f"({view.basis})", "dim"))


def _head(view: PodView) -> Cell:
    facts = [f"{view.phase}, {view.state}"]
    if view.node:
        facts.append(f"node {view.node}")
    if view.asks:
        facts.append(f"asks {view.asks}")
    if view.waits_s is not None:
        facts.append(f"since {span(view.waits_s)}")
    return Styled(f"pod {view.namespace}/{view.pod}: {'; '.join(facts)}", "bold")


def _verdicts(nodes: Iterable[NodeVerdict], is_roomy: bool) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for node in nodes:
        shown = f"{node.verdict}: {node.why}" if node.why else str(node.verdict)
        verdict = Styled(shown, _STYLES[node.verdict])
        rows.append((node.node, *_card(node.best, is_roomy), verdict))
    columns = heads("node | best card # | slots # | memory MiB # | cores #")
    columns += heads("model | uuid") if is_roomy else []
    columns += heads("verdict ...")
    return Table("verdict of each node; free on its best card", columns, rows)


def _card(best: CardRoom | None, is_roomy: bool) -> tuple[Cell, ...]:
    if best is None:
        return ("-",) * (6 if is_roomy else 4)
    numbers = (best.index, best.slots_free, best.memory_free_mib, best.cores_free)
    style = "" if best.is_usable else "dim"
    cells = tuple(Styled(str(number), style) for number in numbers)
    return (*cells, best.model, best.uuid) if is_roomy else cells


def _left_out(view: PodView, screen: Screen) -> None:
    more = len(view.nodes) - MAX_NODES
    parts = [f"{more} more nodes with cards (-o json has all)"] if more > 0 else []
    if view.other_nodes:
        parts.append(f"nodes without cards: {view.other_nodes}")
    if parts:
        screen.line(Styled("; ".join(parts), "dim"))


def _events(events: Iterable[EventView]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            "?" if event.age_s is None else span(event.age_s),
            event.reason + (f" (x{event.count})" if event.count > 1 else ""),
            event.source or "-",
            Styled(event.message, "yellow" if event.is_warning else ""),
        )
        for event in events
    ]
    return Table("events", heads("ago | event | from !1 | what it says ..."), rows)
