"""How much of a card is used, as NVML says; nothing of it decides whether the card is healthy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from hami_node.errors import BackendError
from hami_node.model import Uuid
from hami_node.ports import HostUse
from hami_node.vendors.nvidia.nvml.calls import (
    INVALID_ARGUMENT,
    NOT_OFFERED,
    NvmlCalls,
    of_one_card,
)
from hami_node.vendors.nvidia.nvml.cards import Reading

_ABSENT: Final = NOT_OFFERED | {INVALID_ARGUMENT}
_MAX_BYTES: Final = 1 << 44
_PROCESSES: Final = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetComputeRunningProcesses_v2",  # drivers before 510
)


def read_host_use(
    calls: NvmlCalls, readings: Sequence[Reading], with_processes: Iterable[Uuid]
) -> Mapping[Uuid, HostUse]:
    """Query the cards that answered in this pass."""
    wanted, found = frozenset(with_processes), {}
    for reading in readings:
        if reading.uuid is None or reading.is_lost:
            continue
        try:
            with of_one_card():
                found[reading.uuid] = _use_of(calls, reading, reading.uuid in wanted)
        except BackendError:
            continue  # the next pass tells what is wrong with the card
    return found


def _use_of(calls: NvmlCalls, reading: Reading, has_processes: bool) -> HostUse:
    handle, card = reading.handle, reading.index
    memory = calls.ask("nvmlDeviceGetMemoryInfo", handle, card=card, absent=_ABSENT)
    rates = calls.ask("nvmlDeviceGetUtilizationRates", handle, card=card, absent=_ABSENT)
    return HostUse(
        memory_bytes=_within(memory and memory.total and memory.used, _MAX_BYTES),
        core_percent=_within(rates and rates.gpu, 100),
        memory_controller_percent=_within(rates and rates.memory, 100),
        processes=_processes(calls, handle, card) if has_processes else None,
    )


def _within(value: Any, most: int) -> int | None:  # noqa: ANN401  whatever pynvml answers
    """The number, None for none and for one that can't be right."""
    return int(value) if value is not None and 0 <= int(value) <= most else None


def _processes(calls: NvmlCalls, handle: object, card: int) -> frozenset[int] | None:
    for function in _PROCESSES:
        listed = calls.ask(function, handle, card=card, absent=_ABSENT)
        if listed is not None:
            return frozenset(int(process.pid) for process in listed)
    return None
