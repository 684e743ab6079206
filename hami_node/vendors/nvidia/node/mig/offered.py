"""MIG instances that others have made: handed out as they are, never made or destroyed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hami_node.clock import Deadline
from hami_node.errors import AllocationError
from hami_node.model import Device, Grant, Uuid
from hami_node.vendors.divided import PartState, PartView
from hami_node.vendors.nvidia.mig.details import mig_of
from hami_node.vendors.nvidia.mig.found import MigDevice
from hami_node.vendors.on_node.answer import MadePart, Slice
from hami_node.vendors.on_node.parts import PartHolder, PartsKept, PartsSituation, PartsState


class OfferedInstances:
    """The port `CardParts` without a driver: there is nothing to do but to look."""

    def __init__(self) -> None:
        """It is not known yet who holds what."""
        self._held: tuple[PartView, ...] = ()

    def make(self, granted: Slice, deadline: Deadline) -> tuple[MadePart | None, ...]:
        """The instances that the grants name, as the last scan has seen them.

        Raises:
            AllocationError: one is not there any more.
        """
        del deadline
        return tuple(_made(grant, granted) for grant in granted.grants)

    def keep(self, situation: PartsSituation) -> PartsKept:
        """Nothing but to note who holds what: whoever made the instances removes them."""
        if situation.holders is not None:
            self._held = tuple(held for each in situation.holders for held in _held_by(each))
        return PartsKept()

    def marked(self, cards: tuple[Device, ...]) -> tuple[Device, ...]:
        """Nothing is on record of them."""
        return cards

    def in_use(self) -> Mapping[Uuid, str]:
        """None."""
        return {}

    def state(self) -> PartsState:
        """What containers on record hold; the driver knows where it is."""
        return PartsState(own=self._held)


def _held_by(holder: PartHolder) -> Iterator[PartView]:
    for position, grant in enumerate(holder.grants):
        device = grant.part
        if isinstance(device, MigDevice):
            yield PartView(
                card=grant.uuid,
                kind="",
                start=0,
                size=0,
                state=PartState.LIVE,
                numbers=(device.gpu_instance_id, device.compute_instance_id),
                uuid=device.uuid,
                pod_uid=holder.pod_uid,
                container=holder.container,
                position=position,
            )


def _made(grant: Grant, granted: Slice) -> MadePart | None:
    if grant.part is None:
        return None
    card = granted.cards.get(grant.uuid)
    mig = mig_of(card) if card is not None else None
    found = mig.instances if mig is not None else ()
    if not isinstance(grant.part, MigDevice) or grant.part not in [it.device for it in found]:
        named = grant.part.uuid if isinstance(grant.part, MigDevice) else grant.part
        raise AllocationError(
            f"{named} of card {grant.uuid} is no MIG instance of this node now: whoever manages "
            "them has removed or recreated it; delete and recreate the pod"
        )
    device = grant.part
    return MadePart(uuid=device.uuid, numbers=(device.gpu_instance_id, device.compute_instance_id))
