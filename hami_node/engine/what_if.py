"""Where a pod would go among nodes at one moment, and why not to the others. Pure.

The same answer as a fleet's, for nodes that are asked about once: nothing is kept or charged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hami_node.engine.filters import Reason, Rejection
from hami_node.engine.place import NodeOffer, PodRequest, Refused, Rules, place_on, plan
from hami_node.engine.quota import Quota
from hami_node.engine.ranking import SPREAD, node_score

UNREGISTERED: Final = Rejection(whole=Reason.NOT_REGISTERED)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The node with the best score that fits, "" for none; and why others don't fit, by name."""

    node: str
    rejections: Mapping[str, Rejection]


def what_if(
    request: PodRequest, offers: Mapping[str, NodeOffer], rules: Rules, quota: Quota | None
) -> WhatIf | Refused:
    """Try every node; one without cards is not registered."""
    ready = plan(request, rules, quota)
    if isinstance(ready, Refused):
        return ready
    policy = request.wishes.node_policy
    sign = 1.0 if (rules.node_policy if policy is None else policy) == SPREAD else -1.0
    best: tuple[float, str] | None = None
    rejections: dict[str, Rejection] = {}
    for name, offer in offers.items():
        answer = place_on(offer, ready) if offer.cards else UNREGISTERED
        if isinstance(answer, Rejection):
            rejections[name] = answer
            continue
        key = (sign * node_score(offer.cards.values()), name)
        best = key if best is None else min(best, key)
    return WhatIf(node="" if best is None else best[1], rejections=rejections)
