"""A node's own page: its cards with all their slices, and what is wrong with it."""

from __future__ import annotations

from typing import Any

from hami_node.errors import NotFound
from hami_node.inspection.views import ClusterView, NodeView
from hami_node.model import Node
from hami_node.text import cut
from hami_node.view.live_picture import LivePicture
from hami_node.view.rows import MAX_TEXT, card_json, holder_json, is_late, reported_at

MAX_HOLDERS = 2000

Json = dict[str, Any]


def node_page(picture: LivePicture, name: str, now_s: float) -> Json:
    """Everything about a node.

    Raises:
        NotFound: there is no such node.
    """
    with picture.lock:
        node, view = picture.node(name), picture.view_of(name)
        if node is None or view is None:
            raise NotFound(f"node {name!r} does not exist, or not any more", 404)
        with picture.picture() as seen:
            why_not = "" if seen.cards_of(name) else seen.why_not_offered(name)
            slots = sum(card.device.slots for card in seen.cards_of(name).values())
    shown = view.nodes[0] if view.nodes else None
    page: Json = {
        "name": name,
        "ready": node.is_ready,
        "cordoned": node.is_unschedulable,
        "kubelet": cut(node.kubelet_version, MAX_TEXT),
        "engine": cut(node.engine_version, MAX_TEXT),
        "why": cut(why_not, MAX_TEXT),
        "offered": slots,
        **_reported(node, shown, picture, now_s),
        "cards": [card_json(card, ()) for card in view.cards],
        "holders": [holder_json(holder) for holder in view.holders[:MAX_HOLDERS]],
        "hidden": max(len(view.holders) - MAX_HOLDERS, 0),
        "problems": _problems(view),
    }
    return page


def _reported(node: Node, shown: NodeView | None, picture: LivePicture, now_s: float) -> Json:
    if shown is None:
        return {"handshake": "", "reported": None, "late": False}
    reported_s = reported_at(node, picture.basis.vendors)
    return {
        "handshake": shown.handshake,
        "reported": reported_s,
        "late": is_late(shown.handshake, reported_s, now_s),
        "lock": cut(shown.lock, MAX_TEXT),
        "allocatable": cut(shown.allocatable, MAX_TEXT),
        "identity": cut(shown.identity, MAX_TEXT),
        "limiter": cut(shown.limiter, MAX_TEXT),
        "handover": cut(shown.hand_over, MAX_TEXT),
        "simulated": shown.is_simulated,
        "alone": shown.is_standalone,
    }


def _problems(view: ClusterView) -> list[Json]:
    return [
        {"where": cut(problem.where, MAX_TEXT), "why": cut(problem.why, 2 * MAX_TEXT)}
        for problem in view.problems
    ]
