"""How much of a card is used, as NVML says; nothing of it decides whether the card is healthy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from hami_node.errors import BackendError
from hami_node.model import Uuid
from hami_node.ports import Clock, HostUse, PartUse
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.nvml.calls import (
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_FOUND,
    NOT_OFFERED,
    CallFailed,
    NvmlCalls,
    of_one_card,
)
from hami_node.vendors.nvidia.nvml.cards import Reading

_ABSENT: Final = NOT_OFFERED | {INVALID_ARGUMENT, NO_PERMISSION}
_UNTOLD: Final = _ABSENT | {NOT_FOUND}
"""Codes of a MIG device that is gone, or whose processes nobody without rights may see."""
PARTS_S: Final = 0.3
"""How long a pass may read MIG instances; those of the cards left over come in the next."""
_MAX_BYTES: Final = 1 << 44
_PROCESSES: Final = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetComputeRunningProcesses_v2",  # drivers before 510
)


PID_NAMESPACE: Final = Path("/proc/self/ns/pid")
_HOSTS_PID_NAMESPACE: Final = "pid:[4026531836]"
"""The kernel numbers its first namespaces itself: PROC_PID_INIT_INO."""


def sees_all_processes(link: Path = PID_NAMESPACE) -> bool:
    """True in the host's PID namespace: newer drivers list no process of another one."""
    try:
        return str(link.readlink()) == _HOSTS_PID_NAMESPACE
    except OSError:
        return False


class UseReader:
    """Queries cards and MIG instances. Only the worker's thread uses it."""

    def __init__(self, clock: Clock) -> None:
        """Has read nothing yet."""
        self._clock = clock
        self._parts: dict[Uuid, tuple[PartUse, ...]] = {}
        self._last: Uuid | None = None

    def read(
        self, calls: NvmlCalls, readings: Sequence[Reading], with_processes: Iterable[Uuid]
    ) -> Mapping[Uuid, HostUse]:
        """Query the cards that answered in this pass."""
        wanted, found = frozenset(with_processes), {}
        answering = {r.uuid: r for r in readings if r.uuid is not None and not r.is_lost}
        for uuid, reading in answering.items():
            try:
                with of_one_card():
                    found[uuid] = _use_of(calls, reading, uuid in wanted)
            except BackendError:
                continue  # the next pass tells what is wrong with the card
        self._read_parts(calls, {u: r for u, r in answering.items() if r.mode is Mode.MIG})
        return {uuid: replace(use, parts=self._parts.get(uuid, ())) for uuid, use in found.items()}

    def _read_parts(self, calls: NvmlCalls, divided: Mapping[Uuid, Reading]) -> None:
        """As many cards as there is time for, in turns: dozens of calls each, which may be slow."""
        self._parts = {uuid: self._parts[uuid] for uuid in divided if uuid in self._parts}
        until_s = self._clock.monotonic() + PARTS_S
        for uuid in _after(list(divided), self._last):
            if self._clock.monotonic() >= until_s:
                return
            self._last = uuid
            self._parts.pop(uuid, None)
            try:
                with of_one_card():
                    self._parts[uuid] = _parts_of(calls, divided[uuid])
            except BackendError:
                continue


def _after(uuids: Sequence[Uuid], last: Uuid | None) -> list[Uuid]:
    """All of them, the one behind `last` first."""
    begin = uuids.index(last) + 1 if last is not None and last in uuids else 0
    return [*uuids[begin:], *uuids[:begin]]


def _use_of(calls: NvmlCalls, reading: Reading, has_processes: bool) -> HostUse:
    handle, card = reading.handle, reading.index
    memory = calls.ask("nvmlDeviceGetMemoryInfo", handle, card=card, absent=_ABSENT)
    rates = calls.ask("nvmlDeviceGetUtilizationRates", handle, card=card, absent=_ABSENT)
    return HostUse(
        memory_bytes=_within(memory and memory.total and memory.used, _MAX_BYTES),
        core_percent=_within(rates and rates.gpu, 100),
        memory_controller_percent=_within(rates and rates.memory, 100),
        processes=processes_on(calls, handle, card) if has_processes else None,
    )


def _parts_of(calls: NvmlCalls, reading: Reading) -> tuple[PartUse, ...]:
    """What the MIG devices of a card say; one that has gone meanwhile is left out.

    Raises:
        DeviceLost, DriverUnavailable: see `NvmlCalls.ask`.
    """
    from hami_node.vendors.nvidia.nvml.mig.reader import AskedCard, Devices

    card = AskedCard(calls=calls, index=reading.index, handle=reading.handle)
    uses = []
    for held in Devices(card).walked().values():
        memory = card.ask("nvmlDeviceGetMemoryInfo", held.handle, absent=_UNTOLD)
        if memory is None:
            continue
        device = held.device
        limit_bytes = _within(memory.total or None, _MAX_BYTES)
        uses.append(
            PartUse(
                uuid=device.uuid,
                numbers=(device.gpu_instance_id, device.compute_instance_id),
                memory_bytes=_within(memory.used, limit_bytes or _MAX_BYTES),
                limit_bytes=limit_bytes,
                processes=processes_on(calls, held.handle, reading.index),
            )
        )
    return tuple(uses)


def _within(value: Any, most: int) -> int | None:  # noqa: ANN401  whatever pynvml answers
    """The number, None for none and for one that can't be right."""
    return int(value) if value is not None and 0 <= int(value) <= most else None


def processes_on(calls: NvmlCalls, handle: object, card: int) -> frozenset[int] | None:
    """PIDs of the programs that compute on a card or a MIG device; None if unknown.

    None are known to be there only by whom the driver shows all that are, see `NvmlCalls`.

    Raises:
        DeviceLost, DriverUnavailable: see `NvmlCalls.ask`.
    """
    try:
        for function in _PROCESSES:
            listed = calls.ask(function, handle, card=card, absent=NOT_OFFERED)
            if listed is not None:
                pids = frozenset(int(process.pid) for process in listed)
                return pids if pids or calls.sees_all_processes else None
    except CallFailed as e:  # the older call would answer with none
        if e.code not in _UNTOLD:
            raise
    return None
