"""MIG as the driver reports it for one card: modes, profiles, and the instances that exist."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hami_node.vendors.nvidia.mig.layout import (
    MigPlacement,
)

_NAME: Final = re.compile(r"(\d{1,2}g)\.(\d{1,4})gb(\+[a-z0-9.]{1,16})?\Z", re.ASCII)
_NEAR_GB: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """A MIG device: one compute instance over all of a GPU instance. 0 is a valid number."""

    uuid: str
    gpu_instance_id: int
    compute_instance_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardProfile:
    """A kind of GPU instance that a card can hold, by NVML's own name and id.

    Attributes:
        name: such as 1g.10gb or 1g.10gb+me, without the word MIG.
        id: what NVML takes to make one; unique on the card, but not in the world.
        memory_mib: what an instance really has.
        slice_count: compute slices.
        multiprocessors: of an instance.
        instance_count: the most that the card can hold at once.
        placements: all legal ones, free or not.
    """

    name: str
    id: int
    memory_mib: int
    slice_count: int
    multiprocessors: int
    instance_count: int
    placements: tuple[MigPlacement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundInstance:
    """A GPU instance that exists on a card, whoever made it.

    Attributes:
        profile: the name; "" where the driver lists no such profile.
        compute_instance_ids: () for a GPU instance whose making, or destruction, is half done.
        device: its MIG device; None without one.
        placement: of size 0 where the daemon may not know it (`MigCard.restriction`).
        processes: PIDs that run on it; None where that could not be read, or was not asked for.
    """

    gpu_instance_id: int
    profile: str
    profile_id: int
    placement: MigPlacement
    compute_instance_ids: tuple[int, ...] = ()
    device: MigDevice | None = None
    processes: frozenset[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigCard:
    """A card that has MIG, as the driver reports it now.

    Attributes:
        is_enabled: in MIG mode now.
        is_pending: the mode that the card will have after its next reset.
        profiles: those of the card; () while they can't be read, as with the mode off.
        instances: all that exist; () with the mode off.
        problem: why profiles or instances could not be read; "" if they were.
        restriction: why the daemon may not make instances, nor see where they are and those that
            are half made; "" where it may. Only instances with a device are known then.
    """

    is_enabled: bool
    is_pending: bool
    profiles: tuple[CardProfile, ...] = ()
    instances: tuple[FoundInstance, ...] = ()
    problem: str = ""
    restriction: str = ""


def profile_named(name: str, profiles: Sequence[CardProfile]) -> CardProfile | None:
    """The profile that a geometry means by a name; None for none.

    The number of gigabytes in a name is rounded, by each driver differently: where nothing has the
    very name, the one with as many slices and all but as many gigabytes is meant.
    """
    exact = next((each for each in profiles if each.name == name), None)
    wanted = _NAME.match(name)
    if exact is not None or wanted is None:
        return exact
    near = [
        each
        for each in profiles
        if (found := _NAME.match(each.name))
        and (found[1], found[3]) == (wanted[1], wanted[3])
        and abs(int(found[2]) - int(wanted[2])) <= _NEAR_GB
    ]
    return near[0] if len(near) == 1 else None
