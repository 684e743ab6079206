"""What NVML reports for each card, and which card a failed query belongs to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from hami_node.errors import BackendError, DeviceLost, DriverUnavailable
from hami_node.model import Device, Uuid
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.mig.layout import DriverCard, MigCard
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.nvml.calls import (
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_OFFERED,
    CardGone,
    NvmlCalls,
    of_one_card,
)

UNKNOWN_MODEL: Final = "NVIDIA GPU"
"""Model of a card that failed after its UUID and before its name was ever read."""
FELL_OFF: Final = "the driver no longer lists this card (nvidia-smi -L; dmesg shows why)"

_UUID: Final = re.compile(r"[A-Za-z0-9-]{1,48}", re.ASCII)
"""Longer ones would not fit into kubelet's device IDs."""
_NAME_CHARS: Final = 96
_NOT_IN_NAMES: Final = frozenset(',:;"')
"""Separators of the annotations."""
MAX_MEMORY_MIB: Final = 2**24
"""16 TiB. Schedulers read sizes as 32-bit numbers, and drop a whole node for one that is larger."""
_MAX_MINOR: Final = 2**20 - 1
"""Linux has no higher number for a device."""
_MAX_NUMA: Final = 1023
"""Linux numbers its nodes up to here."""

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


class MigModes(NamedTuple):
    """True: enabled."""

    is_enabled: bool
    is_pending: bool


ReadMig = Callable[[NvmlCalls, Any, int, Uuid, MigModes], MigCard]
"""Reads the profiles and instances of a card in MIG mode, by its handle, index, UUID and modes."""


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
        is_gone: the driver says that the card is no longer there.
        handle: NVML's handle; None when even that query failed.
        minor: the number of the card's device node; None where the driver does not report it.
        mig: what it says of MIG; None for a card without.
        memory_source: where the memory's size comes from if not from the card; else "".
    """

    index: int
    handle: Any = None
    pci_bus: str = ""
    uuid: Uuid | None = None
    model: str = ""
    minor: int | None = None
    memory_mib: int = 0
    memory_source: str = ""
    mode: Mode = Mode.HAMI_CORE
    mig: MigCard | None = None
    numa: int | None = None
    fault: str = ""
    is_lost: bool = False
    is_driver_fault: bool = False
    is_gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """All cards of a pass, and the faults of cards that could not be identified.

    `gone` are those that the driver no longer has.
    """

    devices: tuple[Device, ...]
    nameless_faults: tuple[str, ...] = ()
    gone: frozenset[Uuid] = frozenset()


def read_card(calls: NvmlCalls, index: int, sources: HostSources, read_mig: ReadMig) -> Reading:
    """Query everything of a card; a failing query ends the card's queries, not the pass."""
    facts: dict[str, Any] = {}
    try:
        with of_one_card():
            for name, value in _answers(calls, index, sources, read_mig):
                if name != "fault" or value:
                    facts.setdefault(name, value)
    except BackendError as e:
        facts.update(
            fault=str(e),
            is_lost=True,
            is_driver_fault=isinstance(e, DriverUnavailable),
            is_gone=isinstance(e, CardGone),
        )
    return Reading(index=index, **facts)


