"""The states of an instance of this node, and what a look at its card makes of them. Pure.

    (nothing) -> intended -> gpu-instance -> named -> draining -> emptied -> (nothing)

A state is on record before the driver's call that ends it, so after a kill the record is at most
one call behind the card. What is found then is ours only where nobody else can have made it:

- intended: nothing was at this place when that was written. A GPU instance of this profile that is
  exactly there now and holds nothing is what our call has made. One with a compute instance is
  not: ours gets none before its number is on record.
- gpu-instance: that number, at this place. A compute instance on it is ours while no process uses
  it, for its UUID was never given to anybody. Where the processes can't be seen, it is nobody's: it
  is destroyed and made again, which the driver refuses under a process.
- named and draining: card, both numbers and the UUID together, since numbers are used again.
- emptied: that number, at this place, without a compute instance.

- lost: the UUID that its container was given, at this place.

All else is somebody else's. An instance that has gone is `lost` while its container may still want
it; where none was given its UUID, it is forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from hami_node.model import Uuid
from hami_node.vendors.nvidia.mig.found import FoundInstance, MigCard, MigDevice
from hami_node.vendors.nvidia.mig.layout import MigPlacement


class State(StrEnum):
    """How far an instance is."""

    INTENDED = "intended"
    """Its GPU instance is about to be made."""
    GPU_INSTANCE = "gpu-instance"
    """That is made, and its compute instance is about to be."""
    NAMED = "named"
    """It is whole, and has a UUID."""
    DRAINING = "draining"
    """Its compute instance is about to be destroyed."""
    EMPTIED = "emptied"
    """That is gone, and its GPU instance is about to be destroyed."""
    LOST = "lost"
    """The card has it no more, though it was given to a container."""


class Action(StrEnum):
    """What brings an instance on."""

    NOTHING = "nothing"
    MAKE = "make"
    COMPLETE = "complete"
    """Make the compute instance, in place of one that is nobody's."""
    NAME = "name"
    """The compute instance is there: only the record is behind."""
    REMOVE = "remove"
    FORGET = "forget"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """An instance after a look at its card.

    Attributes:
        instance: as it is now; None where there is nothing left to do or to remember.
        found: what the card has of it; None for nothing.
        doubt: why it can't be told what is there, for people; then nothing may be done with it.
    """

    instance: Instance | None
    found: FoundInstance | None = None
    doubt: str = ""


def shown_place(profile: str, placement: MigPlacement) -> str:
    """A profile at a place, for people."""
    return f"{profile or 'an instance'} at slices {placement.start}+{placement.size}"


def sighted(instance: Instance, card: MigCard) -> Sighting:
    """What a look at the card says about an instance on record."""
    if instance.state is State.LOST:
        return _of_lost(instance, card)
    if card.is_enabled and card.problem:
        return Sighting(instance=instance, doubt=card.problem)
    found = _at_its_place(instance, card)
    if found is None:
        return _gone(instance)
    if instance.state is State.INTENDED:
        return _of_intended(instance, found)
    if found.gpu_instance_id != instance.gpu_instance_id:
        return _gone(instance)
    if not found.compute_instance_ids:
        return _of_emptied(instance, found)
    return _of_whole(instance, found)


def action_for(instance: Instance, *, is_wanted: bool) -> Action:
    """What comes next for an instance that was just sighted."""
    if not is_wanted:
        return Action.FORGET if instance.state is State.LOST else Action.REMOVE
    match instance.state:
        case State.LOST | State.INTENDED:
            return Action.MAKE
        case State.NAMED:
            return Action.NOTHING
        case _:
            return Action.NAME if instance.uuid else Action.COMPLETE


def lost(instance: Instance) -> Instance | None:
    """The instance after the card has lost it; None where nobody was given it, or has it still."""
    if not instance.given or instance.state in (State.DRAINING, State.EMPTIED):
        return None
    return replace(
        instance, state=State.LOST, gpu_instance_id=None, compute_instance_id=None, uuid=""
    )


def _of_lost(instance: Instance, card: MigCard) -> Sighting:
    """What the container was given may be there again: the driver did not show it for a while."""
    found = _at_its_place(instance, card)
    device = found.device if found and not card.problem else None
    if device is None or device.uuid != instance.given:
        return Sighting(instance=instance)
    named = replace(
        instance,
        state=State.NAMED,
        gpu_instance_id=device.gpu_instance_id,
        compute_instance_id=device.compute_instance_id,
        uuid=device.uuid,
    )
    return Sighting(instance=named, found=found)


def _gone(instance: Instance) -> Sighting:
    return Sighting(instance=lost(instance))


def _at_its_place(instance: Instance, card: MigCard) -> FoundInstance | None:
    for found in card.instances if card.is_enabled else ():
        if (found.profile_id, found.placement) == (instance.profile_id, instance.placement):
            return found
    return None


def _of_intended(instance: Instance, found: FoundInstance) -> Sighting:
    if found.compute_instance_ids:
        return _gone(instance)
    made = replace(instance, state=State.GPU_INSTANCE, gpu_instance_id=found.gpu_instance_id)
    return Sighting(instance=made, found=found)


def _of_emptied(instance: Instance, found: FoundInstance) -> Sighting:
    """Whoever destroyed the compute instance, what is left of it is ours."""
    is_unmade = instance.state is State.GPU_INSTANCE
    state = State.GPU_INSTANCE if is_unmade else State.EMPTIED
    left = replace(instance, state=state, compute_instance_id=None, uuid="")
    return Sighting(instance=left, found=found)


def _of_whole(instance: Instance, found: FoundInstance) -> Sighting:
    if instance.state is State.EMPTIED:
        return _gone(instance)
    if len(found.compute_instance_ids) > 1 or found.device is None:
        return Sighting(
            instance=instance, found=found, doubt="its compute instance can't be identified"
        )
    if instance.uuid:
        return _of_named(instance, found, found.device)
    return _of_unnamed(instance, found, found.device)


def _of_named(instance: Instance, found: FoundInstance, device: MigDevice) -> Sighting:
    numbers = (instance.compute_instance_id,)
    if (found.compute_instance_ids, device.uuid) != (numbers, instance.uuid):
        return _gone(instance)
    return Sighting(instance=instance, found=found)


def _of_unnamed(instance: Instance, found: FoundInstance, device: MigDevice) -> Sighting:
    """The compute instance of an instance whose UUID is not on record yet."""
    if found.processes:
        return _gone(instance)
    uuid = "" if found.processes is None else device.uuid
    seen = replace(instance, compute_instance_id=device.compute_instance_id, uuid=uuid)
    return Sighting(instance=seen, found=found)
