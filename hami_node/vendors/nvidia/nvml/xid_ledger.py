"""Which cards an XID has taken out, and what brings them back.

Some XIDs mean that the card has to be reset. It stays out until that is seen or said: the node has
booted again, the driver had lost the card and has it again, or an operator clears it. These faults
are on record, so that a restart of the daemon changes nothing. After any other critical XID the
card comes back by itself, each time after a longer quiet time.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from hami_node.errors import RecordError
from hami_node.logs import kv
from hami_node.model import Uuid
from hami_node.ports import Clock, Record
from hami_node.vendors.nvidia.driver import BOOT_ID, read_boot_id
from hami_node.wire import names

log = logging.getLogger(__name__)

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs that a faulty program causes, not a faulty card. Source: HAMi 2.9."""

RESET_XIDS: Final = frozenset(
    {46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 155, 156, 158}
)
"""XIDs after which a card has to be reset.

Source: NVIDIA's XID catalog (docs.nvidia.com/deploy/xid-errors): those whose immediate action is to
reset the GPU or to restart the machine, and 48 and 74, whose workflows end there.
"""

XID_MEANINGS: Final = {
    46: "the GPU stopped processing",
    48: "double bit ECC error",
    61: "microcontroller breakpoint or warning",
    62: "microcontroller halt",
    63: "row remapping or page retirement",
    64: "row remapping or page retirement failed",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "high single-bit ECC error rate",
    94: "contained ECC error",
    95: "uncontained ECC error",
    110: "security fault",
    119: "GSP does not answer",
    120: "GSP error",
    136: "link training failed",
    140: "unrecovered ECC error",
    143: "GPU initialization error",
}
UNKNOWN_CARD: Final = Uuid("")
_MAX_XID: Final = 65535
_NO_XID: Final = 0
"""Stands for every number that no XID has, or each would make a series of metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XidPolicy:
    """Which XIDs make a card unhealthy, and when it is healthy again.

    Attributes:
        is_on: whether events are received.
        ignored: XIDs that are counted and change nothing.
        critical: XIDs that make a card unhealthy; None: all that are not ignored.
        clean_passes: passes in a row that the card must answer in full,
        quiet_s: and seconds since its last critical XID, before it is healthy again; doubled each
            time that it comes back and fails again,
        longest_quiet_s: up to this,
        forgotten_s: and started afresh after so long without a critical XID.
    """

    is_on: bool = True
    ignored: frozenset[int] = APPLICATION_XIDS
    critical: frozenset[int] | None = None
    clean_passes: int = 3
    quiet_s: float = 10.0
    longest_quiet_s: float = 3600.0
    forgotten_s: float = 6 * 3600.0

    def is_critical(self, xid: int) -> bool:
        """True when that XID makes a card unhealthy."""
        return xid not in self.ignored and (self.critical is None or xid in self.critical)

    def patience_s(self, relapses: int) -> float:
        """The quiet time of a card that has failed again so often."""
        return min(self.quiet_s * 2.0 ** min(relapses, 32), self.longest_quiet_s)


class _Reset(msgspec.Struct, frozen=True):
    """A card that has to be reset. `was_gone`: the driver has lost it since."""

    xid: int
    was_gone: bool = False


class _Kept(msgspec.Struct, frozen=True):
    """The record: the cards that have to be reset, as of that boot."""

    boot_id: str
    cards: dict[str, _Reset]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fault:
    """A card that comes back by itself, if it has not come back yet."""

    xid: int
    at_s: float
    relapses: int = 0
    is_over: bool = False


class XidLedger:
    """Which cards are unhealthy because of an XID, and how often each XID occurred."""

    def __init__(self, clock: Clock, record: Record | None = None, boot_id: Path = BOOT_ID) -> None:
        """Nothing is read from the record before `open`."""
        self._clock, self._record, self._boot_path = clock, record, boot_id
        self._lock = threading.Lock()
        self._writing = threading.Lock()  # so that the newest is written last
        self._boot_id = ""
        self._resets: dict[Uuid, _Reset] = {}
        self._faults: dict[Uuid, _Fault] = {}
        self._clean: Counter[Uuid] = Counter()
        self._counts: Counter[tuple[Uuid, int]] = Counter()
        self._is_open = self._is_unwritten = False

    def open(self) -> None:
        """Take over the record, once; if its disk does not answer, the next call tries again.

        Faults of an earlier boot are over.
        """
        with self._writing:
            if self._is_open:
                return
            boot_id = read_boot_id(self._boot_path)
            try:
                kept = _decoded(self._record.load() if self._record else None)
            except RecordError:  # which has told
                return
            is_new_boot = bool(boot_id and kept.boot_id) and boot_id != kept.boot_id
            with self._lock:
                self._is_open, self._boot_id = True, boot_id
                if is_new_boot:
                    self._is_unwritten = bool(kept.cards)
                else:
                    old = {Uuid(uuid): reset for uuid, reset in kept.cards.items()}
                    self._resets = old | self._resets
        if kept.cards:
            event = "cards_reset_by_boot" if is_new_boot else "cards_wait_for_reset"
            log.warning(event, extra=kv(cards=sorted(kept.cards)))

    def count(self, uuid: Uuid, xid: int) -> int:
        """Count an event that changes nothing; returns the number as it is counted."""
        xid = xid if 0 <= xid <= _MAX_XID else _NO_XID
        with self._lock:
            self._counts[uuid, xid] += 1
        return xid

    def enter(self, uuid: Uuid, xid: int, policy: XidPolicy) -> bool:
        """Count an event. True when it makes the card unhealthy."""
        xid = self.count(uuid, xid)
        with self._lock:
            if uuid == UNKNOWN_CARD or not policy.is_critical(xid):
                return False
            self._clean[uuid] = 0
            if xid in RESET_XIDS:
                self._is_unwritten |= self._resets.get(uuid) != _Reset(xid=xid)
                self._resets[uuid] = _Reset(xid=xid)
            else:
                self._faults[uuid] = self._next_fault(uuid, xid, policy)
            return True

    def _next_fault(self, uuid: Uuid, xid: int, policy: XidPolicy) -> _Fault:
        now_s, last = self._clock.monotonic(), self._faults.get(uuid)
        if last is None or (last.is_over and now_s - last.at_s >= policy.forgotten_s):
            return _Fault(xid=xid, at_s=now_s)
        return _Fault(xid=xid, at_s=now_s, relapses=last.relapses + last.is_over)

    def note_gone(self, gone: Collection[Uuid]) -> None:
        """The driver no longer has these cards: once they answer again they have been reset."""
        with self._lock:
            for uuid in gone:
                reset = self._resets.get(uuid)
                if reset is not None and not reset.was_gone:
                    self._resets[uuid] = _Reset(xid=reset.xid, was_gone=True)
                    self._is_unwritten = True

    def note_listed(self, listed: Collection[Uuid]) -> None:
        """The driver has exactly these cards: those on record beyond them are gone."""
        self.note_gone(self.waiting() - set(listed))

    def waiting(self) -> frozenset[Uuid]:
        """The cards that have to be reset."""
        with self._lock:
            return frozenset(self._resets)

    def fault_text(self, uuid: Uuid, *, has_answered: bool, policy: XidPolicy) -> str:
        """Judge a card once a pass: why it is unhealthy; "" when it is not, or has recovered.

        Args:
            uuid: the card.
            has_answered: every query of this pass was answered, with nothing bad in it.
            policy: when a card has recovered.
        """
        with self._lock:
            self._clean[uuid] = self._clean[uuid] + 1 if has_answered else 0
            is_steady = self._clean[uuid] >= policy.clean_passes
            reset = self._resets.get(uuid)
            if reset is not None:
                is_back = reset.was_gone and is_steady
                if policy.is_critical(reset.xid) and not is_back:
                    return _reset_text(uuid, reset.xid)
                del self._resets[uuid]
                self._is_unwritten = True
                log.info("card_was_reset", extra=kv(uuid=uuid, xid=reset.xid))
            return self._passing_text(uuid, is_steady=is_steady, policy=policy)

    def _passing_text(self, uuid: Uuid, *, is_steady: bool, policy: XidPolicy) -> str:
        fault = self._faults.get(uuid)
        if fault is None or fault.is_over:
            return ""
        patience_s = policy.patience_s(fault.relapses)
        if is_steady and self._clock.monotonic() - fault.at_s >= patience_s:
            self._faults[uuid] = replace(fault, is_over=True)
            log.info("xid_recovered", extra=kv(uuid=uuid, xid=fault.xid))
            return ""
        again = f"healthy again after {patience_s:g} s without another"
        return f"critical {xid_in_words(fault.xid)}; {again}"

    def clear(self, uuids: Collection[Uuid] | None) -> tuple[Uuid, ...]:
        """Forget what these cards have (None: all); returns those that were waiting for a reset."""
        with self._lock:
            cleared = sorted(self._resets if uuids is None else self._resets.keys() & set(uuids))
            for uuid in cleared:
                del self._resets[uuid]
                self._is_unwritten = True
        self.keep()
        return tuple(cleared)

    def keep(self) -> None:
        """Have the record written if it has changed."""
        with self._writing:
            with self._lock:
                if not (self._is_open and self._is_unwritten):
                    return
                cards = {str(uuid): self._resets[uuid] for uuid in sorted(self._resets)}
                kept = _Kept(boot_id=self._boot_id, cards=cards)
                self._is_unwritten = False
            if self._record is not None:
                self._record.put(msgspec.json.encode(kept))

    def counts(self) -> Mapping[tuple[Uuid, int], int]:
        """How often each (card, XID) has occurred since start; "" is an unknown card."""
        with self._lock:
            return dict(self._counts)


def xid_in_words(xid: int) -> str:
    """The number, with its meaning where that is known."""
    meaning = XID_MEANINGS.get(xid)
    return f"XID {xid}" + (f": {meaning}" if meaning else "")


def _reset_text(uuid: Uuid, xid: int) -> str:
    return (
        f"critical {xid_in_words(xid)}; reset the card (nvidia-smi -r) or reboot the node; if the "
        f"daemon can't have seen that, annotate the node {names.NODE_CLEAR_ERRORS}={uuid}"
    )


def _decoded(payload: bytes | None) -> _Kept:
    if payload is None:
        return _Kept(boot_id="", cards={})
    try:
        return msgspec.json.decode(payload, type=_Kept)
    except msgspec.DecodeError as e:
        log.error("card_errors_unreadable", extra=kv(reason=str(e)))  # noqa: TRY400  no bug
        return _Kept(boot_id="", cards={})