def _answers(
    calls: NvmlCalls, index: int, sources: HostSources, read_mig: ReadMig
) -> Iterator[tuple[str, Any]]:
    """The card's facts in the order in which they are queried, identity first."""
    handle = calls.ask("nvmlDeviceGetHandleByIndex", index, card=index)
    yield "handle", handle
    pci_bus = _text(calls.ask("nvmlDeviceGetPciInfo", handle, card=index).busId)
    yield "pci_bus", pci_bus
    yield "numa", numa_node(sources.sysfs_root, pci_bus)
    uuid = _uuid(calls.ask("nvmlDeviceGetUUID", handle, card=index))
    yield "uuid", uuid
    yield "model", _name(calls.ask("nvmlDeviceGetName", handle, card=index))
    yield "minor", _minor(calls, handle, index)
    modes = read_modes(calls, handle, index)
    yield "mode", Mode.MIG if modes and modes.is_enabled else Mode.HAMI_CORE
    mig: MigCard | None
    if modes and modes.is_enabled:
        mig = read_mig(calls, handle, index, uuid, modes)
        memory_mib, source = _memory_in_mig_mode(calls, handle, index, mig)
    else:
        mig = MigCard(is_enabled=False, is_pending=modes.is_pending) if modes else None
        memory_mib, source = _memory(calls, handle, index, sources)
    yield "mig", mig
    yield "memory_mib", memory_mib
    yield "memory_source", source
    yield "fault", _recovery_fault(calls, handle, index)
    yield "fault", _remap_fault(calls, handle, index)


def _text(answer: str | bytes) -> str:
    return answer if isinstance(answer, str) else answer.decode(errors="replace")


def _uuid(answer: str | bytes) -> Uuid:
    """Raises DeviceLost: no card can have such a UUID."""
    text = _text(answer)
    if not _UUID.fullmatch(text):
        raise DeviceLost("the driver reports a UUID that can't be one (nvidia-smi -L)")
    return Uuid(text)


def _name(answer: str | bytes) -> str:
    """Raises DeviceLost: no card has such a name; in an annotation it would hide the others."""
    text = _text(answer)
    is_sound = text.isprintable() and _NOT_IN_NAMES.isdisjoint(text)
    if not text.strip() or len(text) > _NAME_CHARS or not is_sound:
        raise DeviceLost("the driver reports a name that can't be one (nvidia-smi -L)")
    return text


def _minor(calls: NvmlCalls, handle: object, card: int) -> int | None:
    """The number in `/dev/nvidia<minor>`. Check: nvidia-smi -q, Minor Number."""
    answer = calls.ask("nvmlDeviceGetMinorNumber", handle, card=card, absent=NOT_OFFERED)
    is_sound = isinstance(answer, int) and 0 <= answer <= _MAX_MINOR
    return answer if is_sound else None


def _memory(calls: NvmlCalls, handle: object, card: int, sources: HostSources) -> tuple[int, str]:
    """Memory in MiB, and where it is from. Check: nvidia-smi --query-gpu=memory.total.

    Raises:
        DeviceLost: unified memory, and neither a configured nor the system's size is known; or a
            size that no card has.
    """
    info = calls.ask("nvmlDeviceGetMemoryInfo", handle, card=card, absent=NOT_OFFERED)
    if info is not None and info.total:
        return _sound_memory_mib(int(info.total) >> 20), ""
    if sources.preconfigured_memory_mib:
        return sources.preconfigured_memory_mib, "preConfiguredDeviceMemory"
    memory_mib = system_memory_mib(sources.meminfo)
    if memory_mib is None:
        raise DeviceLost(
            "the card does not report its memory (unified memory) and the system's is unreadable: "
            "set nvidia.preConfiguredDeviceMemory (MiB)"
        )
    return _sound_memory_mib(memory_mib), "system memory"


def _memory_in_mig_mode(
    calls: NvmlCalls, handle: object, card: int, mig: MigCard
) -> tuple[int, str]:
    """Memory in MiB, and where it is from: of a whole card it takes rights to know.

    Raises:
        DeviceLost: the card's profiles are not known either, or a size that no card has.
    """
    absent = NOT_OFFERED | {NO_PERMISSION}
    info = calls.ask("nvmlDeviceGetMemoryInfo", handle, card=card, absent=absent)
    if info is not None and info.total:
        return _sound_memory_mib(int(info.total) >> 20), ""
    largest = max((profile.memory_mib for profile in mig.profiles), default=0)
    if not largest:
        raise DeviceLost(
            "the driver tells this daemon neither the memory nor the MIG profiles of the card: "
            f"{mig.problem or 'it may lack rights for MIG'}"
        )
    return largest, "its largest MIG profile"


