"""Device IDs of other device plugins that name NVIDIA cards: which cards they hold. Pure.

Sources: NVIDIA/k8s-device-plugin, whose IDs are the UUIDs of cards and MIG instances, with `::<n>`
where a card is shared by time-slicing or MPS; HAMi and its forks, `<uuid>-<n>`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from hami_node.model import Device, Uuid
from hami_node.vendors.nvidia.mig.layout import mig_of
from hami_node.vendors.nvidia.mode import Mode

_HEX_UUID: Final = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_CARD: Final = re.compile(rf"(?:MIG-)?(GPU-{_HEX_UUID})(?:::[0-9]{{1,6}}|-[0-9]{{1,6}}|/[0-9/]*)?")
_INSTANCE: Final = re.compile(rf"MIG-{_HEX_UUID}(?:::[0-9]{{1,6}})?")


def cards_named(device_id: str, cards: Sequence[Device]) -> tuple[Uuid, ...] | None:
    """Those of these cards that a container with this ID holds; None where it is no ID of a card.

    A MIG instance does not tell its card: where not all instances are known, it may be on any card
    in MIG mode.
    """
    if _INSTANCE.fullmatch(device_id):
        return _with_instance(device_id.partition("::")[0], cards)
    named = _CARD.fullmatch(device_id)
    if named is None:
        return None
    return tuple(card.uuid for card in cards if card.uuid == named[1])


def _with_instance(uuid: str, cards: Sequence[Device]) -> tuple[Uuid, ...]:
    divided = [card for card in cards if card.mode == Mode.MIG]
    named = tuple(card.uuid for card in divided if uuid in _instances_of(card))
    are_known = all((mig := mig_of(card)) is not None and not mig.problem for card in divided)
    return named if named or are_known else tuple(card.uuid for card in divided)


def _instances_of(card: Device) -> frozenset[str]:
    mig = mig_of(card)
    found = mig.instances if mig is not None else ()
    return frozenset(item.device.uuid for item in found if item.device is not None)
