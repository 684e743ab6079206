"""The MIG instances of this node: made for containers, kept while they live, destroyed then."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from hami_node.clock import Deadline
from hami_node.errors import AllocationError, RecordError
from hami_node.logs import kv
from hami_node.model import Device, Uuid
from hami_node.ports import Clock, Record
from hami_node.vendors.divided import PartState, PartView
from hami_node.vendors.nvidia.driver import BOOT_ID
from hami_node.vendors.nvidia.mig.driver import MigDriver, MigError, MigFailure
from hami_node.vendors.nvidia.mig.layout import DriverCard, MigCard, mig_of
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.node.mig.holders import Holders, Notes
from hami_node.vendors.nvidia.node.mig.maker import Maker, Order
from hami_node.vendors.nvidia.node.mig.reconcile import (
    Claim,
    Instance,
    Judged,
    Owner,
    State,
    adopted,
    claims_of,
    reconcile,
    shown_processes,
)
from hami_node.vendors.nvidia.node.mig.record import MigRecord
from hami_node.vendors.nvidia.node.mig.steps import Steps
from hami_node.vendors.nvidia.node.sharing import is_managed
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.answer import MadePart, Slice
from hami_node.vendors.on_node.parts import PartHolder, PartsKept, PartsSituation, PartsState

log = logging.getLogger(__name__)

PASS_S: Final = 30.0
"""All that one pass may take; what is left then is the next one's."""
CHECK_S: Final = 60.0
"""While instances exist they are compared with the last scan so often."""
CHANGE_S: Final = 30.0
"""A change of the mode may reset the card."""
FIRST_WAIT_S: Final = 2.0
LONGEST_WAIT_S: Final = 300.0
RECORD_LOST: Final = "MigRecordLost"
BUSY: Final = "MigInstanceBusy"
GONE: Final = "MigInstanceGone"
SWITCHED_ON: Final = "MigModeOn"
NOT_SWITCHED: Final = "MigModeWaits"
_UNSEEN: Final = (
    "the driver shows no process on the card, but need not show those of other PID namespaces than "
    "the daemon's own: give it hostPID (docs/mig.md), or switch the mode on by hand"
)
_STATES: Final = {
    State.INTENDED: PartState.MAKING,
    State.GPU_INSTANCE: PartState.MAKING,
    State.NAMED: PartState.LIVE,
    State.LOST: PartState.LOST,
}


