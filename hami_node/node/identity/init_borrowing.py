"""Init containers that a scheduler left out (2.4 to 2.8) use an app container's reservation.

They run before the app container and end before it starts, so the reservation stays for its owner.
They get what their own limits ask for, and no more, but for parts of divided cards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from hami_node.engine.card_rules import rules_of
from hami_node.model import Ask, ContainerGrants, ContainerKind, Device, Pod, Uuid

WHOLE_CARD: Final = 100


def lenders(held: Mapping[str, ContainerGrants], pod: Pod, count: int) -> tuple[str, ...]:
    """App containers with a reservation of as many cards, in the pod's order."""
    return tuple(
        container.name
        for container in pod.containers
        if container.kind is ContainerKind.APP and len(held.get(container.name, ())) == count
    )


def lent(grants: ContainerGrants, ask: Ask, cards: Mapping[Uuid, Device]) -> ContainerGrants | None:
    """What the ask takes of these grants; None if any of them does not cover it.

    A grant of 0 has no limit: it covers everything. A part of a divided card is lent as a whole.
    """
    loan = []
    for grant in grants:
        card = cards.get(grant.uuid)
        if card is None:
            return None
        memory, cores = ask.memory_mib_on(card.memory_mib), min(ask.cores, WHOLE_CARD)
        if 0 < grant.memory_mib < memory or 0 < grant.cores < cores:
            return None
        is_part = rules_of(card.vendor).is_divided(card)
        loan.append(grant if is_part else replace(grant, memory_mib=memory, cores=cores))
    return tuple(loan)
