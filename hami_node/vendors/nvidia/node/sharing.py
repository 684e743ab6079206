"""How physical NVIDIA cards are offered: filtered, split, scaled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from hami_node.model import Device
from hami_node.vendors.nvidia.choices import RegisterFormat
from hami_node.vendors.nvidia.mig.layout import closed
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.settings import NvidiaSettings

if TYPE_CHECKING:
    from hami_node.vendors.nvidia.mig.offer import MigRules


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


def is_managed(card: Device, settings: NvidiaSettings) -> bool:
    """False for a card that the settings leave alone."""
    return card.uuid not in settings.filter_uuids and card.index not in settings.filter_indexes


def _divided(settings: NvidiaSettings) -> Callable[[Device], Device]:
    """Loaded where it is needed: most nodes have no card in MIG mode."""
    from hami_node.vendors.nvidia.mig.offer import offered_divided

    return partial(offered_divided, rules=mig_rules_of(settings))


def _shared(card: Device, settings: NvidiaSettings) -> Device:
    split = replace(card, slots=settings.split_count, physical_memory_mib=card.memory_mib)
    if card.mode == Mode.MIG:
        from hami_node.vendors.nvidia.mig.offer import MODE_ON

        return closed(split, MODE_ON)
    return replace(
        split,
        mode=settings.operating_mode,
        memory_mib=int(card.memory_mib * settings.memory_scaling),
        cores=int(100 * settings.core_scaling),
    )


def mig_rules_of(settings: NvidiaSettings) -> MigRules:
    """What the settings say of cards in MIG mode."""
    from hami_node.vendors.nvidia.mig.offer import MigRules

    return MigRules(
        allowed=settings.mig_profile_allowlist,
        geometries=settings.known_mig_geometries,
        is_csv=settings.register_format in (RegisterFormat.CSV7, RegisterFormat.CSV9),
    )
