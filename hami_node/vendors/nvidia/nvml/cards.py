"""What NVML reports for each card, and which card a failed query belongs to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from hami_node.errors import BackendError, DeviceLost, DriverUnavailable
from hami_node.model import Device, Uuid
from hami_node.vendors.nvidia.cards import MIG_NOT_SERVED, NVIDIA
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.nvml.calls import INVALID_ARGUMENT, NOT_OFFERED, NvmlCalls
from hami_node.vendors.nvidia.nvml.mig import is_mig_enabled

UNKNOWN_MODEL: Final = "NVIDIA GPU"
"""Model of a card that failed after its UUID and before its name was ever read."""
FELL_OFF: Final = "the driver no longer lists this card (nvidia-smi -L; dmesg shows why)"

_FIELD_RECOVERY_ACTION: Final = 230
_RECOVERY_ACTIONS: Final = {
    1: "reset the GPU (nvidia-smi -r)",
    2: "reboot the node",
    3: "drain its peer-to-peer traffic",
    4: "drain it and reset it",
    5: "recover the IMEX domain",
    6: "reset its bus",
    7: "power-cycle the node",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSources:
    """Where a card's facts come from that NVML does not provide.

    `preconfigured_memory_mib` is offered by cards that don't report their memory; None: they
    share the system's.
    """

    sysfs_root: Path = Path("/sys")
    meminfo: Path = Path("/proc/meminfo")
    preconfigured_memory_mib: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a card answered, up to the query that failed.

    Attributes:
        fault: why the card may not be used; "" when every query was answered and none is bad.
        is_lost: a query failed (`fault` is more than a bad answer).
        is_driver_fault: the failure concerns the driver, not the card.
        handle: NVML's handle; None when even that query failed.
        memory_source: where the memory's size comes from if not from the card; else "".
    """

    index: int
    handle: Any = None
    pci_bus: str = ""
    uuid: Uuid | None = None
    model: str = ""
    memory_mib: int = 0
    memory_source: str = ""
    mode: Mode = Mode.HAMI_CORE
    numa: int | None = None
    fault: str = ""
    is_lost: bool = False
    is_driver_fault: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """All cards of a pass, and the faults of cards that could not be identified."""

    devices: tuple[Device, ...]
    nameless_faults: tuple[str, ...] = ()


def read_card(calls: NvmlCalls, index: int, sources: HostSources) -> Reading:
    """Query everything of a card; a failing query ends the card's queries, not the pass."""
    facts: dict[str, Any] = {}
    try:
        for name, value in _answers(calls, index, sources):
            if name != "fault" or value:
                facts.setdefault(name, value)
    except BackendError as e:
        facts.update(fault=str(e), is_lost=True, is_driver_fault=isinstance(e, DriverUnavailable))
    return Reading(index=index, **facts)


def _answers(calls: NvmlCalls, index: int, sources: HostSources) -> Iterator[tuple[str, Any]]:
    """The card's facts in the order in which they are queried, identity first."""
    handle = calls.ask("nvmlDeviceGetHandleByIndex", index, card=index)
    yield "handle", handle
    pci_bus = _text(calls.ask("nvmlDeviceGetPciInfo", handle, card=index).busId)
    yield "pci_bus", pci_bus
    yield "numa", numa_node(sources.sysfs_root, pci_bus)
    yield "uuid", Uuid(_text(calls.ask("nvmlDeviceGetUUID", handle, card=index)))
    yield "model", _text(calls.ask("nvmlDeviceGetName", handle, card=index))
    is_mig = is_mig_enabled(calls, handle, index)
    yield "mode", Mode.MIG if is_mig else Mode.HAMI_CORE
    memory_mib, source = _memory(calls, handle, index, sources)
    yield "memory_mib", memory_mib
    yield "memory_source", source
    yield "fault", _recovery_fault(calls, handle, index)
    yield "fault", _remap_fault(calls, handle, index)
    yield "fault", MIG_NOT_SERVED if is_mig else ""


def _text(answer: str | bytes) -> str:
    return answer if isinstance(answer, str) else answer.decode(errors="replace")


def _memory(calls: NvmlCalls, handle: object, card: int, sources: HostSources) -> tuple[int, str]:
    """Memory in MiB, and where it is from. Check: nvidia-smi --query-gpu=memory.total.

    Raises:
        DeviceLost: unified memory, and neither a configured nor the system's size is known.
    """
    info = calls.ask("nvmlDeviceGetMemoryInfo", handle, card=card, absent=NOT_OFFERED)
    if info is not None and info.total:
        return int(info.total) >> 20, ""
    if sources.preconfigured_memory_mib:
        return sources.preconfigured_memory_mib, "preConfiguredDeviceMemory"
    memory_mib = system_memory_mib(sources.meminfo)
    if memory_mib is None:
        raise DeviceLost(
            "the card does not report its memory (unified memory) and the system's is unreadable: "
            "set nvidia.preConfiguredDeviceMemory (MiB)"
        )
    return memory_mib, "system memory"


