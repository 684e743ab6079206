"""What the processes of one container use, from the limiter's region file. Pure.

The container can write every byte of the file, and a killed process leaves its numbers in it: what
is decoded here is what the living processes use, by the traces that the limiter leaves.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from hami_node.errors import RegionError
from hami_node.vendors.nvidia.regions.region_layouts import DEVICES, SLOTS, Layout

RESERVE: Final = 64
"""Slots behind the counted ones in which processes may have gone on."""
_UNCOUNTED: Final = 512 << 20
"""More bytes than a process holds beside what the limiter counts."""
_MOD: Final = 1 << 64
_LOW: Final = 0xFFFFFFFF
_MAX_TIME_S: Final = 1 << 33
_UUID_BYTES: Final = 96
_UUID: Final = re.compile(r"(GPU|MIG)-[0-9A-Za-z-]{1,60}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """What is used of one card: bytes, and percent of its cores."""

    total_bytes: int = 0
    context_bytes: int = 0
    module_bytes: int = 0
    data_bytes: int = 0
    core_percent: int = 0


UNUSED: Final = DeviceUse()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """A living process: its PID in the container, on the node (0: unknown), its memory by card."""

    pid: int
    host_pid: int
    used_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """What a region file says. All of it is the container's word, and only about itself.

    Attributes:
        layout: its name.
        device_uuids: as the container's driver numbers its cards; () before it has looked.
        slots: how many are counted; what it costs to read the file goes with their number.
        limit_bytes, core_percent: the limits in force by card, always 16; 0 for no memory limit.
        processes: those that live.
        used: the sum over `processes` by card, always 16.
        has_core_use: core use is counted.
        tells_the_dead: killed processes can be told from living ones.
        noted: PIDs on the node of processes that hold memory by the driver's word.
        misses_notes: there is no such note of some process: it is gone, or it is noted soon.
        recent_kernel: 2 after a kernel, counted down by a monitor; below 0 the container waits.
        utilization_switch: 1 where the core limit applies.
        priority: 0 is more important than 1.
        last_kernel_s: when a kernel was last launched, in seconds since the epoch; 0 for never,
            None where the layout has no such field.
    """

    layout: str
    device_uuids: tuple[str, ...]
    slots: int
    limit_bytes: tuple[int, ...]
    core_percent: tuple[int, ...]
    processes: tuple[ProcessUse, ...]
    used: tuple[DeviceUse, ...]
    has_core_use: bool
    tells_the_dead: bool
    noted: frozenset[int]
    misses_notes: bool
    recent_kernel: int
    utilization_switch: int
    priority: int
    last_kernel_s: int | None


def slot_count(tail: bytes) -> int:
    """How many slots the limiter counts, whatever the file claims."""
    return min(max(int.from_bytes(tail[:4], "little", signed=True), 0), SLOTS)


def writes(layout: Layout, slots: bytes) -> dict[int, int]:
    """How often each slot in use was written, twice over: odd while it is.

    By the number of the slot; empty where nobody counts that.
    """
    if not layout.seqlock:
        return {}
    pids, counts = _column(layout, slots, 0), _column(layout, slots, layout.seqlock)
    return {i: count for i, count in enumerate(counts) if pids[i] & _LOW}


def numbers_of(region: Region, uuids: Sequence[str]) -> tuple[int, ...]:
    """The container's number of each card that it was given, in the order of the response.

    A container that sees more cards than it was given numbers them differently: then its region
    tells, where it names all that it was given.
    """
    named = region.device_uuids
    if all(uuid in named for uuid in uuids):
        return tuple(named.index(uuid) for uuid in uuids)
    return tuple(range(min(len(uuids), DEVICES)))


def decode(
    layout: Layout,
    head: bytes,
    slots: bytes,
    tail: bytes,
    running: Collection[int] = (),
    noted: Collection[int] = (),
) -> Region:
    """Decode what was read of a file.

    Args:
        layout: by `layout_of`.
        head: everything before the slots.
        slots: the slots that the limiter counts, and as many behind them as a process may go on
            counting in after another one has moved its slot.
        tail: `tail_bytes` of what follows the slots.
        running: PIDs on the node of processes that the driver knows; () where it was not asked.
        noted: `Region.noted` of readings just before: living processes set each other's notes to 0
            every 0.12 s, then ask the driver, which takes its time.

    Raises:
        RegionError: a part is too short.
    """
    count = slot_count(tail)
    _refuse_short(layout, head, slots, tail)
    numbers = struct.unpack_from(f"<{2 * DEVICES}Q", head, layout.memory_limit_at(0))
    known = struct.unpack_from("<Q", head, layout.num)[0]
    devices = known if 0 < known <= DEVICES else DEVICES
    table = _Table(layout, slots, count, devices)
    counted = table.counted(noted)
    living = table.living(counted, running)
    cards = [table.card(d, living) for d in range(devices)]
    _, switch, recent_kernel, priority = struct.unpack_from("<4i", tail)
    return Region(
        layout=layout.name,
        device_uuids=_uuids(head, layout, known),
        slots=count,
        limit_bytes=numbers[:DEVICES],
        core_percent=numbers[DEVICES:],
        processes=_processes(living, [totals for totals, _ in cards]),
        used=(*(use for _, use in cards), *(UNUSED for _ in range(DEVICES - devices))),
        has_core_use=layout.util != 0,
        noted=frozenset(slot.host_pid for slot in counted if slot.is_monitored),
        misses_notes=layout.zeroes_monitored and any(slot.is_unseen for slot in counted),
        tells_the_dead=layout.seqlock != 0,
        recent_kernel=recent_kernel,
        utilization_switch=switch,
        priority=priority,
        last_kernel_s=_last_kernel_s(layout, tail),
    )


def _uuids(head: bytes, layout: Layout, known: int) -> tuple[str, ...]:
    """Those that the container knows; an impossible number of them is none."""
    return tuple(_uuid(head, layout, i) for i in range(known if known <= DEVICES else 0))


def _refuse_short(layout: Layout, head: bytes, slots: bytes, tail: bytes) -> None:
    wanted = (layout.slots, slot_count(tail) * layout.slot_bytes, layout.tail_bytes)
    if any(len(part) < size for part, size in zip((head, slots, tail), wanted, strict=True)):
        raise RegionError("truncated", "became shorter while it was read")


def _last_kernel_s(layout: Layout, tail: bytes) -> int | None:
    """None where the layout has no such field; an impossible time is none yet."""
    if not layout.has_last_kernel:
        return None
    found = int(struct.unpack_from("<Q", tail, 16)[0])
    return 0 if found > _MAX_TIME_S else found


def _processes(living: Sequence[_Slot], totals: Sequence[Sequence[int]]) -> tuple[ProcessUse, ...]:
    """`totals`: bytes by card, each in the order of the slots."""
    return tuple(
        ProcessUse(pid=slot.pid, host_pid=slot.host_pid, used_bytes=tuple(used))
        for slot, *used in zip(living, *totals, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Slot:
    """A slot that the limiter counts.

    Attributes:
        index: which one it is.
        live: the one in which its process counts: another one after it was moved.
        is_monitored: the driver said that the process holds memory.
        is_used: it counts memory, and its PID on the node is known.
    """

    index: int
    live: int
    pid: int
    host_pid: int
    is_monitored: bool
    is_used: bool

    @property
    def is_unseen(self) -> bool:
        """The driver should have said something of it."""
        return self.is_used and not self.is_monitored


class _Behind:
    """The slots behind the counted ones: a process that was moved goes on counting there."""

    def __init__(self, table: _Table, count: int) -> None:
        self._best: dict[tuple[int, int], int] = {}
        self._newest: dict[int, int] = {}
        self._writes: list[int] = table.writes
        for j in range(count, min(len(table.pids), count + RESERVE)):
            pid, host_pid = table.pids[j], table.host_pids[j]
            self._newest[pid] = max(host_pid, self._newest.get(pid, 0))
            if table.states[j]:
                best = self._best.get((pid, host_pid), j)
                self._best[pid, host_pid] = max(best, j, key=self._writes.__getitem__)

    def live(self, i: int, pid: int, host_pid: int) -> int:
        """The slot in which the process of slot `i` counts.

        One that was moved before its host PID was known has never counted in slot `i`.
        """
        nameless = i if self._writes[i] else self._best.get((pid, 0), i)
        later = self._best.get((pid, host_pid), i)
        return max(i, later, nameless, key=self._writes.__getitem__)

    def is_shifted(self, pid: int, host_pid: int) -> bool:
        """Whether the process began later than the host PID in its slot."""
        return self._newest.get(pid, 0) > host_pid


class _Table:
    """The slots by column: one word of all slots is taken at once, which costs next to nothing."""

    def __init__(self, layout: Layout, slots: bytes, count: int, devices: int) -> None:
        self._layout, self._slots, self._count = layout, slots, count
        totals = range(layout.used + 4, layout.used + 4 + devices * layout.used_words)
        self._totals = [self._column(word) for word in totals[:: layout.used_words]]
        self._monitored = [self._column(layout.monitored + d) for d in range(devices)]
        pids = self._column(0)
        self.pids, self.host_pids = [word & _LOW for word in pids], [word >> 32 for word in pids]
        self.states = [word & _LOW for word in self._column(layout.status)]
        self.writes = self._column(layout.seqlock) if layout.seqlock else [0] * len(pids)
        self._behind = _Behind(self, count)

    def _column(self, word: int) -> list[int]:
        return _column(self._layout, self._slots, word)

    def counted(self, noted: Collection[int]) -> tuple[_Slot, ...]:
        """The counted slots of processes that have not ended normally."""
        is_used, is_monitored = _any_of(self._totals), _any_of(self._monitored)
        found = []
        for i in range(self._count):
            pid, host_pid = self.pids[i], self.host_pids[i]
            if pid and self.states[i]:
                live = self._behind.live(i, pid, host_pid)
                is_seen = is_monitored[i] or host_pid in noted
                is_told = is_used[live] and host_pid != 0
                found.append(_Slot(i, live, pid, host_pid, is_seen, is_told))
        return tuple(found)

    def living(self, counted: Sequence[_Slot], running: Collection[int]) -> list[_Slot]:
        """The slots of living processes: killed ones keep status and numbers.

        Limiters from 2.7.1 on note every 0.12 s what the driver says of each process, 0 for one
        that is gone. Older ones leave the number or never fill it, and when they remove a slot,
        host PIDs stay behind: there the driver's list decides, where it accounts for all.
        """
        gone: set[int] = set()
        if self._are_notes_right(counted):
            gone = {s.index for s in counted if s.is_unseen and s.host_pid not in running}
        here = len(set(self.host_pids).intersection(running))
        if here and not gone:
            suspects = [slot for slot in counted if slot.is_used]
            gone = {slot.index for slot in suspects if slot.host_pid not in running}
            gone = gone if len(gone) <= len(suspects) - here else set()
        return [slot for slot in counted if slot.index not in gone]

    def _are_notes_right(self, counted: Sequence[_Slot]) -> bool:
        """Whether the driver's word is noted for the right processes, and for those only."""
        if not self._layout.zeroes_monitored or not any(slot.is_monitored for slot in counted):
            return False
        is_shifted = self._behind.is_shifted
        return self._layout.seqlock != 0 or not any(is_shifted(s.pid, s.host_pid) for s in counted)

    def card(self, d: int, living: Sequence[_Slot]) -> tuple[list[int], DeviceUse]:
        """What each process uses of a card, and all of them; others note its core use.

        Single numbers may be below zero: a process frees what another one's slot has counted.
        """
        layout, noted = self._layout, self._monitored[d]
        totals = [self._totals[d][slot.live] for slot in living]
        if layout.seqlock:  # a slot in which a process went on may belong to another one now
            for k, slot in enumerate(living):
                if _signed(noted[slot.index] - totals[k]) > _UNCOUNTED:
                    totals[k] = noted[slot.index]
        if not any(totals) and not any(noted):
            return totals, UNUSED
        word = layout.used + d * layout.used_words
        context, module, data = (self._column(word + k) for k in range(3))
        total, driver = sum(totals) % _MOD, sum(noted[slot.index] for slot in living) % _MOD
        return totals, DeviceUse(
            total_bytes=driver if _signed(total) < 0 else total,
            context_bytes=sum(context[slot.live] for slot in living) % _MOD,
            module_bytes=sum(module[slot.live] for slot in living) % _MOD,
            data_bytes=sum(data[slot.live] for slot in living) % _MOD,
            core_percent=self._core_percent(d, living),
        )

    def _core_percent(self, d: int, living: Sequence[_Slot]) -> int:
        layout = self._layout
        if not layout.util:
            return 0
        cores = self._column(layout.util + d * layout.util_words + 2)
        return min(sum(cores[slot.index] for slot in living if cores[slot.index] <= 100), 100)


def _any_of(columns: Sequence[Sequence[int]]) -> list[bool]:
    """By slot: whether one of the words is not 0."""
    return list(map(any, zip(*columns, strict=True)))


def _column(layout: Layout, slots: bytes, word: int) -> list[int]:
    whole = len(slots) // layout.slot_bytes * layout.slot_bytes
    words: list[int] = memoryview(slots)[:whole].cast("Q")[word :: layout.slot_words].tolist()
    return words


def _signed(word: int) -> int:
    return (word + _MOD // 2) % _MOD - _MOD // 2


def _uuid(head: bytes, layout: Layout, index: int) -> str:
    """A UUID if it is the text of one; "" for anything else."""
    at = layout.num + 8 + index * _UUID_BYTES
    text = head[at : at + _UUID_BYTES].split(b"\0", 1)[0].decode("ascii", errors="replace")
    return text if _UUID.fullmatch(text) else ""
