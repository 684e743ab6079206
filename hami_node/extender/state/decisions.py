"""What the state answers: decisions about pods, and nodes as they are at one moment."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from hami_node.engine.fleet.fleet import Fleet, Placed
from hami_node.engine.place import NodeOffer
from hami_node.engine.quota import Quota
from hami_node.model import Device, Node, Pod, Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """A decision: node and cards, already charged.

    Attributes:
        token: distinguishes this reservation from later ones of the same pod.
        placed: node and grants.
        devices: the chosen node's cards.
    """

    token: int
    placed: Placed
    devices: Mapping[Uuid, Device]


@dataclass(frozen=True, slots=True)
class Busy:
    """Nothing is decided now; the call may be repeated. `why` is for messages.

    `is_unfinished`: there are more nodes than could be looked at; the next call goes on there.
    """

    why: str
    is_unfinished: bool = False


def unfinished(pod: Pod) -> Busy:
    """The time of a decision was up."""
    return Busy(
        f"pod {pod.key} asks for cards in a way that takes long to look for on so many nodes: "
        "the next attempt goes on where this one was",
        is_unfinished=True,
    )


@dataclass(frozen=True, slots=True)
class NoRoom:
    """A running pod can't be resized as it asks; `why` is for people."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a decision about a pod would look at.

    Attributes:
        uids: of the nodes that are known, by name.
        offers: their cards with what other pods hold; a node that offers none is left out.
        quota: of the pod's namespace, without what the pod holds; None without one.
    """

    uids: Mapping[str, str]
    offers: Mapping[str, NodeOffer]
    quota: Quota | None


def snapshot_of(
    fleet: Fleet, nodes: Mapping[str, Node], pod: Pod, names: Collection[str]
) -> Snapshot:
    """Take it. The cards of a node are replaced, not changed, so that nothing is copied."""
    offers = {
        name: state.offer()
        for name in names
        if (state := fleet.nodes.get(name)) is not None and state.is_registered
    }
    own = fleet.node_of(pod.uid)
    if own in offers:
        offers[own] = replace(offers[own], cards=fleet.nodes[own].usage.without(pod.uid))
    return Snapshot(
        uids={name: nodes[name].uid for name in names if name in nodes},
        offers=offers,
        quota=fleet.quota_without(pod.namespace, (pod.uid,)),
    )
