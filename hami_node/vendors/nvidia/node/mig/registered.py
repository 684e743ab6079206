"""Cards in MIG mode in the register annotation, and what of the lists is not true of them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from hami_node.logs import kv
from hami_node.model import Device
from hami_node.vendors.nvidia.choices import RegisterFormat
from hami_node.vendors.nvidia.mig.layout import MigLayout, layout_of
from hami_node.vendors.nvidia.mig.offer import (
    MigRules,
    is_by_template,
    short_entries,
    unknown_names,
)
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.node.sharing import mig_rules_of
from hami_node.vendors.nvidia.settings import NvidiaSettings

log = logging.getLogger(__name__)


class RegisteredMig:
    """How cards in MIG mode are registered; says once what a list names and a card lacks."""

    def __init__(self, settings: Callable[[], NvidiaSettings]) -> None:
        """By the settings in force."""
        self._settings = settings
        self._said: set[tuple[str, str]] = set()

    def as_registered(self, cards: tuple[Device, ...], form: RegisterFormat) -> tuple[Device, ...]:
        """The cards as the register in this form should have them."""
        rules = mig_rules_of(self._settings())
        for card in cards:
            if card.mode == Mode.MIG:
                self._check_lists(card, rules)
        return tuple(
            _registered(card, form, rules) if card.mode == Mode.MIG else card for card in cards
        )

    def _check_lists(self, card: Device, rules: MigRules) -> None:
        unknown = ", ".join(unknown_names(card, rules))
        if self._is_new(card, unknown):
            log.warning(
                "mig_profiles_unknown",
                extra=kv(
                    model=card.model,
                    profiles=unknown,
                    hint="migProfileAllowlist or knownMigGeometries names what the driver does not "
                    "list for this card (nvidia-smi mig -lgip): it is not served there",
                ),
            )
        short = ", ".join(
            f"{entry.name} {entry.memory_mib} MiB, really {real} MiB"
            for entry, real in short_entries(card, rules)
        )
        if self._is_new(card, short):
            log.warning(
                "mig_geometries_too_large",
                extra=kv(
                    model=card.model,
                    entries=short,
                    hint="pods that ask for more than an instance really has are given it all the "
                    "same: lower the sizes in knownMigGeometries, for scheduler and nodes alike",
                ),
            )

    def _is_new(self, card: Device, text: str) -> bool:
        is_new = bool(text) and (card.model, text) not in self._said
        if is_new:
            self._said.add((card.model, text))
        return is_new


def _registered(card: Device, form: RegisterFormat, rules: MigRules) -> Device:
    """Only the protocol in which it is offered: a scheduler that reads both would mix them.

    HAMi 2.4 knows no mode, and would share the card by limits.
    """
    profiles = () if is_by_template(card, rules) else layout_of(card).profiles
    is_readable = form is not RegisterFormat.CSV7
    return replace(card, detail=MigLayout(profiles=profiles), healthy=card.healthy and is_readable)
