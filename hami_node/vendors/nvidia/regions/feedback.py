"""What containers on shared cards are told while they run: to wait, or to keep their core limits.

Two fields of a container's region file. `recent_kernel` below 0 makes its launches wait;
`utilization_switch` 1 makes its core limit count. Where the core policy is the default, a core
limit counts only while the card is contended, as under HAMi's monitor; forced, always.

Source: HAMi's monitor, and measurements with the limiter of several versions: those from 2.8.1 on
mark no launches in `recent_kernel` while the switch is 0, so that a container alone on its card
would look idle for ever. Hence the time of its last launch decides where the layout has one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from hami_node.model import Uuid

WAIT: Final = -1
"""`recent_kernel` of a container whose launches wait."""
ACTIVE_S: Final = 10
"""How long a container is active after its last launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """What a region tells its container."""

    recent_kernel: int
    utilization_switch: int


def released(feedback: Feedback) -> Feedback:
    """As the daemon leaves a region: nobody waits, and every core limit counts, as at the start."""
    return Feedback(recent_kernel=max(feedback.recent_kernel, 0), utilization_switch=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A container on shared cards.

    Attributes:
        key: whose it is.
        cards: what it holds, by the ledger: a region file can't put itself on other cards; none
            where that is not known now: then it neither waits nor loses its core limit.
        priority: of its pod; 0 comes before 1. From the pod too, for the same reason.
        feedback: what the region holds now.
        last_launch_s: seconds since the epoch; 0 before the first; None where the layout has none.
    """

    key: str
    cards: frozenset[Uuid]
    priority: int
    feedback: Feedback
    last_launch_s: int | None


def new_feedback(
    tenants: Iterable[Tenant], now_s: float, *, is_forced: bool = False
) -> Mapping[str, Feedback]:
    """The feedback that has to change, by key.

    Args:
        tenants: the containers of this node that have a region.
        now_s: seconds since the epoch, by the clock of the containers' node.
        is_forced: core limits count always.
    """
    everybody = tuple(tenants)
    active = [tenant for tenant in everybody if _is_active(tenant, now_s)]
    at = Counter((card, tenant.priority) for tenant in active for card in tenant.cards)
    first: dict[Uuid, int] = {}
    for card, priority in at:
        first[card] = min(priority, first.get(card, priority))
    changes = {}
    for tenant in everybody:
        waits = any(first.get(card, tenant.priority) < tenant.priority for card in tenant.cards)
        is_contended = any(at[card, tenant.priority] > 1 for card in tenant.cards)
        feedback = Feedback(
            recent_kernel=WAIT if waits else _mark_left(tenant),
            utilization_switch=int(is_forced or waits or is_contended or not tenant.cards),
        )
        if feedback != tenant.feedback:
            changes[tenant.key] = feedback
    return changes


def _is_active(tenant: Tenant, now_s: float) -> bool:
    """Whether it launched something lately. A time in the future is no launch."""
    if tenant.last_launch_s is None:
        return _mark_left(tenant) > 0
    return abs(now_s - tenant.last_launch_s) <= ACTIVE_S


def _mark_left(tenant: Tenant) -> int:
    """The limiter marks each launch with 2 in `recent_kernel`; each pass takes 1 away.

    Where the layout has a time, the mark is left alone, and so are two needless writes a pass.
    """
    mark = tenant.feedback.recent_kernel
    if tenant.last_launch_s is None:
        mark -= 1
    return max(mark, 0)