class MigKeeper:
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
        may_switch: bool = True,
    ) -> None:
        """Read the record: the first scan has to know which instances are this node's own.

        Args:
            driver: MIG of this node's cards.
            record: what is remembered over restarts.
            settings: returns those in force.
            cards: returns the cards of the last scan.
            clock: for waits between attempts.
            boot_id: tells one boot of the node from another.
            may_switch: the mode was asked for as the daemon started.
        """
        self._driver, self._settings, self._cards, self._clock = driver, settings, cards, clock
        self._record = MigRecord(record, boot_id)
        self._steps = Steps(driver, self._record)
        self._holders = Holders()
        self._notes = Notes(self._holders)
        self._maker = Maker(self._record, self._steps, self._holders, self._notes, settings)
        self._locks, self._waits = CardLocks(), Waits(clock)
        self._keeping = threading.Lock()
        self._checked: dict[Uuid, MigCard | None] = {}
        self._unproved: frozenset[Claim] = frozenset()
        self._stuck: Mapping[Owner, str] = {}
        self._may_switch, self._modes_tried = may_switch, set[Uuid]()
        self._modes_off: Mapping[Uuid, str] = {}

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
        what = f"a MIG instance is made for {self._holders.name_of(owner.pod_uid)}"
        kept = self._record.of(owner)
        try:
            if kept is not None and kept.card != card.uuid:  # reserved on another card before
                with self._on(kept.card, "a MIG instance moves", deadline):
                    self._maker.clear(owner, deadline)
            with self._on(card.uuid, what, deadline):
                named = self._maker.present(order, deadline)
        except MigError as e:
            raise AllocationError(_refusal(card.uuid, e)) from e
        except RecordError as e:
            raise AllocationError(f"no MIG instance is made without its record: {e}") from e
        numbers = (named.gpu_instance_id or 0, named.compute_instance_id or 0)
        return MadePart(uuid=named.uuid, numbers=numbers)

    @contextmanager
    def _on(self, card: Uuid, what: str, deadline: Deadline) -> Iterator[None]:
        """Work on a card. Raises AllocationError: others have not ended in time."""
        with self._locks.on(card, what, deadline.left_s()) as is_ours:
            if not is_ours:
                busy = self.in_use().get(card, "its instances are being changed")
                raise AllocationError(f"{card}: {busy}, which has taken too long to wait for")
            yield

    # -- keeping -----------------------------------------------------------------------------------
    def keep(self, situation: PartsSituation) -> PartsKept:
        """One pass; see `CardParts`."""
        with self._keeping:
            try:
                next_s = self._keep(situation)
            except Exception:
                log.exception("mig_pass_failed")
                next_s = CHECK_S
            return PartsKept(notes=self._notes.take(), next_s=next_s)

    def _keep(self, situation: PartsSituation) -> float | None:
        own = self._record.all()
        self._holders.learn(situation, {owner.pod_uid for owner in own})
        self._switch_modes(situation.holders)
        deadline = Deadline.after(PASS_S, self._clock.monotonic)
        claims = self._new_claims(own)
        waits_for: list[float] = []
        for card in sorted(self._cards(), key=lambda card: card.uuid):
            on_card = [claim for claim in claims if claim.card == card.uuid]
            if not is_managed(card, self._settings()) or not self._has_work(card, on_card):
                continue
            if deadline.left_s() <= 0 or not self._keep_card(card, on_card, deadline):
                waits_for.append(1.0)
                if self._locks.count():
                    break  # the driver does one thing after another: pods come first
        self._say_lost(claims)
        return self._tidied(waits_for)

    def _tidied(self, waits_for: list[float]) -> float | None:
        """Forget what is over; seconds until the next pass."""
        try:
            self._record.flush()
        except RecordError as e:
            log.warning("mig_record_unwritten", extra=kv(reason=str(e)))
            waits_for.append(CHECK_S)
        left = self._record.all()
        self._waits.keep_only({*left, *(card.uuid for card in self._cards())})
        self._notes.keep_only(lambda key: not isinstance(key, Owner) or key in left)
        next_s = self._waits.next_s()
        waits_for += [CHECK_S] * bool(left) + ([] if next_s is None else [next_s])
        return min(waits_for, default=None)

    def _new_claims(self, own: Mapping[Owner, Instance]) -> tuple[Claim, ...]:
        """What containers on record claim that is not known, and was not looked for in vain."""
        found = [
            claim
            for holder in self._holders.all()
            for claim in claims_of(holder)
            if claim.owner not in own
        ]
        self._unproved &= frozenset(found)
        return tuple(claim for claim in found if claim not in self._unproved)

    def _has_work(self, card: Device, claims: list[Claim]) -> bool:
        """True where a look at the card is worth its calls."""
        if not self._waits.is_due(card.uuid):
            return False
        own = [each for each in self._record.on(card.uuid) if self._waits.is_due(each.owner)]
        if claims or not all(map(self._is_settled, own)):
            return True
        scan = mig_of(card)
        if scan is None or self._checked.get(card.uuid) == scan:
            return False
        seen = reconcile(own, scan, lambda _: True)
        return [each.instance for each in seen if each.owner is not None] != own

    def _is_settled(self, instance: Instance) -> bool:
        """True for an instance that is where it belongs, as far as the record can tell."""
        is_whole = instance.state is State.NAMED or self._notes.is_told(instance.owner, GONE)
        return is_whole and self._holders.is_wanted(instance)

    def _keep_card(self, card: Device, claims: list[Claim], deadline: Deadline) -> bool:
        """False where something is left to do, because others work on cards, or wait to."""
        what = "its MIG instances are compared with the record"
        with self._locks.on(card.uuid, what, 0) as is_ours:
            if not is_ours:
                return False
            try:
                if not self._brought_on(card.uuid, claims, deadline):
                    return False
                self._waits.done(card.uuid)
                self._checked[card.uuid] = mig_of(card)
                on_record = self._record.all()
                self._unproved |= {claim for claim in claims if claim.owner not in on_record}
            except (MigError, RecordError) as e:
                log.warning("mig_card_not_kept", extra=kv(card=card.uuid, error=str(e)))
                self._waits.put_off(card.uuid, str(e))
            except Exception as e:
                log.exception("mig_card_failed", extra=kv(card=card.uuid))
                self._waits.put_off(card.uuid, type(e).__name__)
            return True

    def _brought_on(self, card: Uuid, claims: Sequence[Claim], deadline: Deadline) -> bool:
        """Look at the card, adopt what is proved, and bring on what is due, each judged alone.

        False where the rest is left for later, because a pod waits: the driver does one thing after
        another, and seven removals in a row take longer than a pod can wait.

        Raises:
            MigError: the card can't be looked at.
            RecordError: what is adopted can't be put on record.
        """
        look = self._steps.look(card, deadline)
        for instance in adopted(claims, look, self._record.on(card)).values():
            self._record.intend(instance)
            log.info("mig_instance_adopted", extra=kv(instance=instance.where, pod=instance.owner))
        on_record = self._record.all()
        self._stuck = {owner: why for owner, why in self._stuck.items() if owner in on_record}
        seen = reconcile(self._record.on(card), look, self._holders.is_wanted)
        # What goes makes room for what comes.
        for done, each in enumerate(sorted(seen, key=lambda each: each.is_wanted)):
            if done and self._locks.count() > 1:
                return False
            if each.owner is not None:
                self._bring_on(each.owner, each, deadline)
        return True

    def _bring_on(self, owner: Owner, seen: Judged, deadline: Deadline) -> None:
        """One instance, as far as it goes now; what can't be done is tried again later."""
        if not self._waits.is_due(owner):
            return
        try:
            why = seen.doubt or self._where_it_belongs(owner, seen, deadline)
        except (MigError, RecordError) as e:
            why = str(e)
        instance = self._record.of(owner)
        is_stuck = bool(why) and instance is not None and not seen.is_wanted
        others = {other: text for other, text in self._stuck.items() if other != owner}
        self._stuck = others | ({owner: why} if is_stuck else {})
        if not why or instance is None:
            self._waits.done(owner)
            return
        self._waits.put_off(owner, why)
        if is_stuck and self._waits.tries(owner) > 1:
            self._notes.tell(
                owner,
                BUSY,
                f"{instance.where} was made for {self._holders.name_of(owner.pod_uid)}, which "
                f"holds it no more, and can't be destroyed: {why}; nothing else can be placed "
                "there until then",
            )

    def _where_it_belongs(self, owner: Owner, seen: Judged, deadline: Deadline) -> str:
        """Why it has to wait; "" where it is where it belongs."""
        instance = seen.instance
        self._record.learn(owner, instance)
        if seen.is_gone and instance is not None and self._holders.are_known:
            self._notes.tell(
                owner,
                GONE,
                f"container {owner.container}: its MIG instance {instance.given} "
                f"({instance.where}) is gone, and a container that runs can't be given another: "
                "delete the pod, so that its controller makes a new one",
                owner.pod_uid,
            )
        if seen.is_wanted or instance is None:
            return ""
        if instance.state is State.LOST:
            self._record.learn(owner, None)
            return ""
        if seen.stays:
            return seen.stays
        self._steps.remove(instance, deadline)
        log.info("mig_instance_removed", extra=kv(instance=instance.where))
        return ""

    def _say_lost(self, claims: tuple[Claim, ...]) -> None:
        """What we have answered is on record, unless the record was lost."""
        lost = [claim for claim in claims if claim.uuids]
        if not lost:
            return
        found = [claim for claim in lost if self._record.of(claim.owner) is not None]
        self._notes.tell(
            RECORD_LOST,
            RECORD_LOST,
            f"the record of this node's MIG instances was lost: {len(found)} of {len(lost)} that "
            "containers hold were found again; instances that nobody holds are taken for somebody "
            "else's, and stay until an administrator removes them",
        )

    # -- modes -------------------------------------------------------------------------------------
    def _switch_modes(self, holders: Sequence[PartHolder] | None) -> None:
        """Switch MIG mode on where the settings ask for it, once a card: as the daemon starts.

        Hopper and later lose the mode at a reboot. Whatever is in another mode later is somebody's
        wish, and is published unhealthy.
        """
        if holders is None:
            return  # it is not known yet which containers use the cards
        cards, settings = self._cards(), self._settings()
        for card in cards:
            mig = mig_of(card)
            if mig is None or card.uuid in self._modes_tried:
                continue
            self._modes_tried.add(card.uuid)  # asked for later, by a reload, it is too late
            is_asked = self._may_switch and settings.operating_mode is Mode.MIG
            if is_asked and is_managed(card, settings) and not mig.is_enabled:
                self._switch_on(card.uuid, holders)
        is_off = {card.uuid for card in cards if not ((mig := mig_of(card)) and mig.is_enabled)}
        self._modes_off = {uuid: why for uuid, why in self._modes_off.items() if uuid in is_off}

    def _switch_on(self, card: Uuid, holders: Sequence[PartHolder]) -> None:
        with self._locks.on(card, "its MIG mode is switched on", CHANGE_S) as is_ours:
            try:
                why = self._who_uses(card, holders) if is_ours else "its instances are changed"
                why = why or self._driver.set_mode(card, is_enabled=True, deadline=self._change())
            except MigError as e:
                why = str(e)
        if not why:
            text = f"MIG mode of card {card} was switched on, as operatingmode asks"
            self._notes.tell((card, SWITCHED_ON), SWITCHED_ON, text)
            return
        self._modes_off = {**self._modes_off, card: why}
        text = f"MIG mode of card {card} is not on, though operatingmode asks for it: {why}"
        self._notes.tell((card, NOT_SWITCHED), NOT_SWITCHED, text)

    def _who_uses(self, card: Uuid, holders: Sequence[PartHolder]) -> str:
        """Who keeps the mode off, for people; "" for nobody.

        Whoever holds an instance can't use that while the mode is off, and waits for it.
        """
        for holder in holders:
            if any(grant.uuid == card and grant.part is None for grant in holder.grants):
                whose = f"container {holder.container} of pod {holder.namespace}/{holder.pod}"
                return f"{whose} uses the card: let it end, or delete its pod"
        pids = self._driver.processes(card, self._change())
        if pids is None:
            return _UNSEEN
        return f"{shown_processes(pids)} on the card: end what uses it" if pids else ""

    def _change(self) -> Deadline:
        return Deadline.after(CHANGE_S, self._clock.monotonic)

    # -- what is there -----------------------------------------------------------------------------
    def marked(self, cards: tuple[Device, ...]) -> tuple[Device, ...]:
        """See `CardParts`."""
        return tuple(map(self._marked, cards))

    def _marked(self, card: Device) -> Device:
        """The card with whose its instances are, and why it has not the wanted mode."""
        mig = mig_of(card)
        if mig is None or not isinstance(card.detail, DriverCard):
            return card
        going = [each for each in list(self._steps.going.values()) if each.card == card.uuid]
        own, stuck = (*self._record.on(card.uuid), *going), self._stuck
        ours: set[int] = set()
        stale: set[int] = set()
        for kept, seen in zip(own, reconcile(own, mig, lambda _: True), strict=False):
            if seen.found is not None:
                (stale if kept.owner in stuck else ours).add(seen.found.gpu_instance_id)
            elif kept in going and not seen.doubt:
                self._steps.going.pop(kept.owner, None)
        detail = replace(
            card.detail,
            ours=frozenset(ours - stale),
            stale=frozenset(stale),
            waits_for=self._modes_off.get(card.uuid, ""),
        )
        return replace(card, detail=detail)

    def in_use(self) -> Mapping[Uuid, str]:
        """Cards that are worked on; see `CardParts`."""
        return self._locks.busy()

    def state(self) -> PartsState:
        """What is on record; see `CardParts`."""
        found = self._record.all()
        return PartsState(
            own=tuple(self._shown(found[owner]) for owner in sorted(found)),
            waits=self._modes_off,
            failures=self._steps.failures(),
        )

    def _shown(self, instance: Instance) -> PartView:
        owner, state = instance.owner, _STATES[instance.state]
        if owner in self._stuck:
            state = PartState.STALE
        elif instance.given and instance.state is State.GPU_INSTANCE:
            is_told = self._notes.is_told(owner, GONE)
            state = PartState.LOST if is_told else PartState.DRAINING
        ids = (instance.gpu_instance_id, instance.compute_instance_id)
        return PartView(
            card=instance.card,
            kind=instance.profile,
            start=instance.placement.start,
            size=instance.placement.size,
            state=state,
            numbers=tuple(number for number in ids if number is not None),
            uuid=instance.uuid,
            why=self._waits.why(owner),
            pod_uid=owner.pod_uid,
            container=owner.container,
            position=owner.position,
        )


