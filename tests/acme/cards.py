"""ACME's scheduling rules: plain cards, and a firmware that a pod may ask for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from hami_node.engine.card_rules import CardRules, OwnFilter
from hami_node.engine.compat import FilterName
from hami_node.engine.filters import FitContext
from hami_node.engine.usage import DeviceUsage


class AcmeReason(StrEnum):
    """Why an ACME card can't serve."""

    OLD_FIRMWARE = "CardFirmwareTooOld"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcmeDetail:
    """`Device.detail`: the firmware's version."""

    firmware: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AcmeWishes:
    """`CardWishes.detail`: the least version of the firmware."""

    min_firmware: int


def has_firmware(card: DeviceUsage, ctx: FitContext) -> AcmeReason | None:
    """Reject a card whose firmware is older than wished."""
    wished, detail = ctx.wishes.detail, card.device.detail
    if not isinstance(wished, AcmeWishes):
        return None
    is_new = isinstance(detail, AcmeDetail) and detail.firmware >= wished.min_firmware
    return None if is_new else AcmeReason.OLD_FIRMWARE


class AcmeCards(CardRules):
    """Plain cards with one rule of their own."""

    own_filters = (OwnFilter(rule=has_firmware, after=FilterName.UUID),)


ACME: Final = AcmeCards("ACME")
