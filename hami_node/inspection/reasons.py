"""Why no node fits, in words: for each node, and as a summary for the pod's Event. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, islice
from typing import Final

from hami_node.engine.card_rules import rules_of
from hami_node.engine.compat import V2_8
from hami_node.engine.filters import (
    Reason,
    Rejection,
    context,
    has_type,
    has_uuid,
    is_healthy,
)
from hami_node.engine.fleet.needs import counted
from hami_node.engine.place import PodRequest
from hami_node.engine.quota import Quota
from hami_node.engine.usage import DeviceUsage
from hami_node.model import Ask, ContainerKind, Uuid
from hami_node.vendors.protocol import VendorProtocol

MAX_NAMES: Final = 5
"""Nodes named for each reason in an Event."""
MAX_SEARCHED: Final = 500
"""Nodes searched for the nearest miss."""
NO_REASON: Final = "NoNode"
"""There was no node to choose from."""
_LASTING: Final = frozenset(
    {Reason.NOT_HEALTHY, Reason.CORDONED, Reason.TYPE_MISMATCH, Reason.UUID_MISMATCH}
)
"""Reasons that stay even when other pods end; vendors have some of their own."""
_MEMORY: Final = Reason.TOO_LITTLE_MEMORY
_RIGHT_CARD: Final = (is_healthy, has_type, has_uuid)
"""What a card must pass for its free memory to matter."""

Cards = Mapping[Uuid, DeviceUsage]
Groups = Collection[tuple[Rejection, list[str]]]
"""Each rejection with its nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Why each candidate was refused.

    Attributes:
        failed: by node; other pods that end may make room.
        unresolvable: by node; it won't help to wait for other pods to end.
        summary: a sentence for the Event.
        reason: of most nodes; the names of reasons are few.
    """

    failed: Mapping[str, str]
    unresolvable: Mapping[str, str]
    summary: str
    reason: str = NO_REASON


def lasting_of(vendors: Iterable[VendorProtocol]) -> frozenset[StrEnum]:
    """The vendors' own reasons that stay even when other pods end."""
    return frozenset(reason for vendor in vendors for reason in vendor.lasting)


def explained(
    request: PodRequest,
    rejections: Mapping[str, Rejection],
    cards_of: Callable[[str], Cards],
    largest_mib_of: Callable[[Iterable[str]], Mapping[str, int]],
    why_not_offered: Callable[[str], str],
    lasting: frozenset[StrEnum],
    quota: Quota | None = None,
) -> Explained:
    """Sort and summarise the engine's reasons.

    Args:
        request: what the pod requests.
        rejections: by node; nodes with equal rejections should share an object.
        cards_of: a node's cards.
        largest_mib_of: total memory of the largest card of each of these nodes.
        why_not_offered: why a node offers nothing, in words.
        lasting: the vendors' reasons that stay even when other pods end, see `lasting_of`.
        quota: of the pod's namespace.
    """
    failed: dict[str, str] = {}
    unresolvable: dict[str, str] = {}
    by_reason: dict[StrEnum, list[str]] = {}
    wanted_mib = max((ask.memory_mib or 0 for ask in _asks(request)), default=0)
    groups = _grouped(rejections)
    for rejection, nodes in groups:
        text = ": ".join(filter(None, (rejection.text(), rejection.never)))
        if rejection.whole is Reason.NOT_REGISTERED:
            unresolvable |= {name: f"{text}: {why_not_offered(name)}" for name in nodes}
        elif rejection.never:
            unresolvable.update(dict.fromkeys(nodes, text))
        elif (is_lasting := _is_lasting(rejection, _LASTING | lasting)) is not None:
            (unresolvable if is_lasting else failed).update(dict.fromkeys(nodes, text))
        else:
            for name, largest_mib in largest_mib_of(nodes).items():
                (unresolvable if largest_mib < wanted_mib else failed)[name] = text
        for reason in (rejection.whole,) if rejection.whole is not None else rejection.counts:
            by_reason.setdefault(reason, []).extend(nodes)
    return Explained(
        failed=failed,
        unresolvable=unresolvable,
        summary=_summary(groups, by_reason)
        + _nearest(request, groups, cards_of)
        + _beyond_quota(request, by_reason.get(Reason.OVER_QUOTA, ()), cards_of, quota),
        reason=max(by_reason, key=lambda each: (len(by_reason[each]), each), default=NO_REASON),
    )


