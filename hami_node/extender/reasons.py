"""Why no node will do, in words: for each node, and summed up for the pod's Event. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hami_node.engine.compat import V2_8
from hami_node.engine.filters import (
    Reason,
    Rejection,
    context,
    has_type,
    has_uuid,
    is_healthy,
)
from hami_node.engine.place import PodRequest
from hami_node.engine.usage import DeviceUsage
from hami_node.model import Ask, Uuid, Vendor

MAX_NAMES: Final = 5
"""Nodes named for each reason in an Event."""
MAX_LOOKED_AT: Final = 500
"""Nodes searched for the nearest miss."""
_LASTING: Final = frozenset(
    {
        Reason.NOT_HEALTHY,
        Reason.CORDONED,
        Reason.TYPE_MISMATCH,
        Reason.UUID_MISMATCH,
        Reason.NO_MIG_TEMPLATE,
    }
)
"""Reasons that stay whatever other pods do."""
_MEMORY: Final = Reason.TOO_LITTLE_MEMORY
_RIGHT_CARD: Final = (is_healthy, has_type, has_uuid)
"""What a card must pass for its free memory to matter."""

Cards = Mapping[Uuid, DeviceUsage]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Why each candidate was refused.

    Attributes:
        failed: by node; room may be made.
        unresolvable: by node; it won't help to wait for other pods to end.
        summary: one sentence for the Event.
    """

    failed: Mapping[str, str]
    unresolvable: Mapping[str, str]
    summary: str


def explained(
    request: PodRequest,
    rejections: Mapping[str, Rejection],
    cards_of: Callable[[str], Cards],
    why_not_offered: Callable[[str], str],
) -> Explained:
    """Sort and sum up the engine's reasons.

    Args:
        request: what the pod asks for.
        rejections: by node.
        cards_of: a node's cards.
        why_not_offered: why a node offers nothing, in words.
    """
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    by_reason: dict[str, list[str]] = {}
    asks = [ask for one in request.containers for ask in one.asks]
    for name, rejection in rejections.items():
        text = rejection.text()
        if rejection.whole is Reason.NOT_REGISTERED:
            text = f"{text}: {why_not_offered(name)}"
        is_lasting = _is_lasting(rejection, asks, cards_of, name)
        (unresolvable if is_lasting else failed)[name] = text
        for reason in (rejection.whole,) if rejection.whole is not None else rejection.counts:
            by_reason.setdefault(str(reason), []).append(name)
    summary = f"no available node, {len(rejections)} nodes do not meet"
    if by_reason:
        summary += ": " + "; ".join(_counted(by_reason))
    return Explained(
        failed=failed,
        unresolvable=unresolvable,
        summary=summary + _nearest(request, rejections, cards_of),
    )


def _counted(by_reason: Mapping[str, Sequence[str]]) -> list[str]:
    """`3 nodes CardInsufficientMemory(a,b,c)`, most frequent first."""
    parts = []
    for reason, nodes in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        shown = ",".join(sorted(nodes)[:MAX_NAMES]) + (",..." if len(nodes) > MAX_NAMES else "")
        parts.append(f"{len(nodes)} nodes {reason}({shown})")
    return parts


def _is_lasting(
    rejection: Rejection, asks: Sequence[Ask], cards_of: Callable[[str], Cards], node: str
) -> bool:
    """True when the node can't take the pod even with no other pod on it, as far as is plain."""
    if rejection.whole is not None:
        return True
    left = rejection.counts.keys() - _LASTING - {Reason.TOO_FEW_CARDS_FIT}
    if not left:
        return Reason.TOO_FEW_CARDS_FIT not in rejection.counts
    if left != {_MEMORY}:
        return False
    memory_mib = max(
        (ask.memory_mib or 0 for ask in asks if ask.vendor is Vendor.NVIDIA), default=0
    )
    return all(
        card.device.memory_mib < memory_mib
        for card in cards_of(node).values()
        if card.device.vendor is Vendor.NVIDIA
    )


def _nearest(
    request: PodRequest, rejections: Mapping[str, Rejection], cards_of: Callable[[str], Cards]
) -> str:
    """The card with the most free memory among those where only memory was short."""
    asks = [a for one in request.containers for a in one.asks if a.vendor is Vendor.NVIDIA]
    ask = max(asks, key=lambda one: one.memory_mib or 0, default=None)
    if ask is None or not ask.memory_mib:
        return ""
    ctx = context(ask, request.wishes, V2_8)  # these filters are alike in all generations
    short = [name for name, one in rejections.items() if _MEMORY in one.counts][:MAX_LOOKED_AT]
    free = [
        (card.memory_free_mib, name, card.device.uuid)
        for name in short
        for card in cards_of(name).values()
        if not any(rule(card, ctx) for rule in _RIGHT_CARD)
    ]
    most_mib, name, uuid = max(free, default=(ask.memory_mib, "", ""))
    if most_mib >= ask.memory_mib:
        return ""
    return f"; nearest: {most_mib} MiB free on {uuid} of {name}, {ask.memory_mib} MiB asked"
