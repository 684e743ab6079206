"""One pod explained node by node: where it would fit now, and what keeps it elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from hami_node.engine.filters import (
    FitContext,
    context,
    first_failing,
    has_slot,
    has_type,
    has_uuid,
    is_healthy,
    is_not_cordoned,
)
from hami_node.engine.place import PodRequest
from hami_node.engine.usage import DeviceUsage
from hami_node.errors import WireError
from hami_node.extender.holdings import holding_of
from hami_node.extender.reasons import Explained
from hami_node.extender.rules import ExtenderRules, request_of
from hami_node.extender.state import UNBOUND_S
from hami_node.inspection.cluster import HolderView, Problem, inspect
from hami_node.inspection.cures import cures_of
from hami_node.inspection.picture import Listed, Picture, is_expired, picture_of
from hami_node.inspection.waiting import (
    age_s,
    asks_in_words,
    other_scheduler,
    said_of,
)
from hami_node.model import Pod, Uuid, Vendor
from hami_node.wire.reservation import read_reservation

BASIS: Final = "as of now, computed from what nodes and pods say"
_SUITS: Final = (is_healthy, is_not_cordoned, has_type, has_uuid, has_slot)


class PodState(StrEnum):
    """How far a pod has come."""

    OVER = "over"
    ASKS_NOTHING = "asks for no card"
    UNREADABLE = "can't be served"
    WAITING = "waiting"
    RESERVED = "reserved, not bound"
    BOUND = "bound"


class Verdict(StrEnum):
    """What a node says to a pod, in the order in which they are shown."""

    FITS = "fits"
    NO_ROOM = "no room now"
    NEVER = "does not suit"
    NOT_OFFERED = "not offered"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRoom:
    """The card of a node that comes nearest. Cores in percent (Neuron: number of cores).

    `is_usable` is False where every card is sick, cordoned, full or not the one that is wanted.
    """

    index: int
    uuid: str
    model: str
    slots_free: int
    memory_free_mib: int
    cores_free: int
    is_usable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVerdict:
    """One node's answer; `why` is "" where the pod fits on a ready node."""

    node: str
    verdict: Verdict
    why: str
    best: CardRoom | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """Everything about one pod.

    Attributes:
        asks: what it asks for, in words; "" when that is nothing or can't be read.
        waits_s: since its creation, while it is not bound.
        held: what it holds.
        nodes: each node with cards, nearest first; only for a pod that is not bound.
        other_nodes: number of nodes without cards.
        summary: one sentence.
        cures: what would help, as sentences.
        problems: what of it is broken.
        basis: what all this is computed from.
    """

    namespace: str
    pod: str
    phase: str
    state: PodState
    node: str
    asks: str
    waits_s: int | None
    held: tuple[HolderView, ...]
    nodes: tuple[NodeVerdict, ...]
    other_nodes: int
    summary: str
    cures: tuple[str, ...]
    problems: tuple[Problem, ...] = ()
    basis: str = BASIS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    """What is said about a pod beside its identity."""

    state: PodState
    summary: str
    asks: str = ""
    node: str = ""
    nodes: tuple[NodeVerdict, ...] = ()
    other_nodes: int = 0
    cures: tuple[str, ...] = ()


def explain_pod(
    listed: Listed, pod: Pod, rules: ExtenderRules, now_s: float, scheduler_name: str
) -> PodView:
    """Say where a pod stands and, while it is not bound, what every node says to it.

    Args:
        listed: nodes, pods and quotas.
        pod: one of them.
        rules: how decisions are made.
        now_s: Unix seconds, for ages.
        scheduler_name: the kube-scheduler profile that asks the extender.
    """
    cluster = inspect(listed.nodes, (pod,), rules.names.gpu, now_s)
    held = tuple(one for one in cluster.holders if one.pod == pod.name)
    found = _finding(listed, pod, rules, now_s, held)
    cures = found.cures
    if found.state is PodState.WAITING:
        cures = tuple(filter(None, (other_scheduler(pod, scheduler_name), *cures)))
    return PodView(
        namespace=pod.namespace,
        pod=pod.name,
        phase=pod.phase,
        state=found.state,
        node=found.node,
        asks=found.asks,
        waits_s=None if pod.node_name or pod.is_over else age_s(pod, now_s),
        held=held,
        nodes=found.nodes,
        other_nodes=found.other_nodes,
        summary=found.summary,
        cures=cures,
        problems=tuple(one for one in cluster.problems if one.where == f"pod {pod.key}"),
    )


def _finding(
    listed: Listed, pod: Pod, rules: ExtenderRules, now_s: float, held: tuple[HolderView, ...]
) -> _Finding:
    if pod.is_over:
        return _Finding(
            state=PodState.OVER, summary=f"it has ended ({pod.phase}): it holds nothing"
        )
    try:
        request = request_of(pod, rules)
    except WireError as e:
        why = f"it can't be served: {e}"
        cure = "correct that value; a pod's resources can't be changed, so create the pod again"
        return _Finding(state=PodState.UNREADABLE, summary=why, node=pod.node_name, cures=(cure,))
    if request.is_empty:
        return _Finding(
            state=PodState.ASKS_NOTHING,
            summary="it asks for no card: any node will do",
            node=pod.node_name,
        )
    if pod.node_name:
        return _bound(pod, request, rules, held)
    return _unbound(listed, pod, request, rules, now_s)


