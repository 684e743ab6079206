"""ACME cards in Kubernetes objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hami_node.model import NO_CARD_WISHES, CardWishes, Device, Node
from hami_node.vendors.protocol import VendorKeys, VendorProtocol
from hami_node.wire.reservation import GrantKeys
from tests.acme import codec, names
from tests.acme.cards import ACME, AcmeReason, AcmeWishes

KEYS: Final = VendorKeys(
    grants=GrantKeys(vendor=ACME, allocated=names.POD_ALLOCATED, to_allocate=names.POD_TO_ALLOCATE),
    register=names.NODE_REGISTER,
    handshake=names.NODE_HANDSHAKE,
    reservation=(names.POD_ALLOCATED, names.POD_TO_ALLOCATE),
)


@dataclass(frozen=True, kw_only=True)
class AcmeProtocol(VendorProtocol):
    """What ACME's cards do otherwise than plain ones."""

    def wishes_of(self, annotations: Mapping[str, str]) -> CardWishes:
        """The least firmware."""
        text = annotations.get(names.MIN_FIRMWARE, "")
        if not text.isdigit():
            return NO_CARD_WISHES
        return CardWishes(detail=AcmeWishes(min_firmware=int(text)))

    def decode_register(self, text: str, node: Node) -> tuple[Device, ...]:
        """With the firmware."""
        del node
        return codec.decode_cards(text)


def acme_protocol(resource: str = names.RESOURCE_CARD) -> AcmeProtocol:
    """ACME under these settings."""
    return AcmeProtocol(
        cards=ACME,
        title="ACME",
        keys=KEYS,
        resources=(resource, names.RESOURCE_MEMORY, names.RESOURCE_CORES),
        counted=(resource,),
        memory=names.RESOURCE_MEMORY,
        cores=names.RESOURCE_CORES,
        lasting=frozenset({AcmeReason.OLD_FIRMWARE}),
    )
