"""The MIG instances of this node: made for containers, kept while they live, destroyed then."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from hami_node.clock import Deadline
from hami_node.errors import AllocationError, RecordError
from hami_node.logs import kv
from hami_node.model import Device, Uuid
from hami_node.ports import Clock, Record
from hami_node.vendors.divided import PartState, PartView
from hami_node.vendors.nvidia.driver.boot import BOOT_ID
from hami_node.vendors.nvidia.mig.details import mig_of
from hami_node.vendors.nvidia.mig.driver import MigDriver, MigError, MigFailure
from hami_node.vendors.nvidia.mig.found import MigCard
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.node.mig.instances.adoption import Claim, claims_of
from hami_node.vendors.nvidia.node.mig.instances.counted import CountedCalls
from hami_node.vendors.nvidia.node.mig.instances.desk import CardLocks, Desk
from hami_node.vendors.nvidia.node.mig.instances.holders import Holders, Notes
from hami_node.vendors.nvidia.node.mig.instances.machine import Instance, Owner, State
from hami_node.vendors.nvidia.node.mig.instances.maker import Maker, Order
from hami_node.vendors.nvidia.node.mig.instances.record import InstanceRecord
from hami_node.vendors.nvidia.node.mig.instances.steps import Steps
from hami_node.vendors.nvidia.node.mig.instances.upkeep import Upkeep
from hami_node.vendors.nvidia.node.mig.instances.waits import Waits
from hami_node.vendors.nvidia.node.sharing import is_managed
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.answer import MadePart, Slice
from hami_node.vendors.on_node.parts import PartsKept, PartsSituation, PartsState

log = logging.getLogger(__name__)

PASS_S: Final = 30.0
"""All that one pass may take; what is left then is the next one's."""
CHECK_S: Final = 60.0
"""While instances exist they are compared with the last scan so often."""
RECORD_LOST: Final = "MigRecordLost"

_STATES: Final = {
    State.INTENDED: PartState.MAKING,
    State.GPU_INSTANCE: PartState.MAKING,
    State.NAMED: PartState.LIVE,
    State.DRAINING: PartState.DRAINING,
    State.EMPTIED: PartState.DRAINING,
    State.LOST: PartState.LOST,
}


