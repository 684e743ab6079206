"""The pods that wait for cards, since when and why, and what is free on all cards. Pure."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from hami_node.engine.place import PodRequest, Refused
from hami_node.engine.usage import DeviceUsage
from hami_node.errors import WireError
from hami_node.inspection.picture import Picture, is_expired
from hami_node.inspection.reasons import Explained, explained, lasting_of
from hami_node.inspection.views import TotalsView, WaitingView
from hami_node.model import Pod, Vendor
from hami_node.text import some
from hami_node.vendors.holding import holding_of
from hami_node.vendors.protocol import VendorProtocol
from hami_node.vendors.request import request_of
from hami_node.wire.times import parse_time

SHOWN: Final = 3
"""Nodes named in a sentence."""


def waiting_in(
    picture: Picture,
    pods: Iterable[Pod],
    now_s: float,
    scheduler_name: str,
    reasons: MutableMapping[PodRequest, str] | None = None,
) -> tuple[WaitingView, ...]:
    """Pods that request cards and are not bound, those that wait longest first.

    Args:
        picture: nodes, cards and their usage.
        pods: all pods.
        now_s: Unix seconds, for ages.
        scheduler_name: the kube-scheduler profile that calls the extender.
        reasons: what is known already of equal requests; new ones are added.
    """
    vendors = picture.basis.vendors
    reasons = {} if reasons is None else reasons
    views = []
    for pod in pods:
        if pod.node_name or pod.is_over or pod.is_being_deleted:
            continue
        try:
            request = request_of(pod, vendors)
        except WireError as e:
            views.append(_view(pod, "?", now_s, why=f"it can't be served: {e}"))
            continue
        if request.is_empty:
            continue
        asks, holding = asks_in_words(request, vendors), holding_of(pod, vendors)
        if holding is not None and not is_expired(pod, now_s):
            why = "reserved, and not yet bound"
            views.append(_view(pod, asks, now_s, why=why, node=holding.node))
            continue
        if request not in reasons:
            reasons[request] = explanation_of(picture, request).summary
        why = "; ".join(filter(None, (other_scheduler(pod, scheduler_name), reasons[request])))
        views.append(_view(pod, asks, now_s, why=why))
    return tuple(sorted(views, key=lambda view: (-(view.waits_s or 0), view.namespace, view.pod)))


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
    """The reason for a pod that names another scheduler than the extender's; "" for others."""
    if pod.scheduler_name in ("", scheduler_name):
        return ""
    return f"its schedulerName is {pod.scheduler_name}, the extender serves {scheduler_name}"


def explanation_of(picture: Picture, request: PodRequest) -> Explained:
    """The extender's reasons: for each node that does not fit, and for all in a sentence."""
    if not picture.offers:
        return Explained(failed={}, unresolvable={}, summary="no node has published cards")
    rejections = picture.fleet.explain(request, tuple(picture.offers))
    if isinstance(rejections, Refused):
        why = f"it can't be served: {rejections.why}"
        return Explained(failed={}, unresolvable=dict.fromkeys(picture.offers, why), summary=why)
    found = explained(
        request,
        rejections,
        picture.cards_of,
        lambda nodes: {name: picture.offers[name].largest_mib for name in nodes},
        picture.why_not_offered,
        lasting_of(picture.basis.vendors),
        picture.fleet.quotas.quota(request.namespace),
    )
    fitting = [name for name in picture.offers if name not in rejections]
    ready = [name for name in fitting if picture.is_ready(name)]
    if ready:
        return replace(found, summary=_fits_now(ready))
    if fitting:
        summary = (
            f"{found.summary}; its cards are free on {some(fitting, SHOWN)}, which is not ready"
        )
        return replace(found, summary=summary)
    return found


def _fits_now(nodes: Sequence[str]) -> str:
    """The summary for a pod that fits and is not bound."""
    return (
        f"its cards are free on {some(nodes, SHOWN)}: it is about to be scheduled, or something "
        "other than cards prevents it"
    )


def asks_in_words(request: PodRequest, vendors: Iterable[VendorProtocol]) -> str:
    """What is requested of each vendor, in its words; containers are joined with a plus."""
    by_vendor: dict[Vendor, VendorProtocol] = {vendor.cards: vendor for vendor in vendors}
    return " + ".join(
        by_vendor[ask.vendor].asks_in_words(ask)
        for container in request.containers
        for ask in container.asks
    )


@dataclass(slots=True)
class _Sums:
    """Sums over cards that are shared by slots."""

    cards: int = 0
    slots: int = 0
    slots_free: int = 0
    memory_mib: int = 0
    memory_free_mib: int = 0
    largest: tuple[int, str, int | None] = (0, "", None)

    def add(self, node: str, card: DeviceUsage, *, is_open: bool) -> None:
        device = card.device
        self.slots += device.slots
        self.memory_mib += device.memory_mib
        if not is_open or card.slots_free <= 0 or card.memory_free_mib < 0:
            return
        self.cards += 1
        self.slots_free += card.slots_free
        self.memory_free_mib += card.memory_free_mib
        if card.memory_free_mib > self.largest[0]:
            self.largest = (card.memory_free_mib, node, device.index)


def totals_of(picture: Picture) -> TotalsView:
    """Sum up every card of every node."""
    cards = 0
    shared = _Sums()
    numbered: dict[Vendor, str] = {
        vendor.cards: vendor.core_name
        for vendor in picture.basis.vendors
        if vendor.cards.cores_are_mask
    }
    cores = dict.fromkeys(numbered.values(), 0)
    for name, offer in picture.offers.items():
        for uuid, card in picture.cards_of(name).items():
            cards += 1
            owner = card.device.vendor
            is_open = card.device.healthy and not card.contradiction and uuid not in offer.cordoned
            if owner not in numbered:
                shared.add(name, card, is_open=is_open)
            elif is_open:
                cores[numbered[owner]] += card.cores_free.bit_count()
    return TotalsView(
        nodes=sum(1 for offer in picture.offers.values() if offer.devices),
        cards=cards,
        open_cards=shared.cards,
        slots=shared.slots,
        slots_free=shared.slots_free,
        memory_mib=shared.memory_mib,
        memory_free_mib=shared.memory_free_mib,
        largest_mib=shared.largest[0],
        largest_node=shared.largest[1],
        largest_index=shared.largest[2],
        cores_free=cores,
    )
