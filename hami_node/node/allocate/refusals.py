"""The sentence that a user reads when a container is refused: card, free, asked, remedy."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from hami_node.engine.filters import Reason
from hami_node.engine.objection import Doubt, Objection

RECREATE: Final = "delete and recreate the pod, so that the scheduler places it again"

_MEANINGS: Final[dict[StrEnum, str]] = {
    Doubt.COUNT_DIFFERS: "the reservation does not have as many cards as the container asks for",
    Doubt.VENDOR_DIFFERS: "the reserved card is of another vendor",
    Doubt.UNKNOWN_CARD: "the reserved card is not on this node",
    Doubt.CARD_TWICE: "the reservation names one card twice",
    Doubt.MEMORY_ABOVE_ASK: "the reservation holds more memory than the container asks for",
    Doubt.MEMORY_WITHOUT_LIMIT: "the reservation lifts the memory limit the container asks for",
    Doubt.CORES_ABOVE_ASK: "the reservation holds more cores than the container asks for",
    Doubt.CORES_WITHOUT_LIMIT: "the reservation lifts the core limit the container asks for",
    Doubt.NEGATIVE: "the reservation holds a negative amount",
    Doubt.CONTRADICTION: "the reservation contradicts other grants on the card",
    Reason.NOT_HEALTHY: "the card is unhealthy",
    Reason.TOO_LITTLE_MEMORY: "the card has too little free memory",
    Reason.TOO_FEW_CORES: "the card has too few free cores",
    Reason.TYPE_MISMATCH: "the pod's annotations exclude this type of card",
    Reason.UUID_MISMATCH: "the pod's annotations exclude this card",
    Reason.NO_SLOT: "all slots of the card are taken",
    Reason.NOT_EXCLUSIVE: "the container asks for the whole card and others use it",
    Reason.NO_CORES_LEFT: "all cores of the card are taken",
}


def sentence(container: str, objection: Objection, meanings: Mapping[StrEnum, str]) -> str:
    """Explain why this container is refused.

    Args:
        container: `namespace/pod/container`.
        objection: what the engine found.
        meanings: what the vendor's own reasons mean.
    """
    known = _MEANINGS.get(objection.reason) or meanings.get(objection.reason)
    why = f"{container}: {known or objection.reason}"
    if objection.detail:
        why += f" ({objection.detail})"
    details = (_card(objection), _numbers(objection), str(objection.reason))
    return f"{why}: {', '.join(filter(None, details))}: {RECREATE}"


def _card(objection: Objection) -> str:
    if objection.uuid is None:
        return ""
    if objection.index is None:
        return f"card {objection.uuid}"
    return f"card {objection.index} ({objection.uuid})"


def _numbers(objection: Objection) -> str:
    amounts = objection.amounts
    if amounts is None:
        return ""
    first = "allowed" if amounts.is_allowance else "free"
    unit = "%" if amounts.unit == "percent" else amounts.unit
    return f"{first} {amounts.left} {unit}, asked {amounts.asked} {unit}"
