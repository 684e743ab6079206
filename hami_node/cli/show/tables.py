"""The output of `inspect`, `kubectl hami` and `check-config` as tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, TextIO

from hami_node.cli.show.screen import Cell, Screen, Styled, Table, heads, screen_of
from hami_node.inspection.views import (
    CardView,
    ClusterView,
    HolderView,
    NodeView,
    Problem,
    TotalsView,
    WaitingView,
)
from hami_node.text import count, some
from hami_node.wire import names
from hami_node.wire.handshake import LATE_S

BAR_CELLS: Final = 10
ROOMY: Final = 165
"""Columns from which UUIDs are shown in full and bars are drawn."""
MAX_NAMED: Final = 5
"""Nodes that are named for one way of handing over cards."""
_UUID: Final = re.compile(r"([A-Za-z]+-[0-9a-f]{8})-[0-9a-f]{4}-", re.IGNORECASE)
"""A prefix and a random UUID, whose first group is enough to distinguish cards."""


def show_cluster(view: ClusterView, screen: Screen, *, has_pods: bool = True) -> None:
    """Print nodes, cards, holders and all problems.

    Args:
        view: what to print.
        screen: where to.
        has_pods: False where pods were not looked at, and so nobody knows who holds what.
    """
    is_roomy = screen.width >= ROOMY
    if view.nodes:
        screen.table(nodes(view.nodes))
        if any(node.hand_over for node in view.nodes):
            screen.table(_hand_overs(view.nodes))
        screen.table(cards(view.cards, is_roomy))
    else:
        screen.line(Styled("no node has published cards", "yellow"))
        screen.line()
    if view.holders:
        screen.table(holders(view.holders, is_roomy))
    elif not has_pods:
        screen.line(Styled("no pods were given: who holds what is not known", "yellow"))
        screen.line()
    elif view.nodes:
        screen.line(Styled("no pod holds a slice", "dim"))
        screen.line()
    if view.waiting:
        screen.table(waiting(view.waiting))
    if view.totals is not None and view.nodes:
        screen.line(Styled(totals(view.totals), "bold"))
        screen.line()
    if view.problems:
        screen.table(problems(view.problems))


def show_settings(
    settings: Mapping[str, object], origins: Mapping[str, str], stream: TextIO | None = None
) -> None:
    """Print each effective setting with its source."""
    rows: list[tuple[Cell, ...]] = []
    for name, value in settings.items():
        origin = origins.get(name, "")
        style = "bold" if origin else "dim"
        rows.append((Styled(name, style), Styled(_plain(value), style), origin or "default"))
    columns = heads("setting | value ... | source")
    screen_of(stream).table(Table("effective settings", columns, rows))


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        value = [f"{key}={of_key}" for key, of_key in value.items()]
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    if value is None or value == "":
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


def nodes(views: Iterable[NodeView]) -> Table:
    """The table of nodes."""
    rows = [
        (
            node.name if node.is_ready else Styled(f"{node.name} (not ready)", "red"),
            str(node.cards),
            node.allocatable or "-",
            handshake(node),
            node.lock or "-",
            node.identity or "-",
            node.limiter or "-",
            _marks(node),
        )
        for node in views
    ]
    return Table(
        "nodes",
        heads(
            "node | cards # | slots at kubelet #!1 | handshake | lock !2 | identity !3 | "
            "limiter !4 | "
        ),
        rows,
    )


def _marks(node: NodeView) -> Cell:
    marks = ["SIMULATED"] if node.is_simulated else []
    marks += ["standalone"] if node.is_standalone else []
    return Styled(" ".join(marks), "yellow" if node.is_simulated else "")


def _hand_overs(views: Iterable[NodeView]) -> Table:
    """How containers get their cards, each way once, with the nodes on which it is that."""
    found: dict[str, list[str]] = {}
    for node in views:
        if node.hand_over:
            found.setdefault(node.hand_over, []).append(node.name)
    rows: list[tuple[Cell, Cell]] = []
    for way, on in sorted(found.items()):
        style = "red" if way.startswith(names.HAND_OVER_REFUSED) else ""
        rows.append((Styled(way, style), some(on, MAX_NAMED)))
    return Table("hand-over", heads("how containers get their cards ... | nodes ..."), rows)


def handshake(node: NodeView) -> Cell:
    """Who wrote last, and when."""
    if not node.handshake:
        return "-" if node.is_standalone else Styled("none", "red")
    if node.handshake_age_s is None:
        return Styled(node.handshake, "yellow")
    text = f"{node.handshake}, {node.handshake_age_s} s ago"
    return Styled(text, "yellow" if node.handshake_age_s > LATE_S else "")


def cards(views: Iterable[CardView], is_roomy: bool) -> Table:
    """The table of cards."""
    rows: list[tuple[Cell, ...]] = [
        (
            card.node,
            str(card.index),
            model(card, is_roomy),
            short_uuid(card.uuid, is_roomy),
            Styled("ok", "green") if card.is_healthy else Styled("UNHEALTHY", "red"),
            f"{card.slots_used}/{card.slots}",
            used(card.memory_used_mib, card.memory_mib, is_roomy),
            used(card.cores_used, card.cores, is_roomy),
            "-" if card.numa is None else str(card.numa),
            card.mode or "-",
            _why(card),
        )
        for card in views
    ]
    return Table(
        "cards",
        heads(
            "node | card # | model !2 | uuid !3 | health | slots # | memory MiB | cores | "
            "numa #!4 | mode !5 | why ..."
        ),
        rows,
    )


def _why(card: CardView) -> Cell:
    if card.is_healthy:
        return Styled(card.why, "yellow")
    return Styled(card.why or "its node does not say why", "red")


def model(card: CardView, is_roomy: bool) -> str:
    """The model, without the vendor's prefix where there is little room."""
    shown = card.model or card.vendor
    if is_roomy:
        return shown
    return shown.removeprefix(f"{card.vendor}-").removeprefix(f"{card.vendor} ")


