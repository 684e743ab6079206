"""Makes the instance that a grant names, or says why it can't be had."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from hami_node.clock import Deadline
from hami_node.errors import AllocationError, RecordError, WireError
from hami_node.logs import kv
from hami_node.model import Container, Device, Grant, Uuid
from hami_node.vendors.nvidia.mig.driver import MigError, MigFailure
from hami_node.vendors.nvidia.mig.found import MigCard
from hami_node.vendors.nvidia.mig.layout import MigInstance, MigPlacement
from hami_node.vendors.nvidia.mig_rules import known_geometries
from hami_node.vendors.nvidia.node.mig.instances.desk import Desk
from hami_node.vendors.nvidia.node.mig.instances.machine import (
    Action,
    Instance,
    Owner,
    State,
    action_for,
    shown_place,
    sighted,
)
from hami_node.vendors.nvidia.node.mig.instances.places import Occupant, occupants, stays
from hami_node.vendors.nvidia.node.mig.instances.wanted import Wanted, wanted_by
from hami_node.vendors.nvidia.requests import gpu_ask_of

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

    def __init__(self, desk: Desk) -> None:
        """Nothing is done yet."""
        self._desk = desk

    def present(self, order: Order, deadline: Deadline) -> Instance:
        """The instance, named: the owner's own if it has one that fits, else a new one."""
        now = self.look(order.uuid, deadline)
        kept = self._kept_as_reserved(order, now)
        if kept is not None:
            return self._given(kept)
        wanted = wanted_by(
            order.grant,
            order.card,
            now.profiles,
            known_geometries(self._desk.settings().known_mig_geometries),
        )
        kept = self._kept(order, wanted, now, deadline)
        if kept is None:
            kept = self._new(order, wanted, deadline)
            self._compare_with_ask(order, wanted)
        return self._given(kept)

    def look(self, card: Uuid, deadline: Deadline) -> MigCard:
        """The card as it is now, if instances of it can be had at all."""
        now = self._desk.driver.look(card, deadline)
        if not now.is_enabled:
            raise AllocationError(
                f"{card} is not in MIG mode, and the reservation names an instance of it: switch "
                "MIG mode on again, or delete the pod so that its controller makes a new one"
            )
        if now.problem:
            raise AllocationError(f"{card}: its MIG instances can't be read: {now.problem}")
        return now

    def clear(self, owner: Owner, deadline: Deadline) -> None:
        """Remove what the owner has on its card: it is to have something else."""
        instance = self._desk.record.of(owner)
        if instance is None:
            return
        if instance.state is State.LOST:
            self._desk.record.learn(owner, None)
            return
        sight = sighted(instance, self._desk.driver.look(instance.card, deadline))
        if sight.instance is None or sight.instance.state is State.LOST:
            self._desk.record.learn(owner, None)
            return
        reason = sight.doubt or (stays(sight.found) if sight.found else "it can't be found")
        if reason:
            raise AllocationError(
                f"the container has {instance.where}, which its reservation no longer names, and "
                f"{reason}"
            )
        self._may_change(instance.card)
        self._desk.steps.remove(sight.instance, deadline)

    def _given(self, named: Instance) -> Instance:
        return named if named.given == named.uuid else self._desk.steps.give(named)

    def _kept_as_reserved(self, order: Order, now: MigCard) -> Instance | None:
        """The whole instance at the reserved place, whatever the driver says of profiles now."""
        kept, part = self._desk.record.of(order.owner), order.grant.part
        if kept is None or kept.card != order.uuid or not isinstance(part, MigInstance):
            return None
        if (kept.profile, kept.placement) != (part.profile, part.placement):
            return None
        sight = sighted(kept, now)
        is_whole = kept.state is State.NAMED and sight.instance == kept and not sight.doubt
        return kept if is_whole else None

    def _kept(
        self, order: Order, wanted: Wanted, now: MigCard, deadline: Deadline
    ) -> Instance | None:
        """What the owner has already, brought to its end; what does not fit is removed."""
        kept = self._desk.record.of(order.owner)
        if kept is None:
            return None
        is_fitting = kept.profile_id == wanted.profile.id and wanted.place in (None, kept.placement)
        if not is_fitting:
            self.clear(order.owner, deadline)
            return None
        sight = sighted(kept, now)
        if sight.doubt:
            raise AllocationError(f"{kept.where} is not finished, and {sight.doubt}")
        self._desk.record.learn(order.owner, sight.instance)
        if sight.instance is None:
            return None
        match action_for(sight.instance, is_wanted=True):
            case Action.NOTHING:
                return sight.instance
            case Action.NAME:
                return self._desk.steps.name(sight.instance)
            case Action.COMPLETE:
                self._may_change(order.uuid)
                return self._desk.steps.complete(sight.instance, deadline)
            case _:
                self._may_change(order.uuid)
                self._desk.record.learn(order.owner, None)
                return None

    def _new(self, order: Order, wanted: Wanted, deadline: Deadline) -> Instance:
        self._may_change(order.uuid)
        place = self._free_place(order, wanted, deadline)
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
            return self._desk.steps.make(instance, deadline)
        except MigError as e:
            if e.reason is not MigFailure.UNANSWERED:
                self._undo(order.owner, deadline)
            if e.reason is MigFailure.NO_ROOM:
                raise self._taken(order, wanted, self._others(order, deadline)) from e
            raise

    def _undo(self, owner: Owner, deadline: Deadline) -> None:
        """Remove what was begun, as it is found; what can't be removed now is the next pass's."""
        begun = self._desk.record.of(owner)
        if begun is None:
            return
        try:
            sight = sighted(begun, self._desk.driver.look(begun.card, deadline))
            if sight.instance is None or sight.instance.state is State.LOST:
                self._desk.record.learn(owner, sight.instance)
            elif not sight.doubt:
                self._desk.steps.remove(sight.instance, deadline)
        except (MigError, RecordError) as e:
            log.warning("mig_instance_left", extra=kv(instance=begun.where, error=str(e)))

    def _free_place(self, order: Order, wanted: Wanted, deadline: Deadline) -> MigPlacement:
        """Where the instance goes; what of ours is in its way and idle is destroyed."""
        for tries in range(1, LONGEST_TRIES + 1):
            there = self._others(order, deadline)
            place = wanted.place_beside(
                live=[each.profile for each in there if each.is_live],
                held=[each.placement for each in there if each.why],
                costly=[each.placement for each in there if not each.why],
            )
            if place is not None and self._is_cleared(place, there, deadline):
                return place
            is_passing = any(each.is_passing for each in _in_the_way(wanted, there))
            if tries >= TRIES and (place is None or deadline.left_s() <= MAKING_S):
                break
            if (place is None and not is_passing) or not deadline.pause(PAUSE_S):
                break
        raise self._taken(order, wanted, there)

    def _is_cleared(
        self, place: MigPlacement, there: tuple[Occupant, ...], deadline: Deadline
    ) -> bool:
        """Destroy what is in the way of a place; False where a process was faster."""
        for each in there:
            if each.instance is not None and each.placement.overlaps(place):
                try:
                    self._desk.steps.remove(each.instance, deadline)
                except MigError as e:
                    if e.reason is not MigFailure.BUSY:
                        raise
                    return False
        return True

    def _others(self, order: Order, deadline: Deadline) -> tuple[Occupant, ...]:
        """What is on the card beside what the owner has, as it is now."""
        own = [each for each in self._desk.record.on(order.uuid) if each.owner != order.owner]
        holders = self._desk.holders
        now = self.look(order.uuid, deadline)
        return occupants(order.uuid, now, own, holders.is_over, holders.name_of)

    def _taken(self, order: Order, wanted: Wanted, there: tuple[Occupant, ...]) -> AllocationError:
        what = wanted.profile.name
        if wanted.place is not None:
            what = shown_place(what, wanted.place)
        reasons = "; ".join(each.why or _leaving(each) for each in _in_the_way(wanted, there))
        return AllocationError(
            f"{what} of {order.uuid} can't be made: {reasons or 'the driver finds no room for it'}"
        )

    def _may_change(self, card: Uuid) -> None:
        reason = self._desk.hands_off()
        if reason:
            raise AllocationError(f"{card}: no MIG instance is made now: {reason}")

    def _compare_with_ask(self, order: Order, wanted: Wanted) -> None:
        """Say it where a geometry's text promises more memory than the instance has.

        HAMi 2.5 to 2.9 serve it all the same: their schedulers know the text only.
        """
        grant, has_mib = order.grant, wanted.profile.memory_mib
        if wanted.place is not None or grant.memory_mib <= has_mib:
            return
        try:
            ask = gpu_ask_of(order.container, self._desk.settings())
        except WireError:
            ask = None
        asked_mib = ask.memory_mib_on(order.card.memory_mib) if ask else grant.memory_mib
        if asked_mib > has_mib:
            self._desk.notes.tell(
                order.owner,
                SMALLER,
                f"container {order.container.name} asks for {asked_mib} MiB and has a "
                f"{wanted.profile.name} of {has_mib} MiB, because knownMigGeometries says "
                f"{grant.memory_mib} MiB: correct the number there",
                order.owner.pod_uid,
            )


def _leaving(idle: Occupant) -> str:
    what = shown_place(idle.profile, idle.placement)
    return f"{what} is being destroyed, and the driver says that it is still in use"


def _in_the_way(wanted: Wanted, there: tuple[Occupant, ...]) -> tuple[Occupant, ...]:
    if wanted.place is None:
        return there
    return tuple(each for each in there if each.placement.overlaps(wanted.place))
