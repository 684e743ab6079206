"""Makes the instance that a grant names, or says why it can't be had."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from hami_node.clock import Deadline
from hami_node.errors import AllocationError, RecordError, WireError
from hami_node.logs import kv
from hami_node.model import Container, Device, Grant, Uuid
from hami_node.vendors.nvidia.mig.driver import MigError, MigFailure
from hami_node.vendors.nvidia.mig.layout import MigCard, MigInstance, MigPlacement
from hami_node.vendors.nvidia.node.mig.holders import Holders, Notes
from hami_node.vendors.nvidia.node.mig.reconcile import (
    Instance,
    Judged,
    Owner,
    State,
    reconcile,
    shown_place,
)
from hami_node.vendors.nvidia.node.mig.record import MigRecord
from hami_node.vendors.nvidia.node.mig.steps import Steps
from hami_node.vendors.nvidia.node.mig.wanted import Wanted, wanted_by
from hami_node.vendors.nvidia.requests import gpu_ask_of
from hami_node.vendors.nvidia.settings import NvidiaSettings

log = logging.getLogger(__name__)

TRIES: Final = 8
PAUSE_S: Final = 0.25
"""How often, and after which pause, a place is looked at again that may be free in a moment: the
processes of a pod that has just ended take a while to go."""
LONGEST_TRIES: Final = 24
MAKING_S: Final = 2.0
"""How often where only the driver is awaited, which may call an instance in use for seconds after
its last compute instance is gone; and what is left of the time for making the new one then."""

SMALLER: Final = "MigInstanceSmaller"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be made: one grant of one container."""

    owner: Owner
    container: Container
    grant: Grant
    card: Device

    @property
    def uuid(self) -> Uuid:
        """The card's."""
        return self.card.uuid


