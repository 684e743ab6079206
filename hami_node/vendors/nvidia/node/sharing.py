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
    shown = [
        card
        for card in cards
        if card.uuid not in settings.filter_uuids and card.index not in settings.filter_indexes
    ]
    split = [_shared(card, settings) for card in shown]
    return tuple(sorted(split, key=lambda card: (card.index, card.uuid)))


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
