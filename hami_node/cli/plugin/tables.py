"""The output of `kubectl hami` as tables."""

from __future__ import annotations

from collections.abc import Iterable

from hami_node.cli.show.screen import Cell, Screen, Styled, Table, heads
from hami_node.cli.show.tables import (
    ROOMY,
    cards,
    handshake,
    holders,
    problems,
    short_uuid,
    totals,
    used,
    waiting,
)
from hami_node.inspection.top import NodeSums, TopCard, TopPod, TopView, sums_of
from hami_node.inspection.views import ClusterView, NodeView
from hami_node.wire.handshake import LATE_S


def show_nodes(view: ClusterView, screen: Screen, *, has_details: bool, is_wide: bool) -> None:
    """Print a line for each node; with details also its cards and who holds them."""
    if not view.nodes:
        screen.line(Styled("no node with cards is selected", "yellow"))
    else:
        screen.table(_nodes(view, is_wide))
    if has_details and view.nodes:
        screen.table(cards(view.cards, screen.width >= ROOMY))
        if view.holders:
            screen.table(holders(view.holders, screen.width >= ROOMY))
    elif view.totals is not None and view.nodes:
        screen.line(Styled(totals(view.totals), "bold"))
    said = frozenset(card.why for card in view.cards)
    if left := [problem for problem in view.problems if problem.why not in said]:
        screen.table(problems(left))


def _nodes(view: ClusterView, is_wide: bool) -> Table:
    sums = sums_of(view.cards)
    rows = [_node(node, sums.get(node.name, NodeSums()), is_wide) for node in view.nodes]
    columns = heads("node | cards # | slots # | memory MiB # | cores # | handshake !2 | lock !1")
    if is_wide:
        columns += heads("identity | limiter | hand-over")
    return Table("", [*columns, *heads("remarks ...")], rows)


def _node(node: NodeView, sums: NodeSums, is_wide: bool) -> tuple[Cell, ...]:
    age_s = node.handshake_age_s
    is_old = age_s is not None and age_s > LATE_S
    extra = (node.identity or "-", node.limiter or "-", node.hand_over or "-") if is_wide else ()
    return (
        node.name if node.is_ready else Styled(node.name, "red"),
        str(sums.cards),
        f"{sums.slots_used}/{sums.slots}",
        used(sums.memory_used_mib, sums.memory_mib, has_bar=False),
        used(sums.cores_used, sums.cores, has_bar=False),
        handshake(node),
        node.lock or "-",
        *extra,
        _remarks(node, sums, is_old=is_old),
    )


def _remarks(node: NodeView, sums: NodeSums, *, is_old: bool) -> Cell:
    """What a person should look at."""
    bad = [] if node.is_ready else ["the node is not ready"]
    bad += sums.sick
    old = [f"no handshake for {node.handshake_age_s} s"] if is_old else []
    marks = ["SIMULATED"] if node.is_simulated else []
    marks += ["standalone"] if node.is_standalone else []
    style = "red" if bad else "yellow" if old or node.is_simulated else ""
    return Styled("; ".join((*bad, *old, *marks)), style)


def show_pods(view: ClusterView, screen: Screen, *, where: str) -> None:
    """Print who holds what, and who waits and why; `where` says which pods were looked for."""
    if view.holders:
        screen.table(holders(view.holders, screen.width >= ROOMY))
    if view.waiting:
        screen.table(waiting(view.waiting))
    if not view.holders and not view.waiting:
        screen.line(Styled(f"no pod {where} holds a slice or waits for one", "dim"))
    if view.problems:
        screen.table(problems(view.problems))


def show_top(top: TopView, screen: Screen, *, parts: Iterable[str], where: str) -> None:
    """Print cards and pods, those that use most first."""
    if "cards" in parts:
        if top.cards:
            screen.table(_top_cards(top.cards, screen.width >= ROOMY))
        else:
            screen.line(Styled("no node with cards is selected", "yellow"))
    if "pods" in parts:
        if top.pods:
            screen.table(_top_pods(top.pods))
        else:
            screen.line(Styled(f"no pod {where} holds a slice", "dim"))
    if top.note:
        screen.line(Styled(top.note, "yellow"))


def _amount(amount: int | None, unit: str = "") -> str:
    return "-" if amount is None else f"{amount}{unit}"


def _top_cards(views: Iterable[TopCard], is_roomy: bool) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for card in views:
        is_over = card.memory_granted_mib > card.memory_mib
        state = card.why if card.is_healthy else f"UNHEALTHY: {card.why}".removesuffix(": ")
        rows.append(
            (
                card.node,
                str(card.index),
                card.model,
                short_uuid(card.uuid, is_roomy),
                f"{card.slots_granted}/{card.slots}",
                _amount(card.memory_used_mib),
                Styled(str(card.memory_granted_mib), "red" if is_over else ""),
                str(card.memory_mib),
                _amount(card.cores_used_percent, " %"),
                f"{card.cores_granted}/{card.cores}",
                Styled(state, "yellow" if card.is_healthy else "red"),
            )
        )
    return Table(
        "cards",
        heads(
            "node ~ | card # | model !2 | uuid !3 | slots #!1 | MiB used # | granted # | "
            "of # | core use # | cores # | remarks ..."
        ),
        rows,
    )


def _top_pods(views: Iterable[TopPod]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            pod.namespace,
            pod.pod,
            pod.node,
            str(pod.cards),
            _amount(pod.memory_used_mib),
            str(pod.memory_granted_mib),
            _amount(pod.cores_used_percent, " %"),
            str(pod.cores_granted),
        )
        for pod in views
    ]
    return Table(
        "pods",
        heads(
            "namespace | pod ~ | node ~!1 | cards # | MiB used # | granted # | core use # | cores #"
        ),
        rows,
    )
