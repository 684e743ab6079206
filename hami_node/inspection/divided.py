"""The divided cards of nodes, as their daemons show them to people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from hami_node.errors import WireError
from hami_node.inspection.views import DividedCardView, FreeKindView, PartView, Problem
from hami_node.model import Node, Pod
from hami_node.vendors import divided
from hami_node.vendors.protocol import VendorProtocol


def divided_on(
    nodes: Iterable[Node], pods: Iterable[Pod], vendors: Sequence[VendorProtocol]
) -> tuple[tuple[DividedCardView, ...], tuple[PartView, ...], tuple[Problem, ...]]:
    """Cards, their parts, and what can't be read.

    Nodes name pods by their uid, which `pods` turns into names.
    """
    keys = {pod.uid: pod.key for pod in pods}
    cards: list[DividedCardView] = []
    parts: list[PartView] = []
    problems: list[Problem] = []
    for node in sorted(nodes, key=lambda node: node.name):
        for vendor in vendors:
            try:
                found = vendor.divided_on(node)
            except WireError as e:
                problems.append(Problem(where=f"node {node.name}", why=str(e)))
                continue
            cards += [_card_view(node, card, found.hands_off) for card in found.cards]
            parts += [part for card in found.cards for part in _part_views(node, card, keys)]
    return tuple(cards), tuple(parts), tuple(problems)


def _card_view(node: Node, card: divided.DividedCard, hands_off: str) -> DividedCardView:
    return DividedCardView(
        node=node.name,
        index=card.index,
        uuid=card.uuid,
        mode=card.mode,
        pending=card.pending,
        kinds=tuple(
            FreeKindView(name=kind.name, memory_mib=kind.memory_mib, free=card.free_starts(kind))
            for kind in card.kinds
        ),
        hands_off=hands_off,
        problem=card.problem,
    )


def _part_views(
    node: Node, card: divided.DividedCard, keys: Mapping[str, str]
) -> Iterator[PartView]:
    for part in card.parts:
        pod = keys.get(part.pod_uid, f"pod {part.pod_uid}")
        yield PartView(
            node=node.name,
            index=card.index,
            kind=part.kind,
            start=part.start,
            size=part.size,
            numbers=part.numbers,
            uuid=part.uuid,
            state=part.state.value,
            holder=f"{pod}/{part.container}" if part.pod_uid else "",
            why=part.why,
        )