def _recovery_fault(calls: NvmlCalls, handle: object, card: int) -> str:
    """The recovery action of the card. Check: nvidia-smi --query-gpu=gpu_recovery_action."""
    values = calls.ask(
        "nvmlDeviceGetFieldValues",
        handle,
        [_FIELD_RECOVERY_ACTION],
        card=card,
        absent=NOT_OFFERED | {INVALID_ARGUMENT},
    )
    if values is None:
        return ""
    code = values[0].nvmlReturn
    if code in NOT_OFFERED | {INVALID_ARGUMENT}:
        return ""
    if code != 0:
        raise DeviceLost(f"NVML field GPU_RECOVERY_ACTION can't be read (code {code})")
    action = int(values[0].value.uiVal)
    if action == 0:
        return ""
    return f"the driver requests: {_RECOVERY_ACTIONS.get(action, f'take action {action}')}"


def _remap_fault(calls: NvmlCalls, handle: object, card: int) -> str:
    """Memory rows that could not be replaced. Check: nvidia-smi -q -d ROW_REMAPPER."""
    rows = calls.ask("nvmlDeviceGetRemappedRows", handle, card=card, absent=NOT_OFFERED)
    if rows is None or not rows[3]:
        return ""
    return "row remapping has failed: the card's memory is broken (nvidia-smi -q -d ROW_REMAPPER)"


@lru_cache(maxsize=256)  # the machine's wiring: it does not change while the node runs
def numa_node(sysfs_root: Path, pci_bus: str) -> int | None:
    """NUMA node of a PCI function; None when sysfs has none. Check: nvidia-smi topo -m.

    Args:
        sysfs_root: usually /sys.
        pci_bus: as NVML writes it, `00000000:3B:00.0`.
    """
    parts = re.fullmatch(r"([0-9a-fA-F]+):([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])", pci_bus)
    if parts is None:
        return None
    folder = f"{int(parts[1], 16):04x}:{parts[2].lower()}"
    try:
        text = (sysfs_root / "bus/pci/devices" / folder / "numa_node").read_text().strip()
    except OSError:
        return None
    return int(text) if text.isascii() and text.isdigit() else None


def system_memory_mib(meminfo: Path) -> int | None:
    """The node's memory in MiB, None when unreadable. Check: grep MemTotal /proc/meminfo."""
    try:
        found = re.search(r"^MemTotal:\s+(\d+) kB$", meminfo.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) // 1024 if found else None


def enlist(known: Mapping[Uuid, Device], readings: Sequence[Reading]) -> Roster:
    """Make devices from a pass's readings. A card once seen stays in the list, under its UUID.

    Args:
        known: every card as it last answered.
        readings: a reading for every index that the driver counts.
    """
    devices: dict[Uuid, Device] = {}
    nameless = []
    for reading in readings:
        if reading.uuid is None:
            continue
        if reading.uuid in devices:
            other = devices[reading.uuid].index
            nameless.append(f"card {reading.index}: has the UUID of card {other}")
            continue
        devices[reading.uuid] = _device(reading.uuid, reading, known.get(reading.uuid))
    for reading in readings:
        if reading.uuid is not None:
            continue
        owner = _owner(reading, [card for uuid, card in known.items() if uuid not in devices])
        if owner is None:
            nameless.append(f"card {reading.index}: {reading.fault}")
        else:
            devices[owner.uuid] = replace(owner, healthy=False, unhealthy_reason=reading.fault)
    for uuid, card in known.items():
        if uuid not in devices:
            devices[uuid] = replace(card, healthy=False, unhealthy_reason=FELL_OFF)
    ordered = sorted(devices.values(), key=lambda card: (card.index, card.uuid))
    return Roster(devices=tuple(ordered), nameless_faults=tuple(nameless))


def _device(uuid: Uuid, reading: Reading, last: Device | None) -> Device:
    if reading.is_lost and last is not None:
        return replace(last, index=reading.index, healthy=False, unhealthy_reason=reading.fault)
    return Device(
        uuid=uuid,
        index=reading.index,
        vendor=NVIDIA,
        model=reading.model or UNKNOWN_MODEL,
        mode=reading.mode,
        numa=reading.numa,
        healthy=not reading.fault,
        unhealthy_reason=reading.fault,
        memory_mib=reading.memory_mib,
        pci_bus=reading.pci_bus,
    )


def _owner(reading: Reading, missing: Sequence[Device]) -> Device | None:
    """The known card of a failed reading without UUID: by its bus, else by its index."""
    if reading.pci_bus:
        return next((card for card in missing if card.pci_bus == reading.pci_bus), None)
    return next((card for card in missing if card.index == reading.index), None)