def _grouped(rejections: Mapping[str, Rejection]) -> Groups:
    """Each rejection with its nodes: there are thousands of nodes and dozens of rejections."""
    groups: dict[int, tuple[Rejection, list[str]]] = {}
    for name, rejection in rejections.items():
        group = groups.get(id(rejection))
        if group is None:
            groups[id(rejection)] = (rejection, [name])
        else:
            group[1].append(name)
    return groups.values()


def _summary(groups: Groups, by_reason: Mapping[StrEnum, Sequence[str]]) -> str:
    count = sum(len(nodes) for _, nodes in groups)
    summary = f"no available node, {count} nodes do not meet"
    never = dict.fromkeys(item.never for item, _ in groups if item.never)
    parts = (*_counted(by_reason), *islice(never, MAX_NAMES))
    return f"{summary}: {'; '.join(parts)}" if parts else summary


def _counted(by_reason: Mapping[StrEnum, Sequence[str]]) -> list[str]:
    """`3 nodes CardInsufficientMemory(a,b,c)`, most frequent first."""
    parts = []
    for reason, nodes in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        first = heapq.nsmallest(MAX_NAMES, nodes)
        shown = ",".join(first) + (",..." if len(nodes) > MAX_NAMES else "")
        parts.append(f"{len(nodes)} nodes {reason}({shown})")
    return parts


def _is_lasting(rejection: Rejection, lasting: frozenset[StrEnum]) -> bool | None:
    """True when the reasons alone show that the pod can't fit even without other pods.

    None where that depends on the size of the node's cards.
    """
    if rejection.whole is not None:
        return None if rejection.whole is Reason.TOO_LITTLE_ROOM else True
    left = rejection.counts.keys() - lasting - {Reason.TOO_FEW_CARDS_FIT}
    if not left:
        return Reason.TOO_FEW_CARDS_FIT not in rejection.counts
    return None if left == {_MEMORY} else False


def _asks(request: PodRequest) -> list[Ask]:
    return [ask for container in request.containers for ask in container.asks]


def _beyond_quota(
    request: PodRequest,
    nodes: Collection[str],
    cards_of: Callable[[str], Cards],
    quota: Quota | None,
) -> str:
    """What the namespace may take, what it takes, and what the pod would count for on a node."""
    if quota is None or not nodes:
        return ""
    node = min(nodes)
    cards = cards_of(node).values()
    together: list[list[Ask]] = [[]]  # what runs at one time
    for container in request.containers:
        asks = [ask for ask in container.asks if rules_of(ask.vendor).has_quota]
        if container.kind is ContainerKind.INIT:
            together.append(asks)
        else:
            together[0] += asks
    sums = [
        counted([(a, [c for c in cards if c.device.vendor is a.vendor]) for a in asks], min)
        for asks in together
    ]
    counts = [max(each) for each in zip(*sums, strict=True)]
    memory_mib, cores = quota.memory_limit_mib, quota.core_limit
    limits = (
        (quota.memory_used_mib, memory_mib and memory_mib * quota.memory_factor, "MiB"),
        (quota.cores_used, cores, "% of cores"),
    )
    used = [f"{held} of {most} {unit}" for held, most, unit in limits if most is not None]
    return (
        f"; the ResourceQuota of namespace {request.namespace}: {' and '.join(used)} are in use, "
        f"and on {node} the pod would count {counts[0]} MiB and {counts[1]} %, or more"
    )


def _nearest(request: PodRequest, groups: Groups, cards_of: Callable[[str], Cards]) -> str:
    """The card with the most free memory among those that only lack memory."""
    ask = max(_asks(request), key=lambda ask: ask.memory_mib or 0, default=None)
    if ask is None or not ask.memory_mib:
        return ""
    wished = request.wishes.of(ask.vendor)
    ctx = context(ask, wished, V2_8)  # these filters are equal in all generations
    short = chain.from_iterable(nodes for found, nodes in groups if _MEMORY in found.counts)
    best = (-1, "", "")
    for name in islice(short, MAX_SEARCHED):
        # most nodes of a fleet are equal: of each, only what is better than the best is looked at
        at_least = best[0] if name > best[1] else best[0] + 1
        for uuid, card in cards_of(name).items():
            free_mib = card.memory_free_mib
            if free_mib < at_least or card.device.vendor is not ask.vendor:
                continue
            if not any([rule(card, ctx) for rule in _RIGHT_CARD]):
                best, at_least = (free_mib, name, uuid), free_mib + 1
    most_mib, node, nearest = best
    if not node or most_mib >= ask.memory_mib:
        return ""
    return f"; nearest: {most_mib} MiB free on {nearest} of {node}, {ask.memory_mib} MiB requested"
