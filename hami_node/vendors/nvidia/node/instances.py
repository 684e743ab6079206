"""MIG instances that others have made, as resources of this node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from hami_node.model import Device
from hami_node.vendors.nvidia.mig.static import (
    closed,
    in_mig_mode,
    instances_on,
    profiles_on,
    resource_of,
    unequal,
    with_instances,
)
from hami_node.vendors.nvidia.mode import MigStrategy
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.spec import PluginOptions, ServedResource

Cards = tuple[Device, ...]
Offered = Callable[[Cards, NvidiaSettings], Cards]


def instance_resources(
    settings: NvidiaSettings, cards: Cards, placed: ServedResource[NvidiaSettings]
) -> tuple[ServedResource[NvidiaSettings], ...]:
    """The resource of whole cards or of equal instances, and one for each profile where mixed.

    Args:
        settings: with a strategy for instances.
        cards: the physical cards.
        placed: the resource that a scheduler places.
    """
    if settings.mig_strategy is MigStrategy.SINGLE:
        if not cards:
            return ()  # whole cards or instances? that takes a card to tell
        return (_of_instances(settings.resource_count, _equal),)
    shown = _shown(cards, settings)
    return (
        replace(placed, offered=partial(_undivided, placed.offered)),
        *(
            _of_instances(resource_of(profile), partial(_of_profile, profile))
            for profile in profiles_on(shown)
        ),
    )


def _of_instances(name: str, offered: Offered) -> ServedResource[NvidiaSettings]:
    return ServedResource(
        name=name,
        offered=offered,
        options=_options,
        count_setting="mig-strategy",
        has_own_ids=True,
    )


def _options(settings: NvidiaSettings) -> PluginOptions:
    """NUMA nodes are always shown: an ID is the instance itself."""
    return PluginOptions(prefers=settings.preferred_allocation, shows_numa=True)


def _equal(cards: Cards, settings: NvidiaSettings) -> Cards:
    """Strategy single: all instances of all cards."""
    shown = _shown(cards, settings)
    why = unequal(shown)
    return tuple(closed(with_instances(card), why) for card in shown)


def _of_profile(profile: str, cards: Cards, settings: NvidiaSettings) -> Cards:
    """Strategy mixed: the instances of one profile."""
    offered = (with_instances(card, profile) for card in _shown(cards, settings))
    return tuple(card for card in offered if card.ids)


def _undivided(offered: Offered, cards: Cards, settings: NvidiaSettings) -> Cards:
    """Strategy mixed: cards outside MIG mode, and for people those that have no instance."""
    empty = (
        with_instances(card)
        for card in _shown(cards, settings)
        if in_mig_mode(card) and not instances_on(card)
    )
    others = offered(tuple(card for card in cards if not in_mig_mode(card)), settings)
    return tuple(sorted((*others, *empty), key=_order))


def _shown(cards: Cards, settings: NvidiaSettings) -> Cards:
    """All but those that are to be left alone, by number."""
    kept = (
        card
        for card in cards
        if card.uuid not in settings.filter_uuids and card.index not in settings.filter_indexes
    )
    return tuple(sorted(kept, key=_order))


def _order(card: Device) -> tuple[int, str]:
    return card.index, card.uuid
