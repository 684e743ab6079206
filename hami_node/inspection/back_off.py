"""Nodes that are backed off: read from pods, and in words. Pure.

The extender notes what it sees as it happens. Whoever only reads the cluster works out about the
same from the pods that are there: `back_off_of`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from hami_node.engine.back_off import BackOff, Breadth, Failure, Hold, Whose
from hami_node.engine.filters import Rejection
from hami_node.model import Pod
from hami_node.text import cut
from hami_node.vendors.holding import has_grants
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire.outcome import Fault, Outcome, bound_at, outcome_of
from hami_node.wire.values.timestamps import format_rfc3339

MAX_DETAIL: Final = 200
"""Characters shown of what kubelet said."""


class BackOffReason(StrEnum):
    """Why a node is left out although it may have room."""

    BACKED_OFF = "NodeBackedOff"


_WORDS: Final[Mapping[StrEnum, str]] = MappingProxyType(
    {
        Fault.REFUSED: "what was sent there got no cards",
        Fault.UNAVAILABLE: "its device plugin did not answer, or can't serve",
        Fault.UNHEALTHY: "kubelet found no healthy device there",
    }
)
_CLOSED_TO: Final[Mapping[Breadth, str]] = MappingProxyType(
    {
        Breadth.NODE: "no pod",
        Breadth.NAMESPACE: "no pod of the namespace",
        Breadth.OWNER: "no pod of the same owner",
    }
)


def whose_of(pod: Pod) -> Whose:
    """To whom the pod belongs; one without a controller is its own owner."""
    return Whose(namespace=pod.namespace, owner=pod.owner or f"pod {pod.name}")


def resources_of(vendors: Iterable[VendorProtocol]) -> frozenset[str]:
    """All that kubelet may be asked for cards by."""
    return frozenset(
        name for vendor in vendors for name in (*vendor.resources, *vendor.counted) if name
    )


def outcome_in(
    pod: Pod, vendors: Sequence[VendorProtocol], resources: Collection[str]
) -> Outcome | None:
    """What became of the cards that were reserved for the pod; None without any, or while open."""
    outcome = outcome_of(pod, resources)
    return outcome if outcome is not None and has_grants(pod, vendors) else None


def note(book: BackOff, pod: Pod, outcome: Outcome, at_s: float, now_s: float) -> Hold | None:
    """Count what became of a pod's cards; the widest wait that it began or lengthened."""
    whose = whose_of(pod)
    if outcome.fault is None:
        book.served(pod.node_name, whose, at_s, now_s)
        return None
    failure = Failure(
        node=pod.node_name,
        whose=whose,
        uid=pod.uid,
        fault=outcome.fault,
        is_the_nodes=outcome.fault.is_the_nodes,
        sent_s=bound_at(pod),
        failed_s=at_s,
        detail=": ".join(filter(None, (f"pod {pod.key}", cut(outcome.message, MAX_DETAIL)))),
    )
    return book.failed(failure, now_s)


def back_off_of(pods: Iterable[Pod], vendors: Sequence[VendorProtocol], now_s: float) -> BackOff:
    """What can be known of the waits from the pods that are there, by when they were bound."""
    resources = resources_of(vendors)
    known = [
        (bound_at(pod), pod.key, pod, outcome)
        for pod in pods
        if (outcome := outcome_in(pod, vendors, resources)) is not None
    ]
    book = BackOff()
    for at_s, _, pod, outcome in sorted(known, key=lambda item: item[:2]):
        note(book, pod, outcome, at_s, now_s)
    return book


def why_closed(hold: Hold, now_s: float) -> str:
    """Why such pods are not sent to a node now; nothing that another tenant wrote."""
    said = f"{_WORDS[hold.fault]}: {_CLOSED_TO[hold.breadth]} is sent there"
    if hold.until_s > now_s:
        return f"{said} until {format_rfc3339(hold.until_s)}, then one that tries"
    return f"{said} while one tries, until {format_rfc3339(hold.trial_until_s)} at most"


def rejections_of(closed: Mapping[str, Hold], now_s: float) -> dict[str, Rejection]:
    """The same as the engine's answers; nodes that are closed for the same reason share one."""
    known: dict[tuple[object, ...], Rejection] = {}
    found: dict[str, Rejection] = {}
    for node, hold in closed.items():
        alike = (hold.fault, len(hold.scope), hold.until_s // 1, hold.trial_until_s // 1)
        if alike not in known:
            why = why_closed(hold, now_s)
            known[alike] = Rejection(whole=BackOffReason.BACKED_OFF, never=why)
        found[node] = known[alike]
    return found


def in_words(hold: Hold, now_s: float) -> str:
    """A wait for those who run the cluster, with what was said of the last pod."""
    return f"{BackOffReason.BACKED_OFF}: {why_closed(hold, now_s)}; last: {hold.detail}"