class MigInstances:
    """`CardParts` of NVIDIA cards in MIG mode."""

    def __init__(
        self,
        driver: MigDriver,
        record: Record,
        settings: Callable[[], NvidiaSettings],
        cards: Callable[[], tuple[Device, ...]],
        clock: Clock,
        *,
        boot_id: Path = BOOT_ID,
        hands_off: Callable[[], str] = lambda: "",
    ) -> None:
        """Read the record: the first scan has to know which instances are this node's own.

        Args:
            driver: MIG of this node's cards.
            record: what is remembered over restarts.
            settings: returns those in force.
            cards: returns the cards of the last scan.
            clock: for waits between attempts.
            boot_id: tells one boot of the node from another.
            hands_off: returns why nothing may be made or destroyed now; "" where it may.
        """
        self._settings, self._cards, self._clock = settings, cards, clock
        holders = Holders()
        calls = CountedCalls(driver)
        instances = InstanceRecord(record, boot_id)
        self._desk = Desk(
            driver=calls,
            record=instances,
            steps=Steps(calls, instances),
            holders=holders,
            notes=Notes(holders),
            locks=CardLocks(),
            settings=settings,
            hands_off=hands_off,
        )
        self._failures = calls.failures
        self._waits = Waits(clock)
        self._maker, self._upkeep = Maker(self._desk), Upkeep(self._desk, self._waits)
        self._keeping = threading.Lock()
        self._checked: dict[Uuid, MigCard | None] = {}
        self._unproved: frozenset[Claim] = frozenset()

    # -- making ------------------------------------------------------------------------------------
    def make(self, granted: Slice, deadline: Deadline) -> tuple[MadePart | None, ...]:
        """The instances that the grants name; see `CardParts`."""
        return tuple(
            self._made(granted, position, deadline) for position in range(len(granted.grants))
        )

    def _made(self, granted: Slice, position: int, deadline: Deadline) -> MadePart | None:
        grant = granted.grants[position]
        card = granted.cards.get(grant.uuid)
        if grant.part is None and (card is None or card.mode != Mode.MIG):
            return None
        if card is None or not is_managed(card, self._settings()):
            raise AllocationError(
                f"the reservation names a MIG instance of {grant.uuid}, which this node does not "
                "offer: delete the pod so that its controller makes a new one"
            )
        owner = Owner(pod_uid=granted.pod_uid, container=granted.container.name, position=position)
        order = Order(owner=owner, container=granted.container, grant=grant, card=card)
        try:
            self._clear_elsewhere(order, deadline)
            named = self._on_card(order, deadline)
        except MigError as e:
            raise AllocationError(_refusal(card.uuid, e)) from e
        except RecordError as e:
            raise AllocationError(f"no MIG instance is made without its record: {e}") from e
        numbers = (named.gpu_instance_id or 0, named.compute_instance_id or 0)
        return MadePart(uuid=named.uuid, numbers=numbers)

    def _on_card(self, order: Order, deadline: Deadline) -> Instance:
        what = f"a MIG instance is made for {self._desk.holders.name_of(order.owner.pod_uid)}"
        with self._desk.locks.on(order.uuid, what, deadline.left_s()) as is_ours:
            if not is_ours:
                raise AllocationError(self._still_busy(order.uuid))
            return self._maker.present(order, deadline)

    def _clear_elsewhere(self, order: Order, deadline: Deadline) -> None:
        """Remove what the owner has on another card than the one reserved now."""
        kept = self._desk.record.of(order.owner)
        if kept is None or kept.card == order.uuid:
            return
        with self._desk.locks.on(kept.card, "a MIG instance moves", deadline.left_s()) as is_ours:
            if not is_ours:
                raise AllocationError(self._still_busy(kept.card))
            self._maker.clear(order.owner, deadline)

    def _still_busy(self, card: Uuid) -> str:
        what = self.in_use().get(card, "its instances are being changed")
        return f"{card}: {what}, which has taken too long to wait for"

    # -- keeping -----------------------------------------------------------------------------------
    def keep(self, situation: PartsSituation) -> PartsKept:
        """One pass; see `CardParts`."""
        with self._keeping:
            try:
                next_s = self._keep(situation)
            except Exception:
                log.exception("mig_pass_failed")
                next_s = CHECK_S
            return PartsKept(notes=self._desk.notes.take(), next_s=next_s)

    def in_use(self) -> Mapping[Uuid, str]:
        """Cards that are worked on; see `CardParts`."""
        return self._desk.locks.busy()

    def _keep(self, situation: PartsSituation) -> float | None:
        desk = self._desk
        own = desk.record.all()
        desk.holders.learn(situation, {owner.pod_uid for owner in own})
        deadline = Deadline.after(PASS_S, self._clock.monotonic)
        claims = self._new_claims(own)
        waits_for: list[float] = []
        for card in sorted(self._cards(), key=lambda card: card.uuid):
            on_card = [claim for claim in claims if claim.card == card.uuid]
            if not is_managed(card, self._settings()) or not self._has_work(card, on_card):
                continue
            if deadline.left_s() <= 0 or not self._keep_card(card, on_card, deadline):
                waits_for.append(1.0)
                if desk.locks.count():
                    break  # the driver does one thing after another: pods come first
        self._say_lost(claims)
        return self._tidied(waits_for)

    def _tidied(self, waits_for: list[float]) -> float | None:
        """Forget what is over; seconds until the next pass."""
        desk = self._desk
        try:
            desk.record.flush()
        except RecordError as e:
            log.warning("mig_record_unwritten", extra=kv(reason=str(e)))
            waits_for.append(CHECK_S)
        left = desk.record.all()
        self._waits.keep_only({*left, *(card.uuid for card in self._cards())})
        desk.notes.forget(
            key for key in desk.notes.told() if isinstance(key, Owner) and key not in left
        )
        next_s = self._waits.next_s()
        waits_for += [CHECK_S] * bool(left) + ([] if next_s is None else [next_s])
        return min(waits_for, default=None)

    def _new_claims(self, own: Mapping[Owner, Instance]) -> tuple[Claim, ...]:
        """What containers on record claim that is not known, and was not looked for in vain."""
        found = [
            claim
            for holder in self._desk.holders.all()
            for claim in claims_of(holder)
            if claim.owner not in own
        ]
        self._unproved &= frozenset(found)
        return tuple(claim for claim in found if claim not in self._unproved)

    def _has_work(self, card: Device, claims: list[Claim]) -> bool:
        """True where a look at the card is worth its calls."""
        if not self._waits.is_due(card.uuid):
            return False
        own = [each for each in self._desk.record.on(card.uuid) if self._upkeep.is_due(each.owner)]
        if claims or any(not self._upkeep.is_settled(each) for each in own):
            return True
        scan = mig_of(card)
        if scan is None or self._checked.get(card.uuid) == scan:
            return False
        return not all(_is_shown(each, scan) for each in own)

    def _keep_card(self, card: Device, claims: list[Claim], deadline: Deadline) -> bool:
        """False where something is left to do, because others work on cards, or wait to."""
        what = "its MIG instances are compared with the record"
        with self._desk.locks.on(card.uuid, what, 0) as is_ours:
            if not is_ours:
                return False
            try:
                if not self._upkeep.keep(card.uuid, claims, deadline):
                    return False
                self._waits.done(card.uuid)
                self._checked[card.uuid] = mig_of(card)
                on_record = self._desk.record.all()
                self._unproved |= {claim for claim in claims if claim.owner not in on_record}
            except (MigError, RecordError) as e:
                log.warning("mig_card_not_kept", extra=kv(card=card.uuid, error=str(e)))
                self._waits.put_off(card.uuid, str(e))
            except Exception as e:
                log.exception("mig_card_failed", extra=kv(card=card.uuid))
                self._waits.put_off(card.uuid, type(e).__name__)
            return True

    def _say_lost(self, claims: tuple[Claim, ...]) -> None:
        """What we have answered is on record, unless the record was lost."""
        lost = [claim for claim in claims if claim.uuids]
        if not lost:
            return
        found = [claim for claim in lost if self._desk.record.of(claim.owner) is not None]
        self._desk.notes.tell(
            RECORD_LOST,
            RECORD_LOST,
            f"the record of this node's MIG instances was lost: {len(found)} of {len(lost)} that "
            "containers hold were found again; instances that nobody holds are taken for somebody "
            "else's, and stay until an administrator removes them",
        )

    def state(self) -> PartsState:
        """What is on record; see `CardParts`."""
        found = self._desk.record.all()
        return PartsState(
            own=tuple(self._shown(found[owner]) for owner in sorted(found)),
            hands_off=self._desk.hands_off(),
            failures=self._failures(),
        )

    def _shown(self, instance: Instance) -> PartView:
        stuck, owner = self._upkeep.stuck(instance.owner), instance.owner
        ids = (instance.gpu_instance_id, instance.compute_instance_id)
        return PartView(
            card=instance.card,
            kind=instance.profile,
            start=instance.placement.start,
            size=instance.placement.size,
            state=PartState.STALE if stuck else _STATES[instance.state],
            numbers=tuple(number for number in ids if number is not None),
            uuid=instance.uuid,
            why=self._waits.why(owner),
            pod_uid=owner.pod_uid,
            container=owner.container,
            position=owner.position,
        )


def _is_shown(instance: Instance, scan: MigCard) -> bool:
    """True where the last scan shows the instance, or could not tell."""
    return bool(scan.problem) or any(
        each.gpu_instance_id == instance.gpu_instance_id
        and each.placement == instance.placement
        and (each.device is None or each.device.uuid == instance.uuid)
        for each in scan.instances
    )


def _refusal(card: Uuid, error: MigError) -> str:
    """What the user reads."""
    match error.reason:
        case MigFailure.NO_RIGHTS:
            return (
                f"this daemon may not make MIG instances on {card}: apply the overlay for MIG "
                f"(docs/mig.md): {error}"
            )
        case MigFailure.UNANSWERED:
            return (
                f"the driver has not made the MIG instance on {card} in time: {error}; what was "
                "begun is undone: delete the pod so that its controller makes a new one"
            )
        case _:
            return f"the MIG instance on {card} can't be made: {error}"