class CardLocks:
    """One worker on a card at a time, each card for itself."""

    def __init__(self) -> None:
        """Nobody works."""
        self._lock = threading.Lock()
        self._cards: dict[Uuid, threading.Lock] = {}
        self._busy: dict[Uuid, str] = {}
        self._count = 0

    @contextmanager
    def on(self, card: Uuid, what: str, wait_s: float) -> Iterator[bool]:
        """Work on a card, for people `what`; False where others have not ended in time."""
        with self._lock:
            mine = self._cards.setdefault(card, threading.Lock())
            self._count += 1
        try:
            if not mine.acquire(timeout=wait_s):
                yield False
                return
            try:
                with self._lock:
                    self._busy[card] = what
                yield True
            finally:
                with self._lock:
                    self._busy.pop(card, None)
                mine.release()
        finally:
            with self._lock:
                self._count -= 1

    def count(self) -> int:
        """How many work on cards, or wait to. Never waits."""
        with self._lock:
            return self._count

    def busy(self) -> Mapping[Uuid, str]:
        """Cards that are worked on, with what is done. Never waits."""
        with self._lock:
            return dict(self._busy)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wait:
    tries: int
    until_s: float
    why: str


class Waits:
    """What could not be done yet, why, and when to try again: each time after a longer wait."""

    def __init__(self, clock: Clock) -> None:
        """Nothing waits."""
        self._clock = clock
        self._waits: dict[Hashable, _Wait] = {}

    def put_off(self, key: Hashable, why: str) -> None:
        """It was tried in vain."""
        tries = self.tries(key)
        wait_s = min(FIRST_WAIT_S * 2.0 ** min(tries, 16), LONGEST_WAIT_S)
        wait = _Wait(tries=tries + 1, until_s=self._clock.monotonic() + wait_s, why=why)
        self._waits = {**self._waits, key: wait}

    def done(self, key: Hashable) -> None:
        """It is over, one way or another."""
        self._waits = {other: wait for other, wait in self._waits.items() if other != key}

    def is_due(self, key: Hashable) -> bool:
        """True for what does not wait, or has waited long enough."""
        wait = self._waits.get(key)
        return wait is None or wait.until_s <= self._clock.monotonic()

    def why(self, key: Hashable) -> str:
        """Why it waits; "" where it doesn't. Any thread may ask."""
        wait = self._waits.get(key)
        return wait.why if wait else ""

    def tries(self, key: Hashable) -> int:
        """How often it has failed in a row."""
        wait = self._waits.get(key)
        return wait.tries if wait else 0

    def next_s(self) -> float | None:
        """Seconds until something is due; None where nothing waits."""
        now_s = self._clock.monotonic()
        return min((max(each.until_s - now_s, 0.0) for each in self._waits.values()), default=None)

    def keep_only(self, keys: Iterable[Hashable]) -> None:
        """Forget all others."""
        kept = set(keys)
        self._waits = {key: wait for key, wait in self._waits.items() if key in kept}


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