class Maker:
    """Serves one order at a time on a card: the caller holds the card's lock.

    Raises (every method): AllocationError, MigError, RecordError.
    """

    def __init__(
        self,
        record: MigRecord,
        steps: Steps,
        holders: Holders,
        notes: Notes,
        settings: Callable[[], NvidiaSettings],
    ) -> None:
        """Nothing is done yet; `settings` returns those in force."""
        self._record, self._steps, self._settings = record, steps, settings
        self._holders, self._notes = holders, notes

    def present(self, order: Order, deadline: Deadline) -> Instance:
        """The instance, named: the owner's own if it has one that fits, else a new one."""
        look = self._look(order.uuid, deadline)
        kept, own = self._record.of(order.owner), self._own(order.owner, look)
        if kept is not None and own is not None and _is_as_reserved(order, kept, own):
            return kept
        wanted = wanted_by(
            order.grant,
            order.card,
            look.profiles,
            self._settings().known_mig_geometries,
        )
        if kept is not None and own is not None:
            if kept.profile_id != wanted.profile.id or wanted.place not in (None, kept.placement):
                self._clear(kept, own, deadline)
            elif (finished := self._finished(kept, own, deadline)) is not None:
                return finished
            look = self._look(order.uuid, deadline)
        made = self._new(order, wanted, look, deadline)
        self._compare_with_ask(order, wanted)
        return made

    def clear(self, owner: Owner, deadline: Deadline) -> None:
        """Remove what the owner has on its card: it is to have something else."""
        kept = self._record.of(owner)
        if kept is not None:
            own = self._own(owner, self._steps.look(kept.card, deadline))
            self._clear(kept, own or Judged(), deadline)

    def _look(self, card: Uuid, deadline: Deadline) -> MigCard:
        """The card as it is now, if instances of it can be had at all."""
        now = self._steps.look(card, deadline)
        if not now.is_enabled:
            raise AllocationError(
                f"{card} is not in MIG mode, and the reservation names an instance of it: switch "
                "MIG mode on again, or delete the pod so that its controller makes a new one"
            )
        if now.problem:
            raise AllocationError(f"{card}: its MIG instances can't be read: {now.problem}")
        return now

    def _own(self, owner: Owner, look: MigCard) -> Judged | None:
        """What the owner has on record, after a look at its card."""
        kept = self._record.of(owner)
        return None if kept is None else reconcile((kept,), look, lambda _: False)[0]

    def _clear(self, kept: Instance, own: Judged, deadline: Deadline) -> None:
        if own.instance is None or own.instance.state is State.LOST:
            self._record.learn(kept.owner, None)
            return
        if own.stays:
            raise AllocationError(
                f"the container has {kept.where}, which its reservation no longer names, and "
                f"{own.stays}"
            )
        self._steps.remove(own.instance, deadline)

    def _finished(self, kept: Instance, own: Judged, deadline: Deadline) -> Instance | None:
        """What the owner has already, brought to its end; None where a new one has to be made."""
        if own.doubt:
            raise AllocationError(f"{kept.where} is not finished, and {own.doubt}")
        now = own.instance
        self._record.learn(kept.owner, now)
        if now is None or now.state is State.NAMED:
            return now
        if now.given:  # its container has lost it
            self._clear(now, own, deadline)
            return None
        return self._steps.name(now) if now.uuid else self._steps.complete(now, deadline)

    def _new(self, order: Order, wanted: Wanted, look: MigCard, deadline: Deadline) -> Instance:
        place = self._free_place(order, wanted, look, deadline)
        instance = Instance(
            owner=order.owner,
            card=order.uuid,
            profile=wanted.profile.name,
            profile_id=wanted.profile.id,
            placement=place,
            state=State.INTENDED,
        )
        if deadline.left_s() <= 0:
            raise AllocationError(f"no time was left to make {instance.where}")
        try:
            return self._steps.make(instance, deadline)
        except MigError as e:
            if e.reason is not MigFailure.UNANSWERED:
                self._undo(order.owner, deadline)
            if e.reason is MigFailure.NO_ROOM:
                there = self._others(order, self._look(order.uuid, deadline))
                raise self._taken(order, wanted, there) from e
            raise

    def _undo(self, owner: Owner, deadline: Deadline) -> None:
        """Remove what was begun, as it is found; what can't be removed now is the next pass's."""
        begun = self._record.of(owner)
        if begun is None:
            return
        try:
            own = self._own(owner, self._steps.look(begun.card, deadline))
            if own is not None and not own.stays:
                self._clear(begun, own, deadline)
        except (MigError, RecordError) as e:
            log.warning("mig_instance_left", extra=kv(instance=begun.where, error=str(e)))

    def _free_place(
        self, order: Order, wanted: Wanted, look: MigCard, deadline: Deadline
    ) -> MigPlacement:
        """Where the instance goes; what of ours is in its way and idle is destroyed."""
        for tries in range(1, LONGEST_TRIES + 1):
            there = self._others(order, look)
            why = {id(each): self._why(order, each) for each in there}
            place = wanted.place_beside(
                live=[each.what[0] for each in there if each.is_wanted],
                held=[each.what[1] for each in there if why[id(each)]],
                costly=[each.what[1] for each in there if not why[id(each)]],
            )
            if place is not None and self._is_cleared(place, there, deadline):
                return place
            is_passing = any(each.instance is not None for each in _in_the_way(wanted, there))
            if tries >= TRIES and (place is None or deadline.left_s() <= MAKING_S):
                break
            if (place is None and not is_passing) or not deadline.pause(PAUSE_S):
                break
            look = self._look(order.uuid, deadline)
        raise self._taken(order, wanted, there)

    def _is_cleared(self, place: MigPlacement, there: Sequence[Judged], deadline: Deadline) -> bool:
        """Destroy what is in the way of a place; False where a process was faster."""
        for each in there:
            if each.instance is not None and each.what[1].overlaps(place):
                try:
                    self._steps.remove(each.instance, deadline)
                except MigError as e:
                    if e.reason is not MigFailure.BUSY:
                        raise
                    return False
        return True

    def _others(self, order: Order, look: MigCard) -> tuple[Judged, ...]:
        """What is on the card beside what the owner has, and what is kept for others there.

        What is on record, is not there and is nobody's is forgotten first: a driver may give what
        is made at its place the same UUID.
        """
        own = [each for each in self._record.on(order.uuid) if each.owner != order.owner]
        there = []
        for each in reconcile(own, look, self._holders.is_live):
            is_wanted = each.is_wanted and self._holders.are_known
            is_kept = each.instance is not None and is_wanted
            if each.found is not None or is_kept or each.doubt:
                there.append(each)
            elif each.owner is not None and (each.instance is None or not each.is_wanted):
                self._record.learn(each.owner, None)
        return tuple(there)

    def _why(self, order: Order, there: Judged) -> str:
        return there.in_the_way(order.uuid, self._holders.name_of)

    def _taken(self, order: Order, wanted: Wanted, there: Sequence[Judged]) -> AllocationError:
        what = wanted.profile.name
        if wanted.place is not None:
            what = shown_place(what, wanted.place)
        reasons = "; ".join(
            self._why(order, each)
            or f"{shown_place(*each.what)} is being destroyed, and the driver says that it is "
            "still in use"
            for each in _in_the_way(wanted, there)
        )
        return AllocationError(
            f"{what} of {order.uuid} can't be made: {reasons or 'the driver finds no room for it'}"
        )

    def _compare_with_ask(self, order: Order, wanted: Wanted) -> None:
        """Say it where a geometry's text promises more memory than the instance has.

        HAMi 2.5 to 2.9 serve it all the same: their schedulers know the text only.
        """
        grant, has_mib = order.grant, wanted.profile.memory_mib
        if wanted.place is not None or grant.memory_mib <= has_mib:
            return
        try:
            ask = gpu_ask_of(order.container, self._settings())
        except WireError:
            ask = None
        asked_mib = ask.memory_mib_on(order.card.memory_mib) if ask else grant.memory_mib
        if asked_mib > has_mib:
            self._notes.tell(
                order.owner,
                SMALLER,
                f"container {order.container.name} asks for {asked_mib} MiB and has a "
                f"{wanted.profile.name} of {has_mib} MiB, because knownMigGeometries says "
                f"{grant.memory_mib} MiB: correct the number there",
                order.owner.pod_uid,
            )


def _is_as_reserved(order: Order, kept: Instance, own: Judged) -> bool:
    """True for a whole instance at the reserved place, whatever the driver says of profiles now."""
    part = order.grant.part
    return (
        isinstance(part, MigInstance)
        and (kept.card, kept.profile, kept.placement) == (order.uuid, part.profile, part.placement)
        and kept.state is State.NAMED
        and own.instance == kept
        and not own.doubt
    )


def _in_the_way(wanted: Wanted, there: Sequence[Judged]) -> tuple[Judged, ...]:
    place = wanted.place
    return tuple(each for each in there if place is None or each.what[1].overlaps(place))
