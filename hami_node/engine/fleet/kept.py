"""Where a pod goes while room is kept for others on some nodes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from hami_node.engine.fleet.eviction import Look, Trial
from hami_node.engine.fleet.fleet import Fleet, IsTimeUp, NoNode, Placed, Unfinished, never
from hami_node.engine.place import PodRequest, Refused
from hami_node.engine.usage import PodGrants

MAX_LOOKED_AT: Final = 32
"""Nodes with kept room that one decision looks at; of more, the others are left to those pods."""
MAX_STEPS: Final = 8_000
"""The same in steps of effort: a trial of a pod with many containers takes thousands."""

Kept = Mapping[str, tuple[PodGrants, ...]]
"""By node: what is kept there for pods that this one may not overtake."""


def place_beside(
    fleet: Fleet,
    request: PodRequest,
    candidates: Collection[str] | None,
    kept: Kept,
    is_time_up: IsTimeUp = never,
) -> Placed | NoNode | Refused | Unfinished:
    """As `Fleet.search`, but nothing of what is kept is taken.

    A node where nothing is kept comes first if the best one has too little beside what is kept.
    """
    answer = fleet.search(request, candidates, is_time_up)
    if not isinstance(answer, Placed) or answer.node not in kept:
        return answer
    trial = Trial(fleet, request)
    grants = trial.grants(answer.node, Look(kept=kept[answer.node]))
    if grants is not None:
        return Placed(node=answer.node, grants=grants)
    names = fleet.nodes if candidates is None else candidates
    elsewhere = fleet.search(request, [name for name in names if name not in kept], is_time_up)
    if not isinstance(elsewhere, NoNode):
        return elsewhere
    rest = sorted(kept.keys() & set(names) - {answer.node})
    for name in rest[:MAX_LOOKED_AT]:
        if trial.steps >= MAX_STEPS:
            break
        grants = trial.grants(name, Look(kept=kept[name]))
        if grants is not None:
            return Placed(node=name, grants=grants)
    return NoNode()
