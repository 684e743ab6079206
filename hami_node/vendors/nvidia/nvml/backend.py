"""NVIDIA cards through NVML: found, queried every second, unhealthy only while a fault lasts.

Every NVML call runs on a thread of this backend; no caller ever waits for the driver without limit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from hami_node.clock import Deadline
from hami_node.config.settings import Settings
from hami_node.errors import BackendError, DeviceLost, DriverUnavailable
from hami_node.logs import kv
from hami_node.model import Device, PairScores, Uuid
from hami_node.ports import Clock, HostUse, PartError, Record
from hami_node.vendors.nvidia.driver import BOOT_ID, DriverLibrary, Validations, driver_root_of
from hami_node.vendors.nvidia.mig.layout import MigCard
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.nvml.calls import NvmlCalls
from hami_node.vendors.nvidia.nvml.cards import (
    HostSources,
    MigModes,
    Reading,
    Roster,
    enlist,
    read_card,
)
from hami_node.vendors.nvidia.nvml.health import InstanceErrors, XidWatch
from hami_node.vendors.nvidia.nvml.links import LinkedCard, LinkReader
from hami_node.vendors.nvidia.nvml.session import NvmlSession
from hami_node.vendors.nvidia.nvml.use import UseReader, sees_all_processes
from hami_node.vendors.nvidia.nvml.worker import PassWorker
from hami_node.vendors.nvidia.nvml.xid_ledger import XidLedger, XidPolicy
from hami_node.vendors.nvidia.settings import NvidiaSettings

if TYPE_CHECKING:
    from hami_node.vendors.nvidia.nvml.mig.driver import NvmlMigDriver
    from hami_node.vendors.nvidia.nvml.mig.reader import MigReader

log = logging.getLogger(__name__)

MAX_CARDS: Final = 256
"""More than this is no number of cards: a driver that counts them is not asked for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlSettings:
    """How the driver is found and queried.

    Attributes:
        library: finds and loads libnvidia-ml.so.1.
        sources: where sysfs and the system's memory are, and the preconfigured memory.
        xids: what XID events mean.
        interval_s: time between passes over the cards.
        call_limit_s: an NVML call that takes longer counts as hung.
        scan_limit_s: the longest that `scan` waits for a pass.
        event_wait_s: longest wait for an event inside NVML; what `close` may have to wait for.
        boot_id: the kernel's file with a new text for each boot.
        sees_all_processes: where the driver lists no processes, there are none.
    """

    library: DriverLibrary = field(default_factory=DriverLibrary)
    sources: HostSources = field(default_factory=HostSources)
    xids: XidPolicy = field(default_factory=XidPolicy)
    interval_s: float = 1.0
    call_limit_s: float = 5.0
    scan_limit_s: float = 6.0
    event_wait_s: float = 1.0
    boot_id: Path = BOOT_ID
    sees_all_processes: bool = True


R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """The result of a pass: cards, scores of their links, faults of cards without a UUID."""

    devices: tuple[Device, ...]
    nameless_faults: tuple[str, ...]
    pair_scores: PairScores


def nvml_settings(settings: Settings) -> NvmlSettings:
    """How the driver is queried, by the program's settings."""
    own = settings.of(NvidiaSettings)
    # who names the driver's folder waits for nobody
    marks = Validations(own.validations_dir) if own.driver_root is None else None
    return NvmlSettings(
        library=DriverLibrary(root=lambda: driver_root_of(own, marks), validations=marks),
        sources=HostSources(
            sysfs_root=settings.sysfs_root,
            preconfigured_memory_mib=own.preconfigured_memory_mib or None,
        ),
        xids=XidPolicy(ignored=frozenset(own.xids_ignored)),
        interval_s=settings.scan_interval_s,
        sees_all_processes=sees_all_processes(),
    )


