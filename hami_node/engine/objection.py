"""What the last check before a container gets its cards may find."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hami_node.engine.usage import DeviceUsage
from hami_node.model import Uuid


class Doubt(StrEnum):
    """Why a reservation is not what the container asks for. Words for logs and metrics.

    Vendors have doubts of their own.
    """

    COUNT_DIFFERS = "count-differs"
    VENDOR_DIFFERS = "vendor-differs"
    UNKNOWN_CARD = "unknown-card"
    CARD_TWICE = "card-granted-twice"
    MEMORY_ABOVE_ASK = "memory-above-ask"
    MEMORY_WITHOUT_LIMIT = "memory-without-limit"
    CORES_ABOVE_ASK = "cores-above-ask"
    CORES_WITHOUT_LIMIT = "cores-without-limit"
    NEGATIVE = "negative-amount"
    CONTRADICTION = "contradicts-other-grants"


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Two numbers that contradict each other.

    Attributes:
        left: what is free on the card, or with `is_allowance` what the ask allows.
        asked: what the reservation holds.
        unit: `cards`, `slots`, `MiB`, `percent`, `cores` or `mask`.
    """

    left: int
    asked: int
    unit: str
    is_allowance: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """Why the reservation is refused.

    Attributes:
        reason: a filter's reason, or a doubt about the reservation itself.
        uuid: the card it is about; None for the reservation as a whole.
        index: that card's index; None where the node has no such card.
        amounts: what is left and what is asked; None where nothing is counted.
        detail: more for people; "" for nothing.
    """

    reason: StrEnum
    uuid: Uuid | None = None
    index: int | None = None
    amounts: Amounts | None = None
    detail: str = ""


def objection_to(
    card: DeviceUsage, reason: StrEnum, amounts: Amounts | None = None, detail: str = ""
) -> Objection:
    """An objection that concerns one card of the node."""
    device = card.device
    return Objection(
        reason=reason, uuid=device.uuid, index=device.index, amounts=amounts, detail=detail
    )
