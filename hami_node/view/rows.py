"""A node as a row of the page: small enough to send, with what lists are filtered and sorted by.

What a row says comes from annotations that others may have written: texts are cut here, and the
page shows them as text only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from hami_node.engine.usage import DeviceUsage
from hami_node.errors import WireError
from hami_node.inspection.views import CardView, ClusterView, HolderView, NodeView, Problem
from hami_node.model import Node
from hami_node.text import cut
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire.handshake import LATE_S, HandshakeKind, decode_handshake

MAX_TEXT: Final = 300
"""Characters sent of a text that anybody may have written."""
MAX_SLICES: Final = 24
"""Slices drawn on a card in the list; a node's own page has all."""
MAX_PODS: Final = 200
"""Pods named in a row."""
MAX_CARDS: Final = 64
"""Cards drawn in a row."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What is left of a card that takes another container."""

    memory_mib: int
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node in the list.

    Attributes:
        wire: the row as JSON, as it is sent.
        words: what a search looks into, in lower case.
        namespaces: whose pods hold something.
        problems: what is wrong with the node's published data, closed cards among them.
        sick: number of cards that take nothing because they are broken.
        handshake, reported_s: its kind, and its Unix seconds; None without a readable time.
        rooms: of the cards that are shared by slots and take another container.
        memory_mib, used_mib: of all its cards.
        holders: containers that hold something.
    """

    name: str
    wire: bytes
    words: str
    namespaces: frozenset[str]
    problems: tuple[Problem, ...]
    cards: int
    sick: int
    handshake: str
    reported_s: float | None
    is_ready: bool
    rooms: tuple[Room, ...]
    memory_mib: int
    used_mib: int
    slots: int
    slots_used: int
    holders: int

    def is_late(self, now_s: float) -> bool:
        """True for a node that should have reported since."""
        return is_late(self.handshake, self.reported_s, now_s)


def is_late(handshake: str, reported_s: float | None, now_s: float) -> bool:
    """True for a node that was given up, or whose last report is old."""
    if handshake == HandshakeKind.DELETED:
        return True
    return (
        handshake == HandshakeKind.REPORTED
        and reported_s is not None
        and now_s - reported_s > LATE_S
    )


def row_of(
    node: Node,
    view: ClusterView,
    roomy: Iterable[DeviceUsage],
    vendors: Iterable[VendorProtocol],
) -> NodeRow | None:
    """The row of a node that has, had or should have cards; None for any other.

    Args:
        node: the node.
        view: what it has published and what its pods hold.
        roomy: its cards that take another container.
        vendors: whose handshakes are read.
    """
    if not view.nodes:
        return None
    (shown,) = view.nodes
    problems = tuple(Problem(where=it.where, why=cut(it.why, MAX_TEXT)) for it in view.problems)
    return NodeRow(
        name=node.name,
        wire=msgspec.json.encode(_row_json(node, view, shown, len(problems))),
        words=_words(view),
        namespaces=frozenset(holder.namespace for holder in view.holders),
        problems=problems,
        cards=len(view.cards),
        sick=sum(1 for card in view.cards if not card.is_healthy),
        handshake=shown.handshake,
        reported_s=reported_at(node, vendors),
        is_ready=shown.is_ready,
        rooms=tuple(
            Room(memory_mib=card.memory_free_mib, slots=card.slots_free)
            for card in (roomy if shown.is_ready else ())
        ),
        memory_mib=sum(card.memory_mib for card in view.cards),
        used_mib=sum(card.memory_used_mib for card in view.cards),
        slots=sum(card.slots for card in view.cards),
        slots_used=sum(card.slots_used for card in view.cards),
        holders=len(view.holders),
    )


def reported_at(node: Node, vendors: Iterable[VendorProtocol]) -> float | None:
    """Unix seconds of the first handshake that can be read; None without one."""
    for vendor in vendors:
        key = vendor.keys.handshake
        if text := node.annotations.get(key):
            try:
                return decode_handshake(text, key).time_s
            except WireError:
                continue
    return None


def _row_json(node: Node, view: ClusterView, shown: NodeView, problems: int) -> Json:
    """Without the handshake's time: a row would change with each report."""
    pods: dict[str, int] = {}
    slices: dict[str, list[list[int]]] = {}
    for holder in view.holders:
        if holder.shares or holder.index is None:
            continue
        key = f"{holder.namespace}/{holder.pod}"
        if key not in pods and len(pods) < MAX_PODS:
            pods[key] = len(pods)
        mine = slices.setdefault(_card_of(holder.uuid), [])
        if len(mine) < MAX_SLICES and key in pods:
            mine.append([pods[key], holder.memory_mib, holder.cores])
    return {
        "name": shown.name,
        "ready": shown.is_ready,
        "cordoned": node.is_unschedulable,
        "simulated": shown.is_simulated,
        "alone": shown.is_standalone,
        "lock": shown.lock,
        "handshake": shown.handshake,
        "problems": problems,
        "pods": list(pods),
        "cards": [card_json(card, slices.get(card.uuid, ())) for card in view.cards[:MAX_CARDS]],
    }


def card_json(card: CardView, slices: Sequence[Sequence[int]]) -> Json:
    """A card with its slices: pod, MiB, cores."""
    return {
        "index": card.index,
        "uuid": cut(card.uuid, MAX_TEXT),
        "model": cut(card.model, MAX_TEXT),
        "mode": cut(card.mode, MAX_TEXT),
        "numa": card.numa,
        "ok": card.is_healthy,
        "why": cut(card.why, MAX_TEXT),
        "slots": [card.slots_used, card.slots],
        "memory": [card.memory_used_mib, card.memory_mib],
        "cores": [card.cores_used, card.cores],
        "slices": slices,
    }


def holder_json(holder: HolderView) -> Json:
    """A container's slice."""
    return {
        "namespace": holder.namespace,
        "pod": holder.pod,
        "container": holder.container,
        "node": holder.node,
        "phase": cut(holder.phase, MAX_TEXT),
        "served": holder.is_served,
        "limiter": cut(holder.limiter, MAX_TEXT),
        "index": holder.index,
        "uuid": cut(holder.uuid, MAX_TEXT),
        "memory": holder.memory_mib,
        "cores": holder.cores,
        "shares": holder.shares,
    }


def _card_of(uuid: str) -> str:
    """The card's UUID without the part of it that a grant names."""
    return uuid.partition("[")[0]


def _words(view: ClusterView) -> str:
    found = [node.name for node in view.nodes]
    found += [f"{cut(card.model, MAX_TEXT)}\n{cut(card.uuid, MAX_TEXT)}" for card in view.cards]
    found += [f"{holder.namespace}/{holder.pod}" for holder in view.holders]
    return "\n".join(dict.fromkeys(found)).lower()
