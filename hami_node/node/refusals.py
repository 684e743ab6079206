"""The sentence that a user reads when a container is refused: card, free, asked, cure."""

from __future__ import annotations

from typing import Final

from hami_node.engine.check import Doubt, Objection
from hami_node.engine.filters import Reason

RECREATE: Final = "create the pod again so that the scheduler chooses anew"

_MEANING: Final[dict[Reason | Doubt, str]] = {
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
    Doubt.NO_INSTANCE: "the card offers no such MIG instance",
    Doubt.NO_INSTANCE: "the reservation is none of the card's MIG instances",
    Doubt.CORES_TAKEN: "the reserved cores are held by others",
    Reason.NOT_HEALTHY: "the card is unhealthy",
    Reason.TOO_LITTLE_MEMORY: "the card has too little free memory",
    Reason.TOO_FEW_CORES: "the card has too few free cores",
    Reason.TYPE_MISMATCH: "the pod does not want this type of card",
    Reason.UUID_MISMATCH: "the pod does not want this card",
    Reason.NO_SLOT: "all slots of the card are taken",
    Reason.NOT_EXCLUSIVE: "the whole card is asked for and others use it",
    Reason.NO_CORES_LEFT: "all cores of the card are taken",
}


def sentence(container: str, objection: Objection) -> str:
    """Say why this container is refused.

    Args:
        container: `namespace/pod/container`.
        objection: what the engine found.
    """
    words = [f"{container}: {_MEANING.get(objection.reason, str(objection.reason))}"]
    if objection.detail:
        words.append(f"({objection.detail})")
    where = _card(objection)
    numbers = _numbers(objection)
    details = ", ".join(part for part in (where, numbers, str(objection.reason)) if part)
    return f"{' '.join(words)}: {details}: {RECREATE}"


def _card(objection: Objection) -> str:
    if objection.uuid is None:
        return ""
    if objection.index is None:
        return f"card {objection.uuid}"
    return f"card {objection.index} ({objection.uuid})"


def _numbers(objection: Objection) -> str:
    if objection.free is None or objection.asked is None:
        return ""
    is_limit = isinstance(objection.reason, Doubt) and objection.reason is not Doubt.CORES_TAKEN
    first = "allowed" if is_limit else "free"
    unit = {"percent": " %", "": ""}.get(objection.unit, f" {objection.unit}")
    return f"{first} {objection.free}{unit}, asked {objection.asked}{unit}"
