"""How physical NVIDIA cards are offered: filtered, split, scaled."""

from __future__ import annotations

from dataclasses import replace

from hami_node.model import Device
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.settings import NvidiaSettings


def offered_cards(cards: tuple[Device, ...], settings: NvidiaSettings) -> tuple[Device, ...]:
    """The cards as the settings share them, sorted by (index, uuid).

    A card in MIG mode is never scaled.
    """
    split = [_shared(card, settings) for card in cards if _is_shown(card, settings)]
    return tuple(sorted(split, key=lambda card: (card.index, card.uuid)))


def cards_in_shares(
    cards: tuple[Device, ...], settings: NvidiaSettings, shares: int
) -> tuple[Device, ...]:
    """The cards that the settings cut into so many equal shares, sorted by (index, uuid)."""
    cut = [
        replace(_shared(card, settings), slots=shares)
        for card in cards
        if _is_shown(card, settings) and settings.standalone_shares.of(card) == shares
    ]
    return tuple(sorted(cut, key=lambda card: (card.index, card.uuid)))


def _is_shown(card: Device, settings: NvidiaSettings) -> bool:
    return card.uuid not in settings.filter_uuids and card.index not in settings.filter_indexes


def _shared(card: Device, settings: NvidiaSettings) -> Device:
    split = replace(card, slots=settings.split_count, physical_memory_mib=card.memory_mib)
    if card.mode == Mode.MIG:
        return split
    return replace(
        split,
        mode=settings.operating_mode,
        memory_mib=int(card.memory_mib * settings.memory_scaling),
        cores=int(100 * settings.core_scaling),
    )