class NvmlBackend:
    """The port `Backend` on the real driver. Starts nothing before the first `scan`."""

    name = "nvml"
    is_simulated = False

    def __init__(
        self, clock: Clock, settings: NvmlSettings | None = None, record: Record | None = None
    ) -> None:
        """Wire the parts. `record` keeps which cards have to be reset."""
        self._clock = clock
        self._settings = settings or NvmlSettings()
        self._session = NvmlSession(clock, self._settings.library)
        self._xids = XidLedger(clock, record, self._settings.boot_id)
        self._known: dict[Uuid, Device] = {}
        """Cards as they last answered. Only the worker's thread changes it."""
        self._instance_errors = InstanceErrors(lambda uuid: self._known.get(uuid))
        self._watch = XidWatch(
            clock,
            self._xids,
            self._instance_errors,
            lambda: self._settings.xids,
            self._on_event,
            wait_s=self._settings.event_wait_s,
        )
        self._worker = PassWorker[_Pass](
            clock,
            self._one_pass,
            self._session.close,
            interval_s=lambda: self._settings.interval_s,
            call_limit_s=self._settings.call_limit_s,
            sees_all_processes=self._settings.sees_all_processes,
        )
        self._handed_out: _Pass | str | None = None
        self._use_wanted: frozenset[Uuid] | None = None
        self._host_use: Mapping[Uuid, HostUse] = {}
        # What follows belongs to the worker's thread.
        self._nameless: tuple[str, ...] = ()
        self._armed: Mapping[Uuid, Mode] = {}
        self._links, self._uses = LinkReader(clock), UseReader(clock)
        self._memory_sources: dict[Uuid, str] = {}
        self._mig_reader: MigReader | None = None

    def scan(self) -> tuple[Device, ...]:
        """All cards after a fresh pass, sorted by (index, uuid); see `ports.Backend.scan`.

        While a card's call hangs, that card is unhealthy and the others are queried as usual. A
        pass that is slow but not hung is not waited for beyond the limit: the last result counts.

        Raises:
            DriverUnavailable: no card can be queried at all.
        """
        ticket = self._worker.request()
        self._worker.wait(ticket, self._settings.scan_limit_s)
        self._handed_out = self._outcome()
        found = self._worker.last()
        if found is None:
            call = self._worker.current()
            where = f" (in {call.function})" if call else ""
            raise DriverUnavailable(f"NVML is still busy with its first pass{where}")
        return found.devices

    def wait_for_event(self, timeout_s: float) -> bool:
        """True as soon as a pass found cards, links or a failure that `scan` did not return yet."""
        return self._worker.wait_until(lambda: self._outcome() != self._handed_out, timeout_s)

    def close(self) -> None:
        """Stop listening and querying, and close the session unless a call hangs."""
        is_quiet = self._watch.close()
        is_stopped = self._worker.stop(self._settings.call_limit_s)
        if not (is_quiet and is_stopped):
            log.warning("nvml_left_open", extra=kv(reason="an NVML call has not returned"))

    def apply(self, settings: NvmlSettings) -> None:
        """Apply changed memory, XID and interval settings, from the next pass on."""
        self._settings = replace(
            self._settings,
            sources=settings.sources,
            xids=settings.xids,
            interval_s=settings.interval_s,
        )
        self._worker.request()  # ends a wait by the old interval

    def pair_scores(self) -> PairScores:
        """Scores of all pairs of cards; empty before they are known. Never waits."""
        found = self._last_good()
        return found.pair_scores if found else {}

    def host_use(self, with_processes: Collection[Uuid] = ()) -> Mapping[Uuid, HostUse]:
        """What was read after the previous call; the next pass reads it again. Never waits."""
        self._use_wanted = frozenset(with_processes)
        return self._host_use if self._last_good() else {}

    def nameless_faults(self) -> tuple[str, ...]:
        """Faults of cards whose UUID was never read: they can't be published, only reported."""
        found = self._last_good()
        return found.nameless_faults if found else ()

    def error_counts(self) -> Mapping[tuple[Uuid, int], int]:
        """How often each (card, XID) has occurred, ignored XIDs included."""
        return self._xids.counts()

    def part_errors(self) -> tuple[PartError, ...]:
        """XIDs that named a MIG instance; see `ports.Backend`."""
        return self._instance_errors.take()

    def clear_errors(self, uuids: Collection[Uuid] | None) -> tuple[Uuid, ...]:
        """Take an operator's word that these cards (None: all) need no reset any more."""
        cleared = self._xids.clear(uuids)
        self._worker.request()
        return cleared

    def last_pass_age_s(self) -> float:
        """Seconds since a pass over the cards last ended; liveness depends on it."""
        return self._worker.age_s()

    @property
    def mig(self) -> NvmlMigDriver:
        """MIG of these cards; nothing of it is loaded before."""
        from hami_node.vendors.nvidia.nvml.mig.driver import NvmlMigDriver

        return NvmlMigDriver(self)

    def do(self, uuid: Uuid, work: Callable[[NvmlCalls, int], R], deadline: Deadline) -> R:
        """Do work about a card, by its index, in an open session; see `PassWorker.do`."""
        found = self._worker.last()
        cards = found.devices if found else ()
        index = next((card.index for card in cards if card.uuid == uuid), None)
        if index is None:
            raise DeviceLost("the driver has not listed this card")

        def begin(calls: NvmlCalls) -> R:
            self._open(calls)
            return work(calls, index)

        return self._worker.do(index, begin, deadline)

    @property
    def driver_version(self) -> str:
        """As the driver reports it; "" before the first session."""
        return self._session.driver_version

    # -- on the worker's thread -------------------------------------------------------------------

    def _one_pass(self, calls: NvmlCalls) -> _Pass:
        self._xids.open()
        self._open(calls)
        readings = self._read_all(calls)
        if any(r.is_driver_fault for r in readings) and self._may_reopen():
            self._reopen(calls)
            readings = self._read_all(calls)  # a card that blames the driver again is lost itself
        if not any(r.is_lost for r in readings):
            self._session.proved_good()
        roster = enlist(self._known, readings)
        self._xids.note_gone(roster.gone)
        if all(r.uuid for r in readings):
            self._xids.note_listed([r.uuid for r in readings if r.uuid])
        devices = tuple(self._judged(device, readings) for device in roster.devices)
        self._xids.keep()
        self._remember(devices, readings)
        self._read_use(calls, readings)
        self._listen(readings)
        self._report(roster, readings)
        return _Pass(
            devices=devices,
            nameless_faults=roster.nameless_faults,
            pair_scores=self._scores(calls, readings),
        )

    def _read_use(self, calls: NvmlCalls, readings: list[Reading]) -> None:
        """Only after somebody has asked: the first list of cards must not wait for it."""
        wanted, self._use_wanted = self._use_wanted, None
        if wanted is not None:
            self._host_use = self._uses.read(calls, readings, wanted)

    def _read_all(self, calls: NvmlCalls) -> list[Reading]:
        """Raises DriverUnavailable when the cards can't even be counted."""
        try:
            count = _count(calls)
        except DriverUnavailable:
            if not self._may_reopen():
                raise
            self._reopen(calls)
            count = _count(calls)
        hung = self._worker.hung()
        limit_s = self._settings.call_limit_s
        return [
            Reading(index=i, fault=hung[i].overdue_text(limit_s), is_lost=True)
            if i in hung
            else read_card(calls, i, self._settings.sources, self._read_mig)
            for i in range(count)
        ]

    def _may_reopen(self) -> bool:
        """True when a new session is due and closing this one would disturb no pending call."""
        if not self._session.may_reopen or self._worker.hung():
            return False
        return self.stop_listening()

    def stop_listening(self) -> bool:
        """Until the next pass; True once no NVML call of the listening thread is pending."""
        self._armed = {}
        return self._watch.disarm()

    def _open(self, calls: NvmlCalls) -> None:
        if self._session.ensure_open(calls) and self._mig_reader:
            self._mig_reader.forget()

    def _reopen(self, calls: NvmlCalls) -> None:
        self._session.reopen(calls)
        if self._mig_reader:
            self._mig_reader.forget()

    def _read_mig(
        self, calls: NvmlCalls, handle: object, index: int, uuid: Uuid, modes: MigModes
    ) -> MigCard:
        from hami_node.vendors.nvidia.nvml.mig.reader import AskedCard

        card = AskedCard(calls=calls, index=index, handle=handle)
        return self.mig_reader().scan(card, uuid, modes)

    def mig_reader(self) -> MigReader:
        """What is known of cards in MIG mode."""
        if self._mig_reader is None:
            from hami_node.vendors.nvidia.nvml.mig.reader import MigReader

            self._mig_reader = MigReader(self._clock)
        return self._mig_reader

    def _judged(self, device: Device, readings: list[Reading]) -> Device:
        """The card, unhealthy if XID events make it so."""
        reading = next((r for r in readings if r.uuid == device.uuid), None)
        xid_fault = self._xids.fault_text(
            device.uuid,
            has_answered=reading is not None and not reading.fault,
            policy=self._settings.xids,
        )
        if not device.healthy or not xid_fault:
            return device
        return replace(device, healthy=False, unhealthy_reason=xid_fault)

    def _remember(self, devices: tuple[Device, ...], readings: list[Reading]) -> None:
        """Remember cards as they last answered; a card that never answered in full, as it is."""
        answered = {r.uuid for r in readings if not r.is_lost}
        for device in devices:
            if device.uuid in answered or device.uuid not in self._known:
                self._known[device.uuid] = device

    def _listen(self, readings: list[Reading]) -> None:
        heard = [r for r in readings if self._settings.xids.is_on and not r.is_lost]
        armed = {r.uuid: r.mode for r in heard if r.uuid}
        if armed != self._armed:  # a change of the mode makes the handles bad
            self._watch.arm({r.uuid: r.handle for r in heard if r.uuid})
            self._armed = armed

    def _report(self, roster: Roster, readings: list[Reading]) -> None:
        """Log once what no device can show."""
        for reading in readings:
            source = reading.memory_source
            if reading.uuid and source and self._memory_sources.get(reading.uuid, "") != source:
                self._memory_sources[reading.uuid] = source
                log.warning(
                    "nvml_memory_not_told",
                    extra=kv(uuid=reading.uuid, memory_mib=reading.memory_mib, source=source),
                )
        if roster.nameless_faults != self._nameless:
            self._nameless = roster.nameless_faults
            for fault in roster.nameless_faults:
                log.error("nvml_card_without_identity", extra=kv(reason=fault))

    def _scores(self, calls: NvmlCalls, readings: list[Reading]) -> PairScores:
        cards = tuple(
            LinkedCard(index=r.index, uuid=r.uuid, handle=r.handle, pci_bus=r.pci_bus)
            for r in readings
            if r.uuid and not r.is_lost
        )
        return self._links.scores(calls, cards)

    def _on_event(self) -> None:
        self._worker.request()

    def _outcome(self) -> _Pass | str | None:
        """The outcome of the last pass in a comparable form: its result or its error's text."""
        try:
            return self._worker.last()
        except BackendError as e:
            return str(e)

    def _last_good(self) -> _Pass | None:
        try:
            return self._worker.last()
        except DriverUnavailable:
            return None


def _count(calls: NvmlCalls) -> int:
    """Raises DriverUnavailable: the driver does not answer, or with no number of cards."""
    answer = calls.ask("nvmlDeviceGetCount")
    if not isinstance(answer, int) or not 0 <= answer <= MAX_CARDS:
        raise DriverUnavailable("NVML call nvmlDeviceGetCount: the answer is no number of cards")
    return answer
