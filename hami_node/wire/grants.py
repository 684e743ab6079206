"""Grants in pod annotations: `uuid,vendor,MiB,cores:` per card, `;` after each container.

Source: HAMi 2.4 to 2.10 (device/devices.go, EncodePodDevices and DecodePodDevices).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hami_node.errors import WireError
from hami_node.model import ContainerGrants, Grant, Uuid, Vendor
from hami_node.wire.values import parse_whole


def decode_grants(text: str, key: str, vendor: Vendor) -> tuple[ContainerGrants, ...]:
    """Read the grants of a pod, a tuple per slot, empty slots kept.

    `vendor` is whose annotation it is; grants with another word keep that word. UUIDs stay as they
    are written, with what a vendor appends to them.

    The text ends each slot with `;`, so a single empty slot at the end is dropped. `;`, `;;`
    and 2.4's `,,0,0:;` all spell slots without a card. Fields after the fourth are ignored, and
    so is a piece without any comma.

    Raises:
        WireError: an entry has two or three fields, names no card, or holds a bad number. A zero
            would mean "unlimited" in the container, so nothing is read as zero.
    """
    slots = [_decode_slot(slot, key, vendor) for slot in text.split(";")]
    if not slots[-1]:
        slots.pop()
    return tuple(slots)


def _decode_slot(text: str, key: str, vendor: Vendor) -> ContainerGrants:
    grants = [_decode_entry(entry, key, vendor) for entry in text.split(":") if "," in entry]
    return tuple([grant for grant in grants if grant is not None])


def _decode_entry(text: str, key: str, vendor: Vendor) -> Grant | None:
    fields = text.split(",")
    if len(fields) < 4:
        raise WireError(key, text, "an entry needs four fields: uuid,vendor,MiB,cores")
    uuid, word = fields[0], fields[1]
    memory_mib, cores = parse_whole(fields[2], key), parse_whole(fields[3], key)
    if not uuid and not word and not memory_mib and not cores:
        return None
    if not uuid or not word:
        raise WireError(key, text, "an entry without a card or without a vendor")
    return Grant(
        uuid=Uuid(sys.intern(uuid)),
        vendor=vendor if word == vendor.word else word,
        memory_mib=memory_mib,
        cores=cores,
    )


def encode_grants(slots: Sequence[ContainerGrants]) -> str:
    """Write the grants of a pod, a slot per element; `decode_grants` reverses it."""
    return "".join("".join(map(_encode_entry, slot)) + ";" for slot in slots)


def _encode_entry(grant: Grant) -> str:
    return f"{grant.uuid},{grant.vendor},{grant.memory_mib},{grant.cores}:"