def short_uuid(uuid: str, is_roomy: bool) -> str:
    """The UUID, or enough of it to distinguish cards; -o json has it in full."""
    found = None if is_roomy else _UUID.match(uuid)
    return f"{found[1]}…" if found else uuid


def used(amount: int, total: int, has_bar: bool) -> Cell:
    """`███░░░░░░░ 3/10`; red when more is granted than the card has."""
    if total <= 0:
        return "-" if not amount else Styled(f"{amount}/0", "red")
    shown = bar(amount, total) + " " if has_bar else ""
    return Styled(f"{shown}{amount}/{total}", "red" if amount > total else "")


def bar(amount: int, total: int) -> str:
    """`███░░░░░░░`: something is never shown as nothing."""
    cells = max(min(BAR_CELLS, -(-amount * BAR_CELLS // total)), 0)
    return "█" * cells + "░" * (BAR_CELLS - cells)


def holders(views: Iterable[HolderView], is_roomy: bool) -> Table:
    """The table of slices and their holders."""
    rows = [
        (
            holder.namespace,
            holder.pod,
            holder.container,
            holder.node,
            *_slice(holder, is_roomy),
            holder.phase if holder.is_served else Styled(f"{holder.phase}, to be served", "yellow"),
            holder.limiter or "-",
        )
        for holder in views
    ]
    return Table(
        "who holds what",
        heads(
            "namespace | pod ~ | container !3 | node ~!1 | card # | uuid !4 | memory MiB # | "
            "cores # | state !2 | limiter !5"
        ),
        rows,
    )


def _slice(holder: HolderView, is_roomy: bool) -> tuple[Cell, ...]:
    """Card, UUID, memory and cores; of fixed shares only kubelet and the node know them."""
    if holder.shares:
        return ("-", holder.shares, "-", "-") if is_roomy else ("-", "", holder.shares, "-")
    index = Styled("?", "red") if holder.index is None else str(holder.index)
    uuid = short_uuid(holder.uuid, is_roomy)
    return (index, uuid, str(holder.memory_mib), str(holder.cores))


def waiting(views: Iterable[WaitingView]) -> Table:
    """The table of pods that wait, and why."""
    rows = [
        (
            f"{pod.namespace}/{pod.pod}",
            pod.asks,
            "?" if pod.waits_s is None else span(pod.waits_s),
            f"{pod.why} ({pod.reserved_on})" if pod.reserved_on else Styled(pod.why, "yellow"),
        )
        for pod in views
    ]
    return Table("who waits", heads("pod | asks | since | why ..."), rows)


def span(seconds: int) -> str:
    """`45 s`, `3 min`, `2 h 5 min` or `4 d 2 h`: two units are enough."""
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if not minutes:
        return f"{seconds} s"
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if not days else f"{days} d {hours % 24} h"


def totals(totals: TotalsView) -> str:
    """All cards in a sentence."""
    facts = [f"{count(totals.cards, 'card')} of {count(totals.nodes, 'node')} offered"]
    if totals.slots:
        facts.append(f"{totals.slots_free} of {totals.slots} slots free")
        facts.append(f"{totals.memory_free_mib} of {totals.memory_mib} MiB free")
    if totals.largest_index is not None:
        card = f"card {totals.largest_index} of {totals.largest_node}"
        facts.append(f"largest slice {totals.largest_mib} MiB ({card})")
    facts += [f"{free} {cores} free" for cores, free in totals.cores_free.items() if free]
    return "total: " + ", ".join(facts)


def problems(found: Iterable[Problem]) -> Table:
    """The table of problems."""
    rows = [(Styled(problem.where, "red"), problem.why) for problem in found]
    return Table("broken", heads("where | why ..."), rows)
