"""Whose the instances on a card are, and what comes next for each: record against card. Pure.

What is found is ours only where nobody else can have made it:

- intended: nothing was at this place when that was written. A GPU instance of this profile that is
  exactly there now and holds nothing is what our call has made. One with a compute instance is
  not: ours gets none before its number is on record.
- gpu-instance: that number, at this place. A compute instance on it is ours while no process uses
  it, for its UUID was never given to anybody. Where the processes can't be seen, it is nobody's: it
  is destroyed and made again, which the driver refuses under a process. Once its UUID was given,
  the compute instance is destroyed, and what is there instead is somebody else's.
- named: card, both numbers and the UUID together, since numbers are used again. Without a compute
  instance, what is left of it at that number and place is ours.
- lost: the UUID that its container was given, at this place.

All else is somebody else's. An instance that has gone is `lost` while its container may still want
it, and not made again: a container that runs can't be given another one. Where none was given its
UUID, it is forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from hami_node.model import Uuid
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.mig.codec import MigAllocation, readable_allocations
from hami_node.vendors.nvidia.mig.layout import (
    FoundInstance,
    MigCard,
    MigDevice,
    MigInstance,
    MigPlacement,
)
from hami_node.vendors.nvidia.mig.offer import removal_text
from hami_node.vendors.on_node.parts import PartHolder

MAX_SHOWN: Final = 8
CLAIMED: Final = "the record has it more than once"
UNIDENTIFIED: Final = "its compute instance can't be identified"
_MIG_UUID: Final = re.compile(r"MIG-[A-Za-z0-9-]{1,64}", re.ASCII)


class State(StrEnum):
    """How far an instance is."""

    INTENDED = "intended"
    """Its GPU instance is about to be made."""
    GPU_INSTANCE = "gpu-instance"
    """That is there, and its compute instance is not: about to be made, or destroyed once given."""
    NAMED = "named"
    """It is whole, and has a UUID."""
    LOST = "lost"
    """The card has it no more, though it was given to a container."""

    @classmethod
    def _missing_(cls, value: object) -> State | None:
        """What versions before this one wrote while they destroyed one."""
        return {"draining": cls.NAMED, "emptied": cls.GPU_INSTANCE}.get(str(value))


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Owner:
    """For which grant of which container an instance was made; `position` counts its grants."""

    pod_uid: str
    container: str
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """An instance that this node has made, or is about to make.

    Attributes:
        profile, profile_id: the driver's name and number of what it is.
        uuid: that of its MIG device; "" while it has none.
        given: the UUID that the container was told; "" while it was told none.
    """

    owner: Owner
    card: Uuid
    profile: str
    profile_id: int
    placement: MigPlacement
    state: State
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    uuid: str = ""
    given: str = ""

    @property
    def where(self) -> str:
        """What it is and where, for people."""
        return f"{shown_place(self.profile, self.placement)} of {self.card}"

    def gone(self) -> Instance | None:
        """The instance once the card has it no more; None where nobody was given it."""
        if not self.given:
            return None
        return replace(
            self, state=State.LOST, gpu_instance_id=None, compute_instance_id=None, uuid=""
        )

    def emptied(self) -> Instance:
        """The instance without its compute instance."""
        return replace(self, state=State.GPU_INSTANCE, compute_instance_id=None, uuid="")


def shown_place(profile: str, placement: MigPlacement) -> str:
    """A profile at a place, for people."""
    return f"{profile or 'an instance'} at slices {placement.start}+{placement.size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """An instance on record, or on the card, or both, after a look at the card.

    Attributes:
        instance: what the record should say; None for somebody else's, and where nothing is left.
        owner: whose it is by the record; None for somebody else's.
        found: what the card has of it; None for nothing.
        is_wanted: a container may still hold it, or waits for it.
        doubt: why it can't be told what is there, for people; then nothing may be done with it.
    """

    instance: Instance | None = None
    owner: Owner | None = None
    found: FoundInstance | None = None
    is_wanted: bool = False
    doubt: str = ""

    @property
    def what(self) -> tuple[str, MigPlacement]:
        """Profile and place."""
        there = self.found or self.instance
        return (there.profile, there.placement) if there else ("", MigPlacement())

    @property
    def is_gone(self) -> bool:
        """True where a container holds what it can't use any more."""
        instance = self.instance
        if not self.is_wanted or self.doubt or instance is None or not instance.given:
            return False
        return instance.state in (State.LOST, State.GPU_INSTANCE)

    @property
    def stays(self) -> str:
        """Why it can't be destroyed, though nobody holds it; "" where it can be tried.

        The driver destroys nothing under a process, whether it can be seen from here or not.
        """
        if self.doubt:
            return self.doubt
        processes = self.found.processes if self.found else None
        if not processes:
            return ""
        are, them = ("is", "it") if len(processes) == 1 else ("are", "them")
        return f"{shown_processes(processes)} {are} still on it: end {them}"

    def in_the_way(self, card: Uuid, name_of: Callable[[str], str]) -> str:
        """Why its place can't be had, for people; "" where it may be destroyed now."""
        if self.found is None:
            if self.instance is None or not self.is_wanted:
                return self.doubt
            whose = name_of(self.instance.owner.pod_uid)
            return f"{shown_place(*self.what)} is kept for {whose}, whose instance is gone"
        if self.instance is None:
            return _foreign(card, self.found)
        what = f"{_named(self.found)} was made for {name_of(self.instance.owner.pod_uid)}"
        if self.is_wanted:
            return f"{what}, which has not ended"
        if self.doubt:
            return f"{what}, and {self.doubt}"
        return f"{what}, which has ended, and {self.stays}" if self.stays else ""


