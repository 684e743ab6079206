"""Whose an instance is that is not on record, as far as that can be proved. Pure.

A container on record may hold an instance that this record does not have: it was lost, or another
program has made the instance. The proof is the reservation, which says what may be where, together
with our own answer, which names the UUID. Where another program has served the container it is the
row in the pod's annotation, if all of it is on the card and the grant has the profile's memory;
anybody who may change the pod may write that, so it never proves another place than the
reservation's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hami_node.model import Grant, Uuid
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.mig.codec import MigAllocation, readable_allocations
from hami_node.vendors.nvidia.mig.found import CardProfile, FoundInstance, MigCard, MigDevice
from hami_node.vendors.nvidia.mig.layout import MigInstance
from hami_node.vendors.nvidia.node.mig.instances.machine import Instance, Owner, State
from hami_node.vendors.on_node.parts import PartHolder

_MIG_UUID: Final = re.compile(r"MIG-[A-Za-z0-9-]{1,64}(?:/\d{1,4}/\d{1,4})?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What is known of an instance that a container holds.

    Attributes:
        uuids: what its container's answer names, whatever their order.
        device: what the pod's annotation says; None where that says nothing.
        memory_mib: what the container was granted.
    """

    owner: Owner
    card: Uuid
    memory_mib: int
    part: MigInstance | None
    uuids: frozenset[str]
    device: MigDevice | None


def claims_of(holder: PartHolder) -> tuple[Claim, ...]:
    """What a container claims of its grants that name parts, where anything speaks for it.

    What others have made stays theirs, whoever holds it: it was given as it was (`MigDevice`).
    """
    uuids = frozenset(_MIG_UUID.findall(holder.answer))
    text = holder.annotations.get(names.POD_MIG_ALLOCATIONS, "") if holder.is_adopted else ""
    rows = readable_allocations(text)
    found = [
        Claim(
            owner=Owner(pod_uid=holder.pod_uid, container=holder.container, position=position),
            card=grant.uuid,
            memory_mib=grant.memory_mib,
            part=grant.part if isinstance(grant.part, MigInstance) else None,
            uuids=uuids,
            device=_device_in(rows, position, grant),
        )
        for position, grant in enumerate(holder.grants)
        if grant.part is not None and not isinstance(grant.part, MigDevice)
    ]
    return tuple(claim for claim in found if claim.uuids or claim.device)


def adopted(
    claims: Sequence[Claim], card: MigCard, own: Iterable[Instance]
) -> Mapping[Owner, Instance]:
    """The instances of one card that are proved to be theirs.

    One that several claim is nobody's: it may be held by either.
    """
    taken = {each.placement for each in own}
    proved = [
        (claim, found)
        for claim in claims
        if (found := _proved(claim, claims, card)) is not None and found.placement not in taken
    ]
    numbers = [found.gpu_instance_id for _, found in proved]
    owners = [claim.owner for claim, _ in proved]
    return {
        claim.owner: _instance(claim, found)
        for claim, found in proved
        if numbers.count(found.gpu_instance_id) == owners.count(claim.owner) == 1
    }


def missing(claim: Claim, card: MigCard) -> Instance | None:
    """An instance that its container was given and that the card has no more; else None.

    Only where the reservation has its place can it be made again.
    """
    given = claim.device.uuid if claim.device else _only(claim.uuids)
    if claim.part is None or not given or not card.is_enabled or card.problem:
        return None
    if any(
        each.placement.overlaps(claim.part.placement) or (each.device and each.device.uuid == given)
        for each in card.instances
    ):
        return None
    profile = _profile(claim.part, card.profiles)
    if profile is None:
        return None
    return Instance(
        owner=claim.owner,
        card=claim.card,
        profile=profile.name,
        profile_id=profile.id,
        placement=claim.part.placement,
        state=State.LOST,
        given=given,
    )


def _device_in(rows: Sequence[MigAllocation], position: int, grant: Grant) -> MigDevice | None:
    """What the pod's rows say of this grant: it has one place, so one row at most is about it."""
    fitting = [
        row.device
        for row in rows
        if (row.device_index, row.uuid, row.instance) == (position, grant.uuid, grant.part)
    ]
    return fitting[0] if len(fitting) == 1 else None


def _proved(claim: Claim, claims: Sequence[Claim], card: MigCard) -> FoundInstance | None:
    """The instance on the card that is certainly the claimed one."""
    fitting = [each for each in card.instances if _is_proved(claim, each, card.profiles)]
    if claim.part is not None:
        return fitting[0] if len(fitting) == 1 else None
    # Of a geometry's instances the answer names all, not which is whose: its container has them.
    equal = sorted(each.owner for each in claims if _is_alike(each, claim))
    if len(fitting) != len(equal):
        return None
    return sorted(fitting, key=lambda each: each.placement.start)[equal.index(claim.owner)]


def _is_alike(claim: Claim, other: Claim) -> bool:
    mine, theirs = claim.owner, other.owner
    is_same = (mine.pod_uid, mine.container) == (theirs.pod_uid, theirs.container)
    return is_same and claim.part is None


def _is_proved(claim: Claim, found: FoundInstance, profiles: Sequence[CardProfile]) -> bool:
    device = found.device
    if device is None or found.compute_instance_ids != (device.compute_instance_id,):
        return False
    part = claim.part
    if part is not None and (found.profile, found.placement) != (part.profile, part.placement):
        return False
    if device.uuid in claim.uuids:
        return True
    profile = _profile(part, profiles) if part is not None else None
    is_granted = profile is not None and profile.memory_mib == claim.memory_mib
    return is_granted and device == claim.device


def _instance(claim: Claim, found: FoundInstance) -> Instance:
    uuid = found.device.uuid if found.device else ""
    return Instance(
        owner=claim.owner,
        card=claim.card,
        profile=found.profile,
        profile_id=found.profile_id,
        placement=found.placement,
        state=State.NAMED,
        gpu_instance_id=found.gpu_instance_id,
        compute_instance_id=found.compute_instance_ids[0],
        uuid=uuid,
        given=uuid,
    )


def _profile(part: MigInstance, profiles: Sequence[CardProfile]) -> CardProfile | None:
    return next(
        (
            each
            for each in profiles
            if each.name == part.profile and part.placement in each.placements
        ),
        None,
    )


def _only(uuids: frozenset[str]) -> str:
    return next(iter(uuids)) if len(uuids) == 1 else ""
