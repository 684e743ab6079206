"""What containers use of NVIDIA cards, from the region files of their limiter."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeGuard

from hami_node.errors import RegionError, RegionNotReady
from hami_node.logs import kv
from hami_node.model import Uuid
from hami_node.ports import ContainerUse, UnreadUse
from hami_node.vendors.nvidia.node.regions.region_file import PAUSE_S, TURNS, open_region
from hami_node.vendors.nvidia.regions.region import Region, numbers_of
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.usage import Holder, UseFindings

log = logging.getLogger(__name__)

MAX_SLOTS_AGAIN: Final = 1024
"""In all files that are read again in one turn: some 10 ms of processor time."""
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRegion:
    """A container's region as it was in this pass; `open_region` opens the file again."""

    holder: Holder
    region: Region


class RegionVisitor(Protocol):
    """Takes part in each pass, after all regions have been read."""

    def visit(self, regions: Sequence[ReadRegion], *, is_last: bool) -> None:
        """All regions that could be read; `is_last`: the daemon stops after this pass."""


class NvidiaUsageReader:
    """Reads the region files; see `vendors.usage.UsageReader`.

    Whose numbers they are, and on which card, is decided by the ledger's grants: what a container
    writes into its file can only be wrong about itself.
    """

    def __init__(
        self, settings: Callable[[], NvidiaSettings], visitor: RegionVisitor | None = None
    ) -> None:
        """Read below the hook path of the settings in force."""
        self._settings, self._visitor = settings, visitor
        self._unread: frozenset[UnreadUse] = frozenset()
        self._noted: dict[str, frozenset[int]] = {}
        self._pause = threading.Event()  # never set: the waits are short

    def read(
        self,
        holders: Sequence[Holder],
        running: Mapping[Uuid, Collection[int]],
        *,
        is_last: bool = False,
    ) -> UseFindings:
        """Read every file, and some of them again: see `_read_all`."""
        regions: list[ReadRegion] = []
        uses: list[ContainerUse] = []
        unread: list[UnreadUse] = []
        found = self._read_all(holders, running, 1 if is_last else TURNS)
        for holder, region in zip(holders, found, strict=True):
            try:
                if isinstance(region, RegionError):
                    raise region
                regions.append(ReadRegion(holder=holder, region=region))
                uses += tuple(uses_of(holder, region))
            except RegionNotReady:
                continue
            except RegionError as e:
                unread.append(self._unread_use(holder, e))
        self._unread = frozenset(unread)
        if self._visitor is not None:
            self._visitor.visit(regions, is_last=is_last)
        return UseFindings(
            uses=tuple(uses), unread=tuple(unread), unclear=frozenset(_unclear(regions))
        )

    def _read_all(
        self, holders: Sequence[Holder], running: Mapping[Uuid, Collection[int]], turns: int
    ) -> list[Region | RegionError]:
        """Read again where something is missing that living processes write soon.

        All of these files together, so that one wait is enough for all. A process that was noted in
        the pass before counts once more: its container may be short of processor time. Of files
        with many slots not all are read again: a container fills its own as it likes.
        """
        found = [self._region(holder, running, ()) for holder in holders]
        for _ in range(turns - 1):
            again = _affordable([(i, region) for i, region in enumerate(found) if _misses(region)])
            if not again:
                break
            self._pause.wait(PAUSE_S)
            for i, before in again:
                found[i] = self._region(holders[i], running, before.noted)
        earlier, self._noted = self._noted, {}
        for i, region in enumerate(found):
            if isinstance(region, Region):
                key = holders[i].folder_name
                self._noted[key] = region.noted
                if region.misses_notes and earlier.get(key, region.noted) - region.noted:
                    found[i] = self._region(holders[i], running, earlier[key] | region.noted)
        return found

    def _region(
        self,
        holder: Holder,
        running: Mapping[Uuid, Collection[int]],
        noted: Collection[int],
    ) -> Region | RegionError:
        alive = frozenset(pid for card in holder.cards for pid in running.get(card.uuid, ()))
        try:
            with open_region(self._settings().hook_path, holder.folder_name) as file:
                if file.cut():
                    log.warning("cache_file_cut", extra=kv(folder=holder.folder_name))
                return file.read(alive, noted)
        except RegionError as e:
            return e
        except Exception as e:  # whatever a container writes, it alone pays
            log.debug("usage_not_decoded", exc_info=True)
            return RegionError("unreadable", f"can't be decoded ({type(e).__name__})")

    def _unread_use(self, holder: Holder, error: RegionError) -> UnreadUse:
        unread = UnreadUse(
            namespace=holder.namespace,
            pod=holder.pod,
            container=holder.container,
            reason=error.reason,
        )
        if unread not in self._unread:
            name = f"{holder.namespace}/{holder.pod}/{holder.container}"
            problem = f"its usage file {error}"
            log.warning("usage_unreadable", extra=kv(container=name, problem=problem))
        return unread


def _affordable(found: Sequence[tuple[int, Region]]) -> list[tuple[int, Region]]:
    """The smallest of these, up to a number of slots."""
    left, kept = MAX_SLOTS_AGAIN, []
    for i, region in sorted(found, key=lambda item: item[1].slots):
        left -= region.slots
        if left < 0:
            break
        kept.append((i, region))
    return kept


def _misses(region: Region | RegionError) -> TypeGuard[Region]:
    return isinstance(region, Region) and region.misses_notes


def uses_of(holder: Holder, region: Region) -> Iterator[ContainerUse]:
    """Card by card, in the order of the container.

    Raises:
        RegionError: more memory is claimed than the card has, and than is offered of it.
    """
    numbers = numbers_of(region, [card.uuid for card in holder.cards])
    for position, card in zip(numbers, holder.cards, strict=False):
        use, core_limit = region.used[position], region.core_percent[position]
        most = max(card.physical_memory_mib or 0, card.memory_mib) * _MIB
        if use.total_bytes > most:
            claim = f"claims {use.total_bytes} bytes of card {card.uuid}, which has {most}"
            raise RegionError("impossible", claim)
        yield ContainerUse(
            namespace=holder.namespace,
            pod=holder.pod,
            container=holder.container,
            uuid=card.uuid,
            index=card.index,
            position=position,
            memory_bytes=use.total_bytes,
            context_bytes=_possible(use.context_bytes, most),
            module_bytes=_possible(use.module_bytes, most),
            data_bytes=_possible(use.data_bytes, most),
            core_percent=use.core_percent if region.has_core_use else None,
            limit_bytes=region.limit_bytes[position] or None,
            core_limit_percent=core_limit if 0 < core_limit < 100 else None,
            last_kernel_s=region.last_kernel_s or None,
        )


def _possible(part_bytes: int, most: int) -> int | None:
    return part_bytes if part_bytes <= most else None


def _unclear(regions: Sequence[ReadRegion]) -> Iterator[Uuid]:
    for read in regions:
        if len(read.region.processes) > 1 and not read.region.tells_the_dead:
            yield from (card.uuid for card in read.holder.cards)
