"""What if: answers to callers that send whole nodes, autoscalers among them. Nothing is reserved.

A node that is known counts with what pods really hold there. Any other is one that might be made:
it counts as the caller describes it, empty, and with cards that nobody can name yet.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hami_node.engine.place import NodeOffer, PodRequest, Refused, what_if
from hami_node.engine.usage import NodeUsage
from hami_node.extender.http.messages import FilterAnswer, FilterArgs
from hami_node.extender.rules import ExtenderRules
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.extender.state.decisions import Snapshot
from hami_node.model import NO_SCORES, Node, Pod, Uuid
from hami_node.vendors.offer import offer_of

NOTHING: Final = NodeOffer(cards={})
"""A node without cards, or whose cards are not offered."""
AT_ONCE: Final = 200
"""Nodes looked at under the state's lock."""


def simulated(state: ClusterState, args: FilterArgs, request: PodRequest) -> FilterAnswer:
    """Which of the given nodes the pod would go to, and why it does not fit on others.

    The answer has one node, as that of a real call. Source: HAMi 2.10 scheduler.go:1156-1199.
    """
    given = {item.node.name: item for item in args.nodes or ()}
    seen = _seen(state, args.pod, tuple(given))
    known = {name for name, item in given.items() if _is_known(item.node, seen)}
    closed = {name: why for name, why in state.backed_off().items() if name in known}
    offers = {
        name: seen.offers.get(name, NOTHING) if name in known else _template(item.node, state.rules)
        for name, item in given.items()
        if name not in closed
    }
    found = what_if(request, offers, state.rules.engine, seen.quota)
    if isinstance(found, Refused):
        return FilterAnswer(nodes=(), unresolvable=dict.fromkeys(given, found.why))
    rejections = {**found.rejections, **closed}
    return FilterAnswer(
        nodes=(given[found.node].raw,) if found.node else (),
        failed={name: item.text() for name, item in rejections.items() if not item.never},
        unresolvable={
            name: f"{item.text()}: {item.never}" for name, item in rejections.items() if item.never
        },
    )


def _seen(state: ClusterState, pod: Pod, names: tuple[str, ...]) -> Snapshot:
    """Some nodes at a time: real decisions wait for no more."""
    seen = state.snapshot(pod, names[:AT_ONCE])
    uids, offers = dict(seen.uids), dict(seen.offers)
    for begin in range(AT_ONCE, len(names), AT_ONCE):
        more = state.snapshot(pod, names[begin : begin + AT_ONCE])
        uids |= more.uids
        offers |= more.offers
    return replace(seen, uids=uids, offers=offers)


def _is_known(node: Node, seen: Snapshot) -> bool:
    """True for a node of the cluster; one of its name with another uid is another node."""
    uid = seen.uids.get(node.name)
    return uid is not None and node.uid in ("", uid)


def _template(node: Node, rules: ExtenderRules) -> NodeOffer:
    """What a node that does not exist would offer, were it as it is described.

    A template is mostly made from a node that exists: the UUIDs of that node's cards are not its
    own, so nobody can ask for them, and a cordon of one of them says nothing.
    """
    node = replace(node, is_unschedulable=False)  # the caller has judged that
    offer = offer_of(node, rules.vendors, node_labels=rules.node_labels)
    uuids = {card.uuid: Uuid(f"{node.name}/{at}") for at, card in enumerate(offer.devices)}
    devices = tuple(replace(card, uuid=uuids[card.uuid]) for card in offer.devices)
    scores = {
        uuids[first]: {uuids[other]: score for other, score in to.items() if other in uuids}
        for first, to in offer.pair_scores.items()
        if first in uuids
    }
    return NodeOffer(cards=NodeUsage(devices).cards, pair_scores=scores or NO_SCORES)
