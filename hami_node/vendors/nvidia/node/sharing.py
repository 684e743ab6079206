"""How physical NVIDIA cards are offered: filtered, split, scaled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from hami_node.model import Device
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.settings import NvidiaSettings


def offered_cards(cards: tuple[Device, ...], settings: NvidiaSettings) -> tuple[Device, ...]:
    """The cards as the settings share them, sorted by (index, uuid).

    A card that is divided into instances is never scaled.
    """
    is_divided = settings.operating_mode is Mode.MIG
    share = _divided(settings) if is_divided else partial(_shared, settings=settings)
    split = [share(card) for card in cards if is_managed(card, settings)]
    return tuple(sorted(split, key=lambda card: (card.index, card.uuid)))


def cards_in_shares(
    cards: tuple[Device, ...], settings: NvidiaSettings, shares: int
) -> tuple[Device, ...]:
    """The cards that the settings cut into so many equal shares, sorted by (index, uuid)."""
    cut = [
        replace(_shared(card, settings), slots=shares)
        for card in cards
        if is_managed(card, settings) and settings.standalone_shares.of(card) == shares
    ]
    return tuple(sorted(cut, key=lambda card: (card.index, card.uuid)))


def _closed(card: Device) -> Device:
    """A card in MIG mode where nobody has asked for that."""
    from hami_node.vendors.nvidia.mig.offer import MODE_ON

    return replace(card, healthy=False, unhealthy_reason=MODE_ON) if card.healthy else card


def is_managed(card: Device, settings: NvidiaSettings) -> bool:
    """False for a card that the settings leave alone."""
    return card.uuid not in settings.filter_uuids and card.index not in settings.filter_indexes


def _divided(settings: NvidiaSettings) -> Callable[[Device], Device]:
    """Loaded where it is needed: most nodes have no card in MIG mode."""
    from hami_node.vendors.nvidia.mig.offer import offered_divided
    from hami_node.vendors.nvidia.mig_rules import mig_rules_of

    return partial(offered_divided, rules=mig_rules_of(settings))


def _shared(card: Device, settings: NvidiaSettings) -> Device:
    split = replace(card, slots=settings.split_count, physical_memory_mib=card.memory_mib)
    if card.mode == Mode.MIG:
        return _closed(split)
    return replace(
        split,
        mode=settings.operating_mode,
        memory_mib=int(card.memory_mib * settings.memory_scaling),
        cores=int(100 * settings.core_scaling),
    )
