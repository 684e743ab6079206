"""Switches MIG mode on where the settings ask for it, and nobody uses the card. Never off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from hami_node.clock import Deadline
from hami_node.model import Device, Uuid
from hami_node.ports import Clock
from hami_node.vendors.nvidia.mig.details import mig_of
from hami_node.vendors.nvidia.mig.driver import MigError, ModeDriver
from hami_node.vendors.nvidia.mig.found import MigCard
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.node.sharing import is_managed
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.parts import PartHolder, PartNote, PartsKept, PartsSituation

FIRST_WAIT_S: Final = 60.0
LONGEST_WAIT_S: Final = 3600.0
"""A change that the driver has refused ends the events of all cards for a moment: rarely, then."""
LOOK_AGAIN_S: Final = 30.0
"""While a card is in use: nobody tells when a process ends."""
CHANGE_S: Final = 30.0
"""A change may reset the card."""
SWITCHED_ON: Final = "MigModeOn"
NOT_SWITCHED: Final = "MigModeWaits"
_PIDS_SHOWN: Final = 8
_UNSEEN: Final = (
    "the driver shows no process on the card, but need not show those of other PID namespaces than "
    "the daemon's own: give it hostPID (docs/mig.md), or switch the mode on by hand"
)


class _Kind(StrEnum):
    """Why a card waits; people are told once of each."""

    UNKNOWN = "unknown"
    """Not for long, so that nobody is told."""
    OUTSIDE = "outside"
    HELD = "held"
    PROCESSES = "processes"
    DRIVER = "driver"


class _Why(NamedTuple):
    kind: _Kind
    text: str


@dataclass(frozen=True, slots=True)
class _Tried:
    """An attempt that the driver has not carried out; not again before `until_s`."""

    tries: int
    until_s: float
    why: _Why


class ModeKeeper:
    """The MIG mode of this node's cards: current, pending, wanted. One thread calls `keep`."""

    def __init__(
        self, driver: ModeDriver, settings: Callable[[], NvidiaSettings], clock: Clock
    ) -> None:
        """Nothing is tried yet; `settings` returns those in force."""
        self._driver, self._settings, self._clock = driver, settings, clock
        self._tried: dict[Uuid, _Tried] = {}
        self._waits: Mapping[Uuid, str] = {}
        self._told: dict[Uuid, set[_Kind]] = {}
        self._changing: Mapping[Uuid, str] = {}

    def keep(self, cards: Sequence[Device], situation: PartsSituation, hands_off: str) -> PartsKept:
        """One pass over the cards of the last scan; `hands_off`: why none may be changed now."""
        waits: dict[Uuid, str] = {}
        notes: list[PartNote] = []
        for card in cards:
            mig = mig_of(card)
            if mig is None or mig.is_enabled or not self._is_wanted(card):
                continue
            why = self._why_not_yet(card, mig, situation, hands_off) or self._changed(card.uuid)
            if why is not None:
                waits[card.uuid] = why.text
            notes += self._noted(card.uuid, why)
        self._waits = waits
        for uuid in {*self._tried, *self._told} - waits.keys():
            self._done(uuid)
        return PartsKept(notes=tuple(notes), next_s=self._next_s())

    def waits(self) -> Mapping[Uuid, str]:
        """Cards that have not the wanted mode, and why, by the last pass. Any thread may ask."""
        return self._waits

    def changing(self) -> Mapping[Uuid, str]:
        """Cards whose mode is being changed right now, for people. Any thread may ask."""
        return self._changing

    def _is_wanted(self, card: Device) -> bool:
        settings = self._settings()
        return settings.operating_mode is Mode.MIG and is_managed(card, settings)

    def _why_not_yet(
        self, card: Device, mig: MigCard, situation: PartsSituation, hands_off: str
    ) -> _Why | None:
        """Who has to be gone before the card may be changed; None for nobody."""
        if hands_off:
            return _Why(_Kind.OUTSIDE, hands_off)
        if situation.holders is None:
            return _Why(_Kind.UNKNOWN, "it is not known yet which containers use the card")
        if holder := _who_shares(card.uuid, situation.holders):
            text = f"{holder} uses the card: let it end, or delete its pod"
            return _Why(_Kind.HELD, text)
        tried = self._tried.get(card.uuid)
        if tried is not None and self._clock.monotonic() < tried.until_s:
            return tried.why
        if mig.instances:
            return _Why(_Kind.DRIVER, "the driver lists instances though the mode is off")
        return self._who_computes(card.uuid)

    def _who_computes(self, card: Uuid) -> _Why | None:
        try:
            pids = self._driver.processes(card, self._deadline())
        except MigError as e:
            return _Why(_Kind.DRIVER, f"its processes can't be read: {e}")
        if pids is None:
            return _Why(_Kind.DRIVER, _UNSEEN)
        if not pids:
            return None
        named = ", ".join(map(str, sorted(pids)[:_PIDS_SHOWN]))
        return _Why(_Kind.PROCESSES, f"processes use the card ({named}): end them")

    def _changed(self, card: Uuid) -> _Why | None:
        """Switch the mode on; why it is not in force, or None."""
        self._changing = {card: "its MIG mode is switched on"}
        try:
            text = self._driver.set_mode(card, is_enabled=True, deadline=self._deadline())
        except MigError as e:
            text = str(e)
        finally:
            self._changing = {}
        if not text:
            return None
        tries = self._tried[card].tries + 1 if card in self._tried else 0
        wait_s = min(FIRST_WAIT_S * 2.0 ** min(tries, 16), LONGEST_WAIT_S)
        why = _Why(_Kind.DRIVER, text)
        self._tried[card] = _Tried(tries, self._clock.monotonic() + wait_s, why)
        return why

    def _deadline(self) -> Deadline:
        return Deadline.after(CHANGE_S, self._clock.monotonic)

    def _noted(self, card: Uuid, why: _Why | None) -> list[PartNote]:
        if why is None:
            text = f"MIG mode of card {card} was switched on, as operatingmode asks"
            return [PartNote(reason=SWITCHED_ON, message=text)]
        told = self._told.setdefault(card, {_Kind.UNKNOWN})
        if why.kind in told:
            return []
        told.add(why.kind)
        text = f"MIG mode of card {card} is not on, though operatingmode asks for it: {why.text}"
        return [PartNote(reason=NOT_SWITCHED, message=text)]

    def _done(self, card: Uuid) -> None:
        self._tried.pop(card, None)
        self._told.pop(card, None)

    def _next_s(self) -> float | None:
        """Seconds until it is worth another pass."""
        now_s = self._clock.monotonic()
        return min(
            (
                max(self._tried[card].until_s - now_s, 0.0) if card in self._tried else LOOK_AGAIN_S
                for card in self._waits
            ),
            default=None,
        )


def _who_shares(card: Uuid, holders: Sequence[PartHolder]) -> str:
    """A container that holds a share of the card; "" for none.

    One that holds an instance of it can't use that while the mode is off, and waits for it.
    """
    for holder in holders:
        if any(grant.uuid == card and grant.part is None for grant in holder.grants):
            return f"container {holder.container} of pod {holder.namespace}/{holder.pod}"
    return ""