def _bound(
    pod: Pod, request: PodRequest, rules: ExtenderRules, held: tuple[HolderView, ...]
) -> _Finding:
    late = sorted({one.container for one in held if not one.is_served})
    if not held:
        summary = "it holds no card"
        if any(ask.vendor is Vendor.NVIDIA for one in request.containers for ask in one.asks):
            summary += f": {read_reservation(pod, rules.names.gpu).problem}"
    elif late:
        summary = f"bound; kubelet has not yet asked for the cards of {', '.join(late)}"
    else:
        summary = "bound, and every container was given its cards"
    return _Finding(
        state=PodState.BOUND, summary=summary, asks=asks_in_words(request), node=pod.node_name
    )


def _unbound(
    listed: Listed, pod: Pod, request: PodRequest, rules: ExtenderRules, now_s: float
) -> _Finding:
    picture = picture_of(listed, rules, now_s, without=pod.key)
    holding = holding_of(pod, rules.names)
    said = said_of(picture, request)
    nodes = _verdicts(picture, request, said)
    cures: tuple[str, ...] = ()
    state, node, summary = PodState.WAITING, "", said.summary
    if holding is not None and not is_expired(pod, now_s):
        state, node = PodState.RESERVED, holding.node
        summary = f"its cards are reserved on {node}, and it is not yet bound"
    elif not nodes:
        cures = ("look whether the daemon runs on the nodes with cards",)
    elif any(one.verdict is Verdict.FITS for one in nodes):
        cures = ("kubectl describe pod shows what kube-scheduler says beyond cards",)
    else:
        cures = cures_of(picture, request)
    if holding is not None and state is PodState.WAITING:
        summary += f"; it was reserved on {holding.node} and not bound within {UNBOUND_S:.0f} s"
    return _Finding(
        state=state,
        summary=summary,
        asks=asks_in_words(request),
        node=node,
        nodes=nodes,
        other_nodes=picture.others,
        cures=cures,
    )


def _verdicts(picture: Picture, request: PodRequest, said: Explained) -> tuple[NodeVerdict, ...]:
    asks = [ask for one in request.containers for ask in one.asks]
    vendors = sorted({ask.vendor for ask in asks})
    verdicts = []
    for name, offer in picture.offers.items():
        # Nodes are compared by one card for the first ask.
        ctx = context(asks[0], request.wishes, picture.rules.engine.compat, cordoned=offer.cordoned)
        missing = [offer.missing[vendor] for vendor in vendors if vendor in offer.missing]
        verdict, why = _verdict(name, said)
        if not offer.devices:
            verdict, why = Verdict.NOT_OFFERED, "; ".join(dict.fromkeys(missing)) or offer.why_empty
        elif missing:
            why += f"; not offered: {'; '.join(missing)}"
        if not picture.is_ready(name):
            verdict = Verdict.NOT_OFFERED
            why = "; ".join(filter(None, ("the node is not ready", why)))
        best = _best(picture.cards_of(name), ctx)
        verdicts.append(NodeVerdict(node=name, verdict=verdict, why=why, best=best))
    return tuple(sorted(verdicts, key=_nearness))


def _verdict(node: str, said: Explained) -> tuple[Verdict, str]:
    if node in said.failed:
        return Verdict.NO_ROOM, said.failed[node]
    if node in said.unresolvable:
        return Verdict.NEVER, said.unresolvable[node]
    return Verdict.FITS, ""


def _nearness(one: NodeVerdict) -> tuple[object, ...]:
    room = (0, 0, 0, 0) if one.best is None else _size(one.best)
    return (list(Verdict).index(one.verdict), *(-amount for amount in room), one.node)


def _size(room: CardRoom) -> tuple[int, int, int, int]:
    return (int(room.is_usable), room.memory_free_mib, room.cores_free, room.slots_free)


def _best(cards: Mapping[Uuid, DeviceUsage], ctx: FitContext) -> CardRoom | None:
    """The card of the ask's vendor with most room; usable ones first."""
    own = (card for card in cards.values() if card.device.vendor is ctx.ask.vendor)
    rooms = [_room(card, is_usable=first_failing(card, ctx, _SUITS) is None) for card in own]
    return max(rooms, key=lambda one: (*_size(one), -one.index), default=None)


def _room(card: DeviceUsage, *, is_usable: bool) -> CardRoom:
    is_neuron = card.device.vendor is Vendor.AWS_NEURON
    return CardRoom(
        index=card.device.index,
        uuid=card.device.uuid,
        model=card.device.model,
        slots_free=card.slots_free,
        memory_free_mib=card.memory_free_mib,
        cores_free=card.cores_free.bit_count() if is_neuron else card.cores_free,
        is_usable=is_usable,
    )
