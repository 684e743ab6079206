"""Brings the instances of a card to where they belong: named for the living, gone for the rest."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from hami_node.clock import Deadline
from hami_node.errors import RecordError
from hami_node.logs import kv
from hami_node.model import Uuid
from hami_node.vendors.nvidia.mig.driver import MigError
from hami_node.vendors.nvidia.mig.found import MigCard
from hami_node.vendors.nvidia.node.mig.instances.adoption import Claim, adopted, missing
from hami_node.vendors.nvidia.node.mig.instances.desk import Desk
from hami_node.vendors.nvidia.node.mig.instances.machine import (
    Action,
    Instance,
    Owner,
    Sighting,
    State,
    action_for,
    sighted,
)
from hami_node.vendors.nvidia.node.mig.instances.places import occupants, stays
from hami_node.vendors.nvidia.node.mig.instances.waits import Waits

log = logging.getLogger(__name__)

BUSY: Final = "MigInstanceBusy"
GONE: Final = "MigInstanceGone"
REPLACED: Final = "MigInstanceReplaced"

_HARMLESS: Final = (Action.NOTHING, Action.NAME, Action.FORGET)
"""What changes the record only."""


class _HandsOff(Exception):
    """Nothing may be made or destroyed now; the text says why."""


class Upkeep:
    """Works on one card at a time, whose lock the caller holds; each instance is judged alone."""

    def __init__(self, desk: Desk, waits: Waits) -> None:
        """Nothing is done yet."""
        self._desk, self._waits = desk, waits
        self._stuck: Mapping[Owner, str] = {}

    def keep(self, card: Uuid, claims: Sequence[Claim], deadline: Deadline) -> bool:
        """Look at the card, adopt what is proved, and bring on what is due.

        False where the rest is left for later, because a pod waits: the driver does one thing after
        another, and seven removals in a row take longer than a pod can wait.

        Raises:
            MigError: the card can't be looked at.
            RecordError: what is adopted can't be put on record.
        """
        now = self._desk.driver.look(card, deadline)
        on_record = self._desk.record.all()
        self._stuck = {owner: why for owner, why in self._stuck.items() if owner in on_record}
        self._adopt(card, claims, now)
        own = self._desk.record.on(card)
        # What goes makes room for what comes.
        for done, instance in enumerate(sorted(own, key=self.is_wanted)):
            if done and self._desk.locks.count() > 1:
                return False
            self._bring_on(instance.owner, sighted(instance, now), deadline)
        return True

    def is_wanted(self, instance: Instance) -> bool:
        """False for what nobody holds, and for what was never given to anybody."""
        holders, uid = self._desk.holders, instance.owner.pod_uid
        return bool(instance.given) and (holders.has(uid) or not holders.is_over(uid))

    def _adopt(self, card: Uuid, claims: Sequence[Claim], now: MigCard) -> None:
        own = self._desk.record.on(card)
        found: Mapping[Owner, Instance] = adopted(claims, now, own)
        for claim in claims:
            instance = found.get(claim.owner) or missing(claim, now)
            if instance is None:
                continue
            self._desk.record.intend(instance)
            log.info("mig_instance_adopted", extra=kv(instance=instance.where, pod=claim.owner))

    def is_due(self, owner: Owner) -> bool:
        """False while something is not to be tried again yet; what is to be forgotten always is."""
        instance = self._desk.record.of(owner)
        if instance is None or (instance.state is State.LOST and not self.is_wanted(instance)):
            return True
        return self._waits.is_due(owner)

    def is_settled(self, instance: Instance) -> bool:
        """True for an instance that is where it belongs, as far as the record can tell."""
        return instance.state is State.NAMED and self.is_wanted(instance)

    def stuck(self, owner: Owner) -> str:
        """Why an instance that nobody holds is still there; "" otherwise. Any thread may ask."""
        return self._stuck.get(owner, "")

    def _bring_on(self, owner: Owner, sight: Sighting, deadline: Deadline) -> None:
        """One instance, as far as it goes now; what can't be done is tried again later."""
        if not self.is_due(owner):
            return
        is_held_back = False
        try:
            why = self._brought_on(owner, sight, deadline)
        except _HandsOff as e:
            why, is_held_back = str(e), True
        except (MigError, RecordError) as e:
            why = str(e)
        instance = self._desk.record.of(owner)
        is_stuck = bool(why) and instance is not None and not self.is_wanted(instance)
        others = {other: text for other, text in self._stuck.items() if other != owner}
        self._stuck = others | ({owner: why} if is_stuck else {})
        if not why or instance is None:
            self._waits.done(owner)
        elif is_held_back:
            self._waits.hold(owner, why)
        else:
            self._waits.put_off(owner, why)
            if self._waits.tries(owner) > 1:
                self._say_why(instance, why)

    def _brought_on(self, owner: Owner, sight: Sighting, deadline: Deadline) -> str:
        """Why it has to wait; "" where it is where it belongs."""
        instance, desk = sight.instance, self._desk
        if sight.doubt:
            return sight.doubt
        desk.record.learn(owner, instance)
        if instance is None:
            return ""
        action = action_for(instance, is_wanted=self.is_wanted(instance))
        if action in _HARMLESS:
            self._recorded(action, instance)
            return ""
        if reason := desk.hands_off():
            raise _HandsOff(reason)
        if action is Action.MAKE:
            return self._made_again(instance, deadline)
        if action is Action.REMOVE:
            return self._removed(sight, instance, deadline)
        self._compare(desk.steps.complete(instance, deadline))
        return ""

    def _recorded(self, action: Action, instance: Instance) -> None:
        if action is Action.FORGET:
            self._desk.record.learn(instance.owner, None)
        elif action is Action.NAME:
            self._compare(self._desk.steps.name(instance))
        else:
            self._compare(instance)

    def _removed(self, sight: Sighting, instance: Instance, deadline: Deadline) -> str:
        reason = stays(sight.found) if sight.found else "it can't be found"
        if reason:
            return reason
        self._desk.steps.remove(instance, deadline)
        log.info("mig_instance_removed", extra=kv(instance=instance.where))
        return ""

    def _made_again(self, lost: Instance, deadline: Deadline) -> str:
        """Make an instance that is gone at its place again, for the container that was given it."""
        desk = self._desk
        now = desk.driver.look(lost.card, deadline)
        if not now.is_enabled:
            return "the card is not in MIG mode"
        if now.problem:
            return now.problem
        profile = next(
            (
                each
                for each in sorted(now.profiles, key=lambda each: each.name != lost.profile)
                if each.name == lost.profile or each.id == lost.profile_id
            ),
            None,
        )
        if profile is None or lost.placement not in profile.placements:
            return "the card has no such profile at this place any more"
        own = [each for each in desk.record.on(lost.card) if each.owner != lost.owner]
        for each in occupants(lost.card, now, own, desk.holders.is_over, desk.holders.name_of):
            if each.placement.overlaps(lost.placement):
                return each.why or "its place is not free yet"
        again = replace(lost, profile=profile.name, profile_id=profile.id, state=State.INTENDED)
        self._compare(desk.steps.make(again, deadline))
        log.info("mig_instance_made_again", extra=kv(instance=again.where))
        return ""

    def _compare(self, instance: Instance) -> None:
        """Say it where a container was given another UUID than its instance has now."""
        if instance.given in ("", instance.uuid):
            return
        self._desk.notes.tell(
            instance.owner,
            REPLACED,
            f"container {instance.owner.container}: its MIG instance {instance.given} was gone, "
            f"and {instance.uuid} was made in its place; the container can't get that, and is "
            "refused by the container runtime when it starts again: delete the pod, so that its "
            "controller makes a new one",
            instance.owner.pod_uid,
        )

    def _say_why(self, instance: Instance, why: str) -> None:
        """What people can do something about; said once."""
        owner = instance.owner
        name = self._desk.holders.name_of(owner.pod_uid)
        if self.is_wanted(instance):
            self._desk.notes.tell(
                owner,
                GONE,
                f"container {owner.container}: its MIG instance {instance.given} "
                f"({instance.where}) is gone, and can't be made again now: {why}; delete the pod, "
                "so that its controller makes a new one",
                owner.pod_uid,
            )
        elif instance.state is not State.LOST:
            self._desk.notes.tell(
                owner,
                BUSY,
                f"{instance.where} was made for {name}, which holds it no more, and can't be "
                f"destroyed: {why}; nothing else can be placed there until then",
            )
