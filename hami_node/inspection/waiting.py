"""Who waits for cards, since when and why, and what all cards together still have. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from hami_node.engine.place import PodRequest, Refused
from hami_node.errors import WireError
from hami_node.extender.holdings import holding_of
from hami_node.extender.reasons import Explained, explained
from hami_node.extender.rules import request_of
from hami_node.inspection.cluster import TotalsView, WaitingView
from hami_node.inspection.picture import Picture, is_expired
from hami_node.model import Ask, Pod, Vendor
from hami_node.wire.timestamps import parse_time

SHOWN: Final = 3
"""Nodes named in one sentence."""


def waiting_in(
    picture: Picture, pods: Iterable[Pod], now_s: float, scheduler_name: str
) -> tuple[WaitingView, ...]:
    """Pods that want cards and are not bound, the longest waiting first.

    Args:
        picture: nodes, cards and what is taken.
        pods: all pods.
        now_s: Unix seconds, for ages.
        scheduler_name: the kube-scheduler profile that asks the extender.
    """
    reasons: dict[PodRequest, str] = {}
    views = []
    for pod in pods:
        if pod.node_name or pod.is_over or pod.is_being_deleted:
            continue
        try:
            request = request_of(pod, picture.rules)
        except WireError as e:
            views.append(_view(pod, "?", now_s, why=f"it can't be served: {e}"))
            continue
        if request.is_empty:
            continue
        asks, holding = asks_in_words(request), holding_of(pod, picture.rules.names)
        if holding is not None and not is_expired(pod, now_s):
            why = "reserved, and not yet bound"
            views.append(_view(pod, asks, now_s, why=why, node=holding.node))
            continue
        if request not in reasons:
            reasons[request] = said_of(picture, request).summary
        why = "; ".join(filter(None, (other_scheduler(pod, scheduler_name), reasons[request])))
        views.append(_view(pod, asks, now_s, why=why))
    return tuple(sorted(views, key=lambda one: (-(one.waits_s or 0), one.namespace, one.pod)))


def _view(pod: Pod, asks: str, now_s: float, *, why: str, node: str = "") -> WaitingView:
    return WaitingView(
        namespace=pod.namespace,
        pod=pod.name,
        asks=asks,
        waits_s=age_s(pod, now_s),
        reserved_on=node,
        why=why,
    )


def age_s(pod: Pod, now_s: float) -> int | None:
    """Seconds since the pod was created; None when that can't be read."""
    created_s = parse_time(pod.creation_time)
    return None if created_s is None else max(int(now_s - created_s), 0)


def other_scheduler(pod: Pod, scheduler_name: str) -> str:
    """What is said of a pod that names another scheduler than the extender's; "" of others."""
    if pod.scheduler_name in ("", scheduler_name):
        return ""
    return f"its schedulerName is {pod.scheduler_name}, the extender is asked by {scheduler_name}"


def said_of(picture: Picture, request: PodRequest) -> Explained:
    """What the extender would say: of each node that does not fit, and of all in one sentence."""
    if not picture.offers:
        return Explained(failed={}, unresolvable={}, summary="no node has published cards")
    rejections = picture.fleet.explain(request, tuple(picture.offers))
    if isinstance(rejections, Refused):
        why = f"it can't be served: {rejections.why}"
        return Explained(failed={}, unresolvable=dict.fromkeys(picture.offers, why), summary=why)
    said = explained(
        request,
        rejections,
        picture.cards_of,
        lambda nodes: {name: picture.offers[name].largest_mib for name in nodes},
        picture.why_not_offered,
    )
    fitting = [name for name in picture.offers if name not in rejections]
    ready = [name for name in fitting if picture.is_ready(name)]
    if ready:
        return replace(said, summary=_fits_now(ready))
    if fitting:
        summary = f"{said.summary}; its cards are free on {_some(fitting)}, which is not ready"
        return replace(said, summary=summary)
    return said


def _fits_now(nodes: Sequence[str]) -> str:
    """Said of a pod that has room and is not placed."""
    return (
        f"its cards are free on {_some(nodes)}: it is about to be placed, or something else than "
        "cards keeps it"
    )


def _some(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def asks_in_words(request: PodRequest) -> str:
    """`1 x 3000 MiB 30 %`, containers joined with a plus."""
    return " + ".join(_ask(ask) for one in request.containers for ask in one.asks)


def _ask(ask: Ask) -> str:
    if ask.vendor is Vendor.AWS_NEURON:
        cores = "whole" if ask.is_whole_device else f"{ask.cores} cores"
        return f"{ask.count} x Neuron {cores}"
    memory = f"{ask.memory_percent} %" if ask.memory_mib is None else f"{ask.memory_mib} MiB"
    cores = f", {ask.cores} % of cores" if ask.cores else ""
    return f"{ask.count} x {memory}{cores}"


def totals_of(picture: Picture) -> TotalsView:
    """Sum up every card of every node."""
    slots = slots_free = memory = memory_free = cards = open_cards = neuron = 0
    largest: tuple[int, str, int | None] = (0, "", None)
    for name, offer in picture.offers.items():
        for uuid, card in picture.cards_of(name).items():
            device = card.device
            cards += 1
            is_open = device.healthy and not card.contradiction and uuid not in offer.cordoned
            if device.vendor is Vendor.AWS_NEURON:
                neuron += card.cores_free.bit_count() if is_open else 0
                continue
            slots, memory = slots + device.slots, memory + device.memory_mib
            if not is_open or card.slots_free <= 0 or card.memory_free_mib < 0:
                continue
            open_cards += 1
            slots_free, memory_free = (
                slots_free + card.slots_free,
                memory_free + card.memory_free_mib,
            )
            if card.memory_free_mib > largest[0]:
                largest = (card.memory_free_mib, name, device.index)
    return TotalsView(
        nodes=sum(1 for offer in picture.offers.values() if offer.devices),
        cards=cards,
        open_cards=open_cards,
        slots=slots,
        slots_free=slots_free,
        memory_mib=memory,
        memory_free_mib=memory_free,
        largest_mib=largest[0],
        largest_node=largest[1],
        largest_index=largest[2],
        neuron_cores_free=neuron,
    )