def _sound_memory_mib(memory_mib: int) -> int:
    if not 0 < memory_mib <= MAX_MEMORY_MIB:
        raise DeviceLost(
            "the driver reports a size of memory that can't be right "
            "(nvidia-smi --query-gpu=memory.total)"
        )
    return memory_mib


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
        raw = (sysfs_root / "bus/pci/devices" / folder / "numa_node").read_bytes().strip()
    except OSError:
        return None
    is_number = raw.isdigit() and len(raw) <= len(str(_MAX_NUMA))
    return int(raw) if is_number and int(raw) <= _MAX_NUMA else None


def system_memory_mib(meminfo: Path) -> int | None:
    """The node's memory in MiB, None when unreadable. Check: grep MemTotal /proc/meminfo."""
    try:
        found = re.search(rb"^MemTotal:\s+(\d{1,18}) kB$", meminfo.read_bytes(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) // 1024 if found else None


def enlist(known: Mapping[Uuid, Device], readings: Sequence[Reading]) -> Roster:
    """Make devices from a pass's readings. A card once seen stays in the list, under its UUID.

    Args:
        known: every card as it last answered.
        readings: a reading for every index that the driver counts.
    """
    devices, nameless = _identified(known, readings)
    gone = {reading.uuid for reading in readings if reading.uuid and reading.is_gone}
    for reading in readings:
        if reading.uuid is not None:
            continue
        owner = _owner(reading, [card for uuid, card in known.items() if uuid not in devices])
        if owner is None:
            nameless.append(f"card {reading.index}: {reading.fault}")
            continue
        devices[owner.uuid] = replace(owner, healthy=False, unhealthy_reason=reading.fault)
        if reading.is_gone:
            gone.add(owner.uuid)
    missing = [card for uuid, card in known.items() if uuid not in devices]
    for card in missing:
        devices[card.uuid] = replace(card, healthy=False, unhealthy_reason=FELL_OFF)
    if not nameless:  # or a missing card may be the one that can't be identified
        gone.update(card.uuid for card in missing)
    ordered = sorted(devices.values(), key=lambda card: (card.index, card.uuid))
    return Roster(devices=tuple(ordered), nameless_faults=tuple(nameless), gone=frozenset(gone))


def _identified(
    known: Mapping[Uuid, Device], readings: Sequence[Reading]
) -> tuple[dict[Uuid, Device], list[str]]:
    """The cards whose UUID was read, and the faults of those that share another's."""
    devices: dict[Uuid, Device] = {}
    faults = []
    for reading in readings:
        if reading.uuid is None:
            continue
        if reading.uuid in devices:
            other = devices[reading.uuid].index
            faults.append(f"card {reading.index}: has the UUID of card {other}")
        else:
            devices[reading.uuid] = _device(reading.uuid, reading, known.get(reading.uuid))
    return devices, faults


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
        detail=DriverCard(minor=reading.minor, mig=reading.mig),
    )


def _owner(reading: Reading, missing: Sequence[Device]) -> Device | None:
    """The known card of a failed reading without UUID: by its bus, else by its index."""
    if reading.pci_bus:
        return next((card for card in missing if card.pci_bus == reading.pci_bus), None)
    return next((card for card in missing if card.index == reading.index), None)


def read_modes(calls: NvmlCalls, handle: object, card: int) -> MigModes | None:
    """None for a card without MIG. Check: nvidia-smi --query-gpu=mig.mode.current,mig.mode.pending.

    Raises:
        DeviceLost, DriverUnavailable: see `NvmlCalls.ask`.
    """
    modes = calls.ask("nvmlDeviceGetMigMode", handle, card=card, absent=NOT_OFFERED)
    return MigModes(modes[0] == 1, modes[1] == 1) if modes else None