def reconcile(
    record: Iterable[Instance], look: MigCard, is_wanted: Callable[[Instance], bool]
) -> tuple[Judged, ...]:
    """Every instance of a card: those on record in their order, then those of others.

    Args:
        record: what is on record for the card.
        look: the card as it is.
        is_wanted: whether a container may hold an instance, or nobody certainly.
    """
    kept = tuple(record)
    judged = _once(kept, [_judged(each, look, is_wanted(each)) for each in kept])
    ours = [id(each.found) for each in judged if each.found is not None]
    others = (found for found in look.instances if id(found) not in ours)
    return (*judged, *(Judged(found=found) for found in others))


def _once(kept: Sequence[Instance], judged: Sequence[Judged]) -> tuple[Judged, ...]:
    """What is found is one record's: of several the one that says it whole, else nobody knows."""
    alone: list[Judged] = []
    for own, each in zip(kept, judged, strict=True):
        rivals = [k for k, j in zip(kept, judged, strict=True) if j.found is each.found is not None]
        whole = [k for k in rivals if k.state is State.NAMED]
        if len(rivals) < 2 or whole == [own]:
            alone.append(each)
        elif len(whole) == 1:
            alone.append(replace(each, instance=own.gone(), found=None))
        else:
            alone.append(replace(each, instance=own, doubt=CLAIMED))
    return tuple(alone)


_Seen = tuple[Instance | None, FoundInstance | None, str]


def _judged(kept: Instance, look: MigCard, is_wanted: bool) -> Judged:
    """What a look at the card says about an instance on record."""
    instance, found, doubt = _seen(kept, look)
    return Judged(
        instance=instance, owner=kept.owner, found=found, is_wanted=is_wanted, doubt=doubt
    )


def _seen(kept: Instance, look: MigCard) -> _Seen:
    found = _at_its_place(kept, look)
    if kept.state is State.LOST:
        device = found.device if found and not look.problem else None
        is_again = device is not None and device.uuid == kept.given
        return (_named_as(kept, device), found, "") if device and is_again else (kept, None, "")
    if look.is_enabled and look.problem:
        return kept, None, look.problem
    if found is None:
        return kept.gone(), None, ""
    if kept.state is not State.INTENDED:
        is_same = found.gpu_instance_id == kept.gpu_instance_id
        return _of_numbered(kept, found) if is_same else (kept.gone(), None, "")
    if found.compute_instance_ids:
        return kept.gone(), None, ""
    made = replace(kept, state=State.GPU_INSTANCE, gpu_instance_id=found.gpu_instance_id)
    return made, found, ""


def _of_numbered(kept: Instance, found: FoundInstance) -> _Seen:
    """What is at the place of an instance and has the number of its GPU instance."""
    parts, device = found.compute_instance_ids, found.device
    if not parts:
        return kept.emptied(), found, ""
    if kept.state is State.GPU_INSTANCE and kept.given:
        return kept.gone(), None, ""
    if len(parts) > 1 or device is None:
        return kept, found, UNIDENTIFIED
    if kept.uuid:
        is_same = (parts, device.uuid) == ((kept.compute_instance_id,), kept.uuid)
        return (kept, found, "") if is_same else (kept.gone(), None, "")
    if found.processes:
        return kept.gone(), None, ""
    uuid = "" if found.processes is None else device.uuid
    return replace(kept, compute_instance_id=device.compute_instance_id, uuid=uuid), found, ""


def _at_its_place(kept: Instance, look: MigCard) -> FoundInstance | None:
    """By its number, where the daemon may not know places."""
    for found in look.instances if look.is_enabled else ():
        is_there = found.placement == kept.placement or (
            not found.placement.size and found.gpu_instance_id == kept.gpu_instance_id
        )
        if is_there and found.profile_id == kept.profile_id:
            return found
    return None


