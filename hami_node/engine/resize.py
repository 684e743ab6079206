"""Other amounts for a container that runs, on the very cards that it holds. Plain cards only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hami_node.engine.card_rules import rules_of
from hami_node.engine.filters import WHOLE_CARD, Reason
from hami_node.engine.objection import Amounts, Doubt, Objection, objection_to
from hami_node.engine.quota import Quota
from hami_node.engine.usage import Charge, DeviceUsage, PodGrants, collapse
from hami_node.model import ContainerGrants, Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAmounts:
    """What a container shall have of each of its cards; None leaves it as it is."""

    memory_mib: int | None = None
    cores: int | None = None

    def of(self, grants: ContainerGrants) -> ContainerGrants:
        """The grants with these amounts, on the same cards."""
        return tuple(
            replace(
                grant,
                memory_mib=grant.memory_mib if self.memory_mib is None else self.memory_mib,
                cores=grant.cores if self.cores is None else self.cores,
            )
            for grant in grants
        )


def with_container(pod: PodGrants, index: int, grants: ContainerGrants) -> PodGrants:
    """The pod's grants with those of one container replaced."""
    containers = (*pod.containers[:index], grants, *pod.containers[index + 1 :])
    return replace(pod, containers=containers)


def growth_objection(
    cards: Mapping[Uuid, DeviceUsage], before: PodGrants, after: PodGrants
) -> Objection | None:
    """Why a pod that runs can't hold more; None if it can, or nothing of it grows.

    It counts with its peak: an init container may run again beside the sidecars before it.

    Args:
        cards: the node's cards with what other pods hold, this pod left out.
        before: what the pod holds.
        after: what it would hold.
    """
    held = {charge.uuid: charge for charge in collapse(before)}
    for charge in collapse(after):
        objection = _objection(cards, held.get(charge.uuid), charge)
        if objection is not None:
            return objection
    return _exclusive(cards, before, after)


def _objection(
    cards: Mapping[Uuid, DeviceUsage], held: Charge | None, charge: Charge
) -> Objection | None:
    had_mib, had_cores = (0, 0) if held is None else (held.memory_mib, held.cores)
    is_more_memory, is_more_cores = charge.memory_mib > had_mib, charge.cores > had_cores
    if not is_more_memory and not is_more_cores:
        return None
    card = cards.get(charge.uuid)
    if card is None:
        return Objection(reason=Doubt.UNKNOWN_CARD, uuid=charge.uuid)
    if not card.device.healthy or card.contradiction:
        why = card.contradiction or card.device.unhealthy_reason
        return objection_to(card, Reason.NOT_HEALTHY, detail=why)
    if is_more_memory and card.memory_free_mib < charge.memory_mib:
        amounts = Amounts(left=card.memory_free_mib, asked=charge.memory_mib, unit="MiB")
        return objection_to(card, Reason.TOO_LITTLE_MEMORY, amounts)
    if is_more_cores and card.cores_free < charge.cores:
        amounts = Amounts(left=card.cores_free, asked=charge.cores, unit="percent")
        return objection_to(card, Reason.TOO_FEW_CORES, amounts)
    return None


def _exclusive(
    cards: Mapping[Uuid, DeviceUsage], before: PodGrants, after: PodGrants
) -> Objection | None:
    """All cores of a card mean the card alone, as for a new container."""
    slots = {charge.uuid: charge.slots for charge in collapse(replace(after, are_inits_over=True))}
    for index, grants in enumerate(after.containers):
        had = before.containers[index] if index < len(before.containers) else ()
        cores = {grant.uuid: grant.cores for grant in had}
        for grant in grants:
            card = cards.get(grant.uuid)
            if card is None or cores.get(grant.uuid, 0) >= grant.cores:
                continue
            is_whole = grant.cores == WHOLE_CARD == card.device.cores
            if is_whole and (card.slots_used > 0 or slots.get(grant.uuid, 0) > 1):
                amounts = Amounts(left=card.slots_free, asked=1, unit="slots")
                return objection_to(card, Reason.NOT_EXCLUSIVE, amounts)
    return None


def quota_objection(
    quota: Quota | None,
    before: Sequence[Charge],
    after: Sequence[Charge],
    *,
    zero_is_limit: bool,
) -> Amounts | None:
    """Where the namespace would go beyond its quota; None if it would not, or nothing grows.

    `quota` counts `before` in; both are what the pod counts there. What Kubernetes limits at
    creation is kept, too, and there 0 is always a limit.
    """
    if quota is None:
        return None
    had, wants = _limited(before), _limited(after)
    ours = (quota.memory_limit_mib, quota.core_limit)
    if not zero_is_limit:
        ours = (ours[0] or None, ours[1] or None)
    used = (quota.memory_used_mib, quota.cores_used)
    factors, units = (quota.memory_factor, 1), ("MiB", "percent")
    for at in range(2):
        limits = [limit for limit in (ours[at], quota.requests[at]) if limit is not None]
        if not limits or wants[at] <= had[at]:
            continue
        left = min(limits) * factors[at] - used[at] + had[at]
        if wants[at] > left:
            return Amounts(left=left, asked=wants[at], unit=units[at])
    return None


def _limited(charges: Sequence[Charge]) -> tuple[int, int]:
    limited = [charge for charge in charges if rules_of(charge.vendor).has_quota]
    return sum(item.memory_mib for item in limited), sum(item.cores for item in limited)
