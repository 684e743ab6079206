"""Grants and answers as the ledger keeps them: text, from which the same values are read."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec

from hami_node.errors import WireError
from hami_node.model import ContainerGrants, Pod, Uuid
from hami_node.record.ledger import Entry
from hami_node.vendors.on_node.answer import ContainerResponse
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire.grants import decode_grants, encode_grants

_ANSWERS: Final = msgspec.json.Decoder(ContainerResponse)


def grants_text(vendor: VendorProtocol, grants: ContainerGrants) -> tuple[str, str]:
    """One container's grants, and the parts of divided cards that they name, for an entry."""
    slot = tuple(replace(grant, uuid=Uuid(vendor.uuid_of(grant))) for grant in grants)
    return encode_grants([slot]), vendor.parts_text([grants])


def grants_of(vendor: VendorProtocol, entry: Entry) -> ContainerGrants:
    """The grants of an entry of that vendor.

    Raises:
        WireError: they can't be read.
    """
    keys = vendor.keys.grants
    slots = decode_grants(entry.grants, keys.allocated, keys.vendor)
    if len(slots) != 1:
        raise WireError("grants of the record", entry.grants, "not the grants of one container")
    stub = Pod(
        uid=entry.pod_uid,
        namespace=entry.namespace,
        name=entry.pod,
        annotations={keys.parts: entry.parts} if keys.parts else {},
    )
    return vendor.with_parts(stub, slots)[0]


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
