"""What a container is handed, grant by grant: full cards, or instances of divided ones. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from hami_node.errors import AllocationError
from hami_node.model import Grant, Uuid
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.on_node.answer import MadePart, Slice

_UUID: Final = re.compile(r"MIG-[A-Za-z0-9-]{1,80}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A MIG instance: its own UUID, and the numbers by which the driver's capabilities name it."""

    uuid: str
    card: Uuid
    gpu_instance_id: int
    compute_instance_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """The full cards and the instances of one container; `uuids` has all, as it sees them."""

    uuids: tuple[str, ...]
    cards: tuple[Uuid, ...] = ()
    instances: tuple[Instance, ...] = ()


def in_order(granted: Slice) -> tuple[Grant, ...]:
    """The grants by card index: limits `_0.._n` and the cards' names are in one order."""
    cards = granted.cards
    return tuple(sorted(granted.grants, key=lambda grant: (cards[grant.uuid].index, grant.uuid)))


def handed_of(granted: Slice) -> Handed:
    """Cards by their index; where instances are among them, all in the order of the grants.

    Raises:
        AllocationError: the instances are not what the grants name; never a card instead of one.
    """
    made = granted.made or (None,) * len(granted.grants)
    if not any(made):
        uuids = tuple(grant.uuid for grant in in_order(granted))
        for grant in granted.grants:
            _check_full(grant, granted)
        return Handed(uuids=uuids, cards=uuids)
    if len(made) != len(granted.grants):
        raise AllocationError(
            f"{len(made)} MIG instances were made for {len(granted.grants)} grants: {_REPORT}"
        )
    return _mixed(granted, made)


def _mixed(granted: Slice, made: tuple[MadePart | None, ...]) -> Handed:
    uuids, cards, instances = list[str](), list[Uuid](), list[Instance]()
    for grant, part in zip(granted.grants, made, strict=True):
        if part is None:
            _check_full(grant, granted)
            cards.append(grant.uuid)
            uuids.append(grant.uuid)
        else:
            instances.append(_instance(grant, part))
            uuids.append(part.uuid)
    if len(set(uuids)) != len(uuids):
        raise AllocationError(f"two grants would get one of {', '.join(uuids)}: {_REPORT}")
    return Handed(uuids=tuple(uuids), cards=tuple(cards), instances=tuple(instances))


_REPORT: Final = "please report this with the daemon's log"


def _check_full(grant: Grant, granted: Slice) -> None:
    card = granted.cards.get(grant.uuid)
    if grant.part is not None or (card is not None and card.mode == Mode.MIG):
        raise AllocationError(
            f"card {grant.uuid} is in MIG mode and the grant has no instance of it: the whole card "
            "is nobody's; delete the pod, so that it is scheduled again"
        )


def _instance(grant: Grant, part: MadePart) -> Instance:
    if not _UUID.fullmatch(part.uuid) or len(part.numbers) != 2 or min(part.numbers) < 0:
        raise AllocationError(
            f"{part.uuid[:100]!r} of card {grant.uuid} is no name of a MIG instance: {_REPORT}"
        )
    gpu_instance, compute_instance = part.numbers
    return Instance(
        uuid=part.uuid,
        card=grant.uuid,
        gpu_instance_id=gpu_instance,
        compute_instance_id=compute_instance,
    )