def _named_as(kept: Instance, device: MigDevice) -> Instance:
    return replace(
        kept,
        state=State.NAMED,
        gpu_instance_id=device.gpu_instance_id,
        compute_instance_id=device.compute_instance_id,
        uuid=device.uuid,
    )


def shown_processes(processes: frozenset[int]) -> str:
    """Process IDs for people, the first few of them."""
    shown = ", ".join(map(str, sorted(processes)[:MAX_SHOWN]))
    more = f" and {len(processes) - MAX_SHOWN} more" if len(processes) > MAX_SHOWN else ""
    return f"{'process' if len(processes) == 1 else 'processes'} {shown}{more}"


def _foreign(card: Uuid, there: FoundInstance) -> str:
    busy = "processes may be on it"
    if there.processes:
        busy = f"{shown_processes(there.processes)} on it"
    elif there.processes is not None or not there.compute_instance_ids:
        busy = "nothing runs on it"
    return (
        f"{_named(there)} was made by somebody else, and {busy}: remove it where it is not "
        f"needed ({removal_text(card, there)}), or hide the card by filterdevices"
    )


def _named(there: FoundInstance) -> str:
    place = shown_place(there.profile, there.placement)
    uuid = f", {there.device.uuid}" if there.device else ""
    return f"{place} (GPU instance {there.gpu_instance_id}{uuid})"


# -- what is not on record -------------------------------------------------------------------------
# A container on record may hold an instance that this record does not have: it was lost, or another
# program has made the instance. The proof is the reservation, which says what may be where, and our
# own answer, which names the UUID. Where another program has served the container it is the row in
# the pod's annotation, if all of it is on the card and the grant has the profile's memory; anybody
# who may change the pod may write that, so it never proves another place than the reservation's.
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
            device=_device_in(rows, position, grant.uuid, grant.part),
        )
        for position, grant in enumerate(holder.grants)
        if grant.part is not None and not isinstance(grant.part, MigDevice)
    ]
    return tuple(claim for claim in found if claim.uuids or claim.device)


def adopted(
    claims: Sequence[Claim], look: MigCard, own: Iterable[Instance]
) -> Mapping[Owner, Instance]:
    """The instances of one card that are proved to be theirs.

    One that several claim is nobody's: it may be held by either.
    """
    taken = {each.placement for each in own}
    proved = [
        (claim, found)
        for claim in claims
        if (found := _proved(claim, claims, look)) is not None and found.placement not in taken
    ]
    numbers = [found.gpu_instance_id for _, found in proved]
    owners = [claim.owner for claim, _ in proved]
    return {
        claim.owner: _adopted(claim, found)
        for claim, found in proved
        if numbers.count(found.gpu_instance_id) == owners.count(claim.owner) == 1
    }


def _device_in(
    rows: Sequence[MigAllocation], position: int, card: Uuid, part: object
) -> MigDevice | None:
    """What the pod's rows say of this grant: it has one place, so one row at most is about it."""
    fitting = [
        row.device
        for row in rows
        if (row.device_index, row.uuid, row.instance) == (position, card, part)
    ]
    return fitting[0] if len(fitting) == 1 else None


def _proved(claim: Claim, claims: Sequence[Claim], look: MigCard) -> FoundInstance | None:
    """The instance on the card that is certainly the claimed one."""
    fitting = [each for each in look.instances if _is_proved(claim, each, look)]
    if claim.part is not None:
        return fitting[0] if len(fitting) == 1 else None
    # Of a geometry's instances the answer names all, not which is whose: its container has them.
    mine = (claim.owner.pod_uid, claim.owner.container)
    equal = sorted(
        each.owner
        for each in claims
        if (each.owner.pod_uid, each.owner.container) == mine and each.part is None
    )
    if len(fitting) != len(equal):
        return None
    return sorted(fitting, key=lambda each: each.placement.start)[equal.index(claim.owner)]


def _is_proved(claim: Claim, found: FoundInstance, look: MigCard) -> bool:
    device, part = found.device, claim.part
    if device is None or found.compute_instance_ids != (device.compute_instance_id,):
        return False
    if part is not None and (found.profile, found.placement) != (part.profile, part.placement):
        return False
    if device.uuid in claim.uuids:
        return True
    return (
        part is not None
        and device == claim.device
        and any(
            (each.name, each.memory_mib) == (part.profile, claim.memory_mib)
            and part.placement in each.placements
            for each in look.profiles
        )
    )


def _adopted(claim: Claim, found: FoundInstance) -> Instance:
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
