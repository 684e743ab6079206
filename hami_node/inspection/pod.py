"""A pod explained node by node: where it would fit now, and why not on the others. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from hami_node.inspection.cluster import inspect, shown_cores
from hami_node.inspection.hints import hints_of
from hami_node.inspection.picture import Basis, Listed, Picture, is_expired, picture_of
from hami_node.inspection.reasons import Explained
from hami_node.inspection.story import EventView
from hami_node.inspection.views import HolderView, Problem
from hami_node.inspection.waiting import (
    age_s,
    asks_in_words,
    explanation_of,
    other_scheduler,
)
from hami_node.model import Pod, Uuid
from hami_node.vendors.holding import UNBOUND_S, holding_of
from hami_node.vendors.protocol import VendorProtocol
from hami_node.vendors.request import request_of
from hami_node.vendors.resizing import resize_in_words

BASIS: Final = "as of now, computed from the objects of nodes and pods"
_USABLE: Final = (is_healthy, is_not_cordoned, has_type, has_uuid, has_slot)


class PodState(StrEnum):
    """How far a pod has come."""

    OVER = "over"
    ASKS_NOTHING = "asks for no card"
    UNREADABLE = "can't be served"
    WAITING = "waiting"
    RESERVED = "reserved, not bound"
    BOUND = "bound"


class Verdict(StrEnum):
    """Whether a pod fits on a node, in the order in which verdicts are shown."""

    FITS = "fits"
    NO_ROOM = "no room now"
    NEVER = "does not suit"
    NOT_OFFERED = "not offered"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRoom:
    """The card of a node with the most room. Cores in percent, or their number.

    `is_usable` is False if every card is unhealthy, cordoned, full or not the requested card.
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
    """The verdict on a node; `why` is "" where the pod fits on a ready node."""

    node: str
    verdict: Verdict
    why: str
    best: CardRoom | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """Everything about a pod.

    Attributes:
        asks: what it requests, in words; "" when that is nothing or can't be read.
        waits_s: since its creation, while it is not bound.
        held: what it holds.
        nodes: each node with cards, best first; only for a pod that is not bound.
        other_nodes: number of nodes without cards.
        summary: a single sentence.
        cures: hints on what would help, as sentences.
        problems: its annotations that are invalid.
        resize: how far its last request for other amounts is, as a sentence; "" without one.
        scheduler_said: why kube-scheduler has not bound it, in its own words; "" if it has.
        events: what was said about it, oldest first.
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
    resize: str = ""
    scheduler_said: str = ""
    events: tuple[EventView, ...] = ()
    basis: str = BASIS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    """The explanation of a pod, without its identity."""

    state: PodState
    summary: str
    asks: str = ""
    node: str = ""
    nodes: tuple[NodeVerdict, ...] = ()
    other_nodes: int = 0
    hints: tuple[str, ...] = ()


def explain_pod(
    listed: Listed,
    pod: Pod,
    basis: Basis,
    now_s: float,
    scheduler_name: str,
    picture: Picture | None = None,
) -> PodView:
    """Explain a pod's state and, while it is not bound, the verdict on every node.

    Args:
        listed: nodes, pods and quotas; with a picture, the pod's own node is enough.
        pod: the pod to explain.
        basis: the vendors and rules.
        now_s: Unix seconds, for ages.
        scheduler_name: the kube-scheduler profile that calls the extender.
        picture: all the same without the pod, where somebody keeps it; None makes it anew.
    """
    there = pod.node_name
    beside = [item for item in listed.pods if there and item.node_name == there]
    pods = (pod, *(item for item in beside if item.key != pod.key))
    cluster = inspect(listed.nodes, pods, basis.vendors, now_s)
    own = (pod.namespace, pod.name)
    held = tuple(holder for holder in cluster.holders if (holder.namespace, holder.pod) == own)

    def without_pod() -> Picture:
        return picture or picture_of(listed, basis, now_s, without=pod.key)

    found = _finding(without_pod, pod, basis, now_s, held)
    hints = found.hints
    if found.state is PodState.WAITING:
        hints = tuple(filter(None, (other_scheduler(pod, scheduler_name), *hints)))
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
        cures=hints,
        problems=tuple(item for item in cluster.problems if item.where == f"pod {pod.key}"),
        resize=resize_in_words(pod),
    )


def _finding(
    picture: Callable[[], Picture],
    pod: Pod,
    basis: Basis,
    now_s: float,
    held: tuple[HolderView, ...],
) -> _Finding:
    if pod.is_over:
        return _Finding(
            state=PodState.OVER, summary=f"it has ended ({pod.phase}): it holds nothing"
        )
    try:
        request = request_of(pod, basis.vendors)
    except WireError as e:
        why = f"it can't be served: {e}"
        hint = "delete the pod and recreate it with a correct value: resources can't be changed"
        return _Finding(state=PodState.UNREADABLE, summary=why, node=pod.node_name, hints=(hint,))
    if request.is_empty:
        return _Finding(
            state=PodState.ASKS_NOTHING,
            summary="it requests no card: any node fits",
            node=pod.node_name,
        )
    if pod.node_name:
        return _bound(pod, request, basis.vendors, held)
    return _unbound(picture(), pod, request, basis, now_s)


def _bound(
    pod: Pod,
    request: PodRequest,
    vendors: Sequence[VendorProtocol],
    held: tuple[HolderView, ...],
) -> _Finding:
    late = sorted({holder.container for holder in held if not holder.is_served})
    if not held:
        summary = "it holds no card"
        wanted = {ask.vendor for container in request.containers for ask in container.asks}
        problems = [vendor.held_by(pod).problem for vendor in vendors if vendor.cards in wanted]
        summary = ": ".join(filter(None, (summary, "; ".join(filter(None, problems)))))
    elif late:
        summary = f"bound; kubelet has not yet requested the cards of {', '.join(late)}"
    else:
        summary = "bound, and every container has its cards"
    asks = asks_in_words(request, vendors)
    return _Finding(state=PodState.BOUND, summary=summary, asks=asks, node=pod.node_name)


def _unbound(
    picture: Picture, pod: Pod, request: PodRequest, basis: Basis, now_s: float
) -> _Finding:
    holding = holding_of(pod, basis.vendors)
    found = explanation_of(picture, request)
    nodes = _verdicts(picture, request, found)
    hints: tuple[str, ...] = ()
    state, node, summary = PodState.WAITING, "", found.summary
    if holding is not None and not is_expired(pod, now_s):
        state, node = PodState.RESERVED, holding.node
        summary = f"its cards are reserved on {node}, and it is not yet bound"
    elif not nodes:
        hints = ("check that the daemon runs on the nodes with cards",)
    elif any(answer.verdict is Verdict.FITS for answer in nodes):
        hints = ("kubectl describe pod shows kube-scheduler's reasons other than cards",)
    else:
        hints = hints_of(picture, request, pod.annotations)
    if holding is not None and state is PodState.WAITING:
        summary += (
            f"; it was reserved on {holding.node} and not bound within {UNBOUND_S / 60:.0f} min"
        )
    return _Finding(
        state=state,
        summary=summary,
        asks=asks_in_words(request, basis.vendors),
        node=node,
        nodes=nodes,
        other_nodes=picture.others,
        hints=hints,
    )


def _verdicts(picture: Picture, request: PodRequest, found: Explained) -> tuple[NodeVerdict, ...]:
    asks = [ask for container in request.containers for ask in container.asks]
    first, vendors = asks[0], dict.fromkeys(ask.vendor for ask in asks)
    wishes, compat = request.wishes.of(first.vendor), picture.basis.rules.compat
    verdicts = []
    for name, offer in picture.offers.items():
        # Nodes are compared by their best card for the first ask.
        ctx = context(first, wishes, compat, cordoned=offer.cordoned)
        missing = [offer.missing[vendor] for vendor in vendors if vendor in offer.missing]
        verdict, why = _verdict(name, found)
        if not offer.devices:
            verdict, why = Verdict.NOT_OFFERED, "; ".join(dict.fromkeys(missing)) or offer.why_empty
        elif missing:
            why += f"; not offered: {'; '.join(missing)}"
        if not picture.is_ready(name):
            verdict = Verdict.NOT_OFFERED
            why = "; ".join(filter(None, ("the node is not ready", why)))
        best = _best(picture.cards_of(name), ctx)
        verdicts.append(NodeVerdict(node=name, verdict=verdict, why=why, best=best))
    return tuple(sorted(verdicts, key=_rank))


def _verdict(node: str, found: Explained) -> tuple[Verdict, str]:
    if node in found.failed:
        return Verdict.NO_ROOM, found.failed[node]
    if node in found.unresolvable:
        return Verdict.NEVER, found.unresolvable[node]
    return Verdict.FITS, ""


def _rank(node: NodeVerdict) -> tuple[object, ...]:
    room = (0, 0, 0, 0) if node.best is None else _size(node.best)
    return (list(Verdict).index(node.verdict), *(-amount for amount in room), node.node)


def _size(room: CardRoom) -> tuple[int, int, int, int]:
    return (int(room.is_usable), room.memory_free_mib, room.cores_free, room.slots_free)


def _best(cards: Mapping[Uuid, DeviceUsage], ctx: FitContext) -> CardRoom | None:
    """The card of the ask's vendor with the most room; usable cards first."""
    own = (card for card in cards.values() if card.device.vendor is ctx.ask.vendor)
    rooms = [_room(card, is_usable=first_failing(card, ctx, _USABLE) is None) for card in own]
    return max(rooms, key=lambda room: (*_size(room), -room.index), default=None)


def _room(card: DeviceUsage, *, is_usable: bool) -> CardRoom:
    return CardRoom(
        index=card.device.index,
        uuid=card.device.uuid,
        model=card.device.model,
        slots_free=card.slots_free,
        memory_free_mib=card.memory_free_mib,
        cores_free=shown_cores(card.device.vendor, card.cores_free),
        is_usable=is_usable,
    )
