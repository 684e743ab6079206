"""What is on a card, whose it is, and which places can be had. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hami_node.model import Uuid
from hami_node.vendors.nvidia.mig.found import FoundInstance, MigCard
from hami_node.vendors.nvidia.mig.layout import MigPlacement
from hami_node.vendors.nvidia.mig.offer import removal_text
from hami_node.vendors.nvidia.node.mig.instances.machine import (
    Instance,
    State,
    shown_place,
    sighted,
)

MAX_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """Something at a place of a card.

    Attributes:
        instance: what it is on record; None for somebody else's.
        why: why it stays, for people; "" for what may be destroyed now.
        is_live: it is a live pod's.
        is_passing: it may be gone in a moment.
    """

    profile: str
    placement: MigPlacement
    instance: Instance | None = None
    why: str = ""
    is_live: bool = False
    is_passing: bool = False


def occupants(
    uuid: Uuid,
    card: MigCard,
    own: Iterable[Instance],
    is_over: Callable[[str], bool],
    name_of: Callable[[str], str],
) -> tuple[Occupant, ...]:
    """What is on the card, and what has to come back there.

    Args:
        uuid: the card's.
        card: as it is now.
        own: what is on record for it.
        is_over: whether a pod has certainly ended, by its uid.
        name_of: what people call a pod, by its uid.
    """
    seen = [(each, sighted(each, card)) for each in own]
    found = []
    for there in card.instances:
        mine = next((sight for _, sight in seen if sight.found is there), None)
        if mine is None or mine.instance is None:
            found.append(_foreign(uuid, there))
        else:
            found.append(_own(there, mine.instance, mine.doubt, is_over, name_of))
    for instance, sight in seen:
        left = sight.instance
        if left is not None and left.state is State.LOST and not is_over(instance.owner.pod_uid):
            found.append(_awaited(left, name_of))
    return tuple(found)


def shown_processes(processes: frozenset[int]) -> str:
    """Process IDs for people, the first few of them."""
    shown = ", ".join(map(str, sorted(processes)[:MAX_SHOWN]))
    more = f" and {len(processes) - MAX_SHOWN} more" if len(processes) > MAX_SHOWN else ""
    return f"{'process' if len(processes) == 1 else 'processes'} {shown}{more}"


def stays(found: FoundInstance) -> str:
    """Why an instance whose pod has ended can't be destroyed; "" where it can be tried.

    The driver destroys nothing under a process, whether it can be seen from here or not.
    """
    if not found.processes:
        return ""
    are, them = ("is", "it") if len(found.processes) == 1 else ("are", "them")
    return f"{shown_processes(found.processes)} {are} still on it: end {them}"


def _own(
    there: FoundInstance,
    instance: Instance,
    doubt: str,
    is_over: Callable[[str], bool],
    name_of: Callable[[str], str],
) -> Occupant:
    uid = instance.owner.pod_uid
    what = f"{_named(there)} was made for {name_of(uid)}"
    is_live = bool(instance.given) and not is_over(uid)
    if is_live:
        why = f"{what}, which has not ended"
    elif doubt:
        why = f"{what}, and {doubt}"
    else:
        reason = stays(there)
        why = f"{what}, which has ended, and {reason}" if reason else ""
    return Occupant(
        profile=there.profile,
        placement=there.placement,
        instance=instance,
        why=why,
        is_live=is_live,
        is_passing=True,
    )


def _foreign(uuid: Uuid, there: FoundInstance) -> Occupant:
    busy = "processes may be on it"
    if there.processes:
        busy = f"{shown_processes(there.processes)} on it"
    elif there.processes is not None or not there.compute_instance_ids:
        busy = "nothing runs on it"
    return Occupant(
        profile=there.profile,
        placement=there.placement,
        why=f"{_named(there)} was made by somebody else, and {busy}: remove it where it is not "
        f"needed ({removal_text(uuid, there)}), or hide the card by filterdevices",
    )


def _awaited(lost: Instance, name_of: Callable[[str], str]) -> Occupant:
    return Occupant(
        profile=lost.profile,
        placement=lost.placement,
        instance=lost,
        why=f"{shown_place(lost.profile, lost.placement)} is kept for "
        f"{name_of(lost.owner.pod_uid)}, whose instance is gone from the card",
        is_live=True,
    )


def _named(there: FoundInstance) -> str:
    place = shown_place(there.profile, there.placement)
    uuid = f", {there.device.uuid}" if there.device else ""
    return f"{place} (GPU instance {there.gpu_instance_id}{uuid})"
