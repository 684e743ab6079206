"""The profiles of a card, by NVML's own names and numbers: no model, no size is known here."""

from __future__ import annotations

import ctypes
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hami_node.vendors.nvidia.mig.found import CardProfile
from hami_node.vendors.nvidia.mig.layout import MigPlacement
from hami_node.vendors.nvidia.nvml.calls import (
    ARGUMENT_VERSION_MISMATCH,
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_OFFERED,
    NOT_SUPPORTED,
    CallFailed,
)
from hami_node.vendors.nvidia.nvml.cards import MAX_MEMORY_MIB
from hami_node.vendors.nvidia.nvml.mig.asked import (
    MAX_LISTED,
    AskedCard,
    Placement,
    impossible,
    within,
)

_INFO: Final = "nvmlDeviceGetGpuInstanceProfileInfo"
_OLD: Final = frozenset({FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH})
_NONE: Final = frozenset({NOT_SUPPORTED})
_NAMED, _NAMELESS = 2, 1
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,31}", re.ASCII)
_MAX_ID: Final = 2**16
_MAX_SLICES: Final = 32
_MAX_MULTIPROCESSORS: Final = 4096
_KINDS: Final = (
    ({7, 8}, "+me"),
    ({10, 11, 12, 17}, "+gfx"),
    ({13, 14}, "-me"),
    ({15, 16}, "+me.all"),
)
"""What the name of a profile ends in, by its position in the driver's list. Source: nvml.h."""
_EIGHTHS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilesRead:
    """Profiles, and whether the daemon may know their placements."""

    profiles: tuple[CardProfile, ...]
    is_restricted: bool = False


def read_profiles(card: AskedCard) -> ProfilesRead:
    """All that the card has, the revisions too. Check: nvidia-smi mig -lgip -lgipp.

    Raises:
        DeviceLost: see `NvmlCalls.ask`; or numbers or names that can't be right.
    """
    found: dict[int, CardProfile] = {}
    is_restricted = False
    for name, info in _named(card):
        number = within(info.id, 0, _MAX_ID, "a profile's id")
        try:
            placements = _placements(card, number)
        except CallFailed as e:
            if e.code != NO_PERMISSION:
                raise
            placements, is_restricted = (), True
        found[number] = CardProfile(
            name=name,
            id=number,
            memory_mib=within(info.memorySizeMB, 1, MAX_MEMORY_MIB, "a profile's memory"),
            slice_count=within(info.sliceCount, 1, _MAX_SLICES, "a profile's slices"),
            multiprocessors=within(
                info.multiprocessorCount, 1, _MAX_MULTIPROCESSORS, "a profile's multiprocessors"
            ),
            instance_count=within(info.instanceCount, 1, MAX_LISTED, "a profile's instances"),
            placements=placements,
        )
    profiles = tuple(found.values())
    if not profiles or max(Counter(profile.name for profile in profiles).values()) > 1:
        raise impossible("profiles")
    return ProfilesRead(profiles=profiles, is_restricted=is_restricted)


def _named(card: AskedCard) -> Iterator[tuple[str, Any]]:
    """Each profile with its name; where the driver has none, by the sizes of all."""
    form = _form(card)
    found = list(_listed(card, form))
    memory_mib = 0 if form == _NAMED else _memory_mib(card, [info for _, info in found])
    for position, info in found:
        if form == _NAMED:
            yield _sound_name(info.name.removeprefix("MIG ")), info
        else:
            yield _name_by_size(info, position, memory_mib), info


def _listed(card: AskedCard, form: int) -> Iterator[tuple[int, Any]]:
    for position in range(MAX_LISTED):
        try:
            info = card.ask(_INFO, card.handle, position, form, absent=_NONE)
        except CallFailed as e:
            if e.code == INVALID_ARGUMENT:
                return
            raise
        if info is not None:
            yield position, info


def _form(card: AskedCard) -> int:
    """Drivers before 510 don't name their profiles."""
    try:
        card.ask(_INFO, card.handle, 0, _NAMED, absent=_NONE)
    except CallFailed as e:
        return _NAMELESS if e.code in _OLD else _NAMED
    return _NAMED


def _sound_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise impossible("a profile's name")
    return name


def _memory_mib(card: AskedCard, profiles: Sequence[Any]) -> int:
    """The card's; without the right to ask for it all but that, which its largest profile has."""
    absent = NOT_OFFERED | {NO_PERMISSION}
    info = card.ask("nvmlDeviceGetMemoryInfo", card.handle, absent=absent)
    largest = max((int(profile.memorySizeMB) for profile in profiles), default=0)
    total = largest if info is None else int(info.total) >> 20
    return within(total, 1, MAX_MEMORY_MIB, "a card's memory")


def _name_by_size(info: Any, position: int, card_mib: int) -> str:  # noqa: ANN401
    """As newer drivers name it: its memory is so many eighths of the card's GiB."""
    eighths = math.ceil(int(info.memorySizeMB) * _EIGHTHS / card_mib)
    memory_gb = math.floor(math.ceil(card_mib / 1024) * eighths / _EIGHTHS + 0.5)
    kind = next((ending for positions, ending in _KINDS if position in positions), "")
    return f"{int(info.sliceCount)}g.{memory_gb}gb{kind}"


def _placements(card: AskedCard, profile_id: int) -> tuple[MigPlacement, ...]:
    """All legal ones, lowest first."""
    function, count = "nvmlDeviceGetGpuInstancePossiblePlacements", ctypes.c_uint(0)
    card.ask(function, card.handle, profile_id, None, ctypes.byref(count))
    within(count.value, 0, MAX_LISTED, "placements")
    listed = (Placement * MAX_LISTED)()
    card.ask(function, card.handle, profile_id, listed, ctypes.byref(count))
    found = {
        placement_of(listed[i]) for i in range(within(count.value, 0, MAX_LISTED, "placements"))
    }
    return tuple(sorted(found, key=lambda place: (place.start, place.size)))


def placement_of(answer: Any) -> MigPlacement:  # noqa: ANN401
    """Memory slices that a card can have. Raises DeviceLost."""
    size = within(answer.size, 1, _MAX_SLICES, "a placement")
    return MigPlacement(start=within(answer.start, 0, _MAX_SLICES - size, "a placement"), size=size)
