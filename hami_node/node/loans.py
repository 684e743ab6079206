"""Init containers that a scheduler left out (2.4 to 2.8) use an app container's reservation.

They run before it and give the card back, so the reservation stays for its owner. They get what
their own limits ask for, and no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from hami_node.model import Ask, ContainerGrants, ContainerKind, Device, Pod, Uuid
from hami_node.wire.slots import SlotMap

WHOLE_CARD: Final = 100


def lenders(slots: SlotMap, pod: Pod, count: int) -> tuple[str, ...]:
    """App containers with a reservation of as many cards, in the pod's order."""
    return tuple(
        one.name
        for one in pod.containers
        if one.kind is ContainerKind.APP and len(slots.grants_of(one.name) or ()) == count
    )


def lent(grants: ContainerGrants, ask: Ask, cards: Mapping[Uuid, Device]) -> ContainerGrants | None:
    """What the ask takes of these grants; None where one of them does not cover it.

    A grant of 0 is one without a limit: it covers everything.
    """
    parts = []
    for grant in grants:
        card = cards.get(grant.uuid)
        if card is None:
            return None
        memory, cores = ask.memory_mib_on(card.memory_mib), min(ask.cores, WHOLE_CARD)
        if 0 < grant.memory_mib < memory or 0 < grant.cores < cores:
            return None
        parts.append(replace(grant, memory_mib=memory, cores=cores))
    return tuple(parts)
