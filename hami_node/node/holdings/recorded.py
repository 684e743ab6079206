"""Grants and answers as the ledger's file has them: text, from which the same values are read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import msgspec

from hami_node.errors import WireError
from hami_node.model import ContainerGrants, Pod, Uuid
from hami_node.record.ledger import Entry, GrantCodec
from hami_node.vendors.on_node.answer import ContainerResponse
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire.grants import decode_grants, encode_grants

_ANSWERS: Final = msgspec.json.Decoder(ContainerResponse)


def grant_codec(vendors: Iterable[VendorProtocol]) -> GrantCodec:
    """How these vendors write grants. Of others nothing counts here, and nothing is written."""
    by_word = {vendor.cards.word: vendor for vendor in vendors}

    def encode(word: str, grants: ContainerGrants) -> tuple[str, str]:
        vendor = by_word.get(word)
        if vendor is None:
            return "", ""
        slot = tuple(replace(grant, uuid=Uuid(vendor.uuid_of(grant))) for grant in grants)
        return encode_grants([slot]), vendor.parts_text([grants])

    def decode(word: str, grants: str, parts: str) -> ContainerGrants:
        vendor = by_word.get(word)
        if vendor is None:
            return ()
        keys = vendor.keys.grants
        slots = decode_grants(grants, keys.allocated, keys.vendor)
        if len(slots) != 1:
            raise WireError("grants of the record", grants, "not the grants of one container")
        notes = {keys.parts: parts} if keys.parts else {}
        stub = Pod(uid="", namespace="", name="", annotations=notes)
        return vendor.with_parts(stub, slots)[0]

    return GrantCodec(encode, decode)


def answer_text(answer: ContainerResponse) -> str:
    """An answer for an entry."""
    return msgspec.json.encode(answer).decode()


def answer_of(entry: Entry) -> ContainerResponse | None:
    """The answer that the container got; None where the entry has none that can be read."""
    if not entry.answer:
        return None
    try:
        return _ANSWERS.decode(entry.answer)
    except msgspec.MsgspecError:
        return None
