"""A node's cards in a register annotation, in the spellings that HAMi's vendors share.

7 fields (2.4):        `uuid,slots,MiB,cores,type,numa,health:` per card
9 fields (2.5 to 2.7): the same and `,index,mode`
JSON (2.8 and later):  a list of objects, zero, false and empty members left out
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence, Sized
from functools import lru_cache
from typing import Final, TypeVar

import msgspec

from hami_node.errors import WireError
from hami_node.model import DEFAULT_MODE, Device, PairScores, Uuid, Vendor
from hami_node.wire.values import MAX_INT32, decode_json, encode_json_text, parse_bool, parse_whole

MOST_CARDS: Final = 256
"""Of one node. An annotation has room for 85,000, and each costs every decision that tries them."""


class DeviceRow(msgspec.Struct):
    """One card as written in the JSON; missing or null members are zero."""

    id: str | None = None
    index: int | None = None
    count: int | None = None
    devmem: int | None = None
    devcore: int | None = None
    type: str | None = None
    numa: int | None = None
    mode: str | None = None
    health: bool | None = None


R = TypeVar("R", bound=DeviceRow)

ROWS: Final = msgspec.json.Decoder(list[DeviceRow])
"""For vendors whose cards have no more than the common members."""


def is_json(text: str) -> bool:
    """True for the JSON form, False for both csv forms."""
    return text.lstrip()[:1] in ("[", "{")


def decode_rows(decoder: msgspec.json.Decoder[list[R]], text: str, key: str) -> list[R]:
    """Read the JSON form as rows.

    Raises:
        WireError: not such a list, too long, or a number outside 0..2^31-1; it names `key`.
    """
    rows = decode_json(decoder, text, key)
    _check_count(rows, key)
    for row in rows:
        numbers = (row.index, row.count, row.devmem, row.devcore)
        if any(not 0 <= (number or 0) <= MAX_INT32 for number in numbers):
            raise WireError(key, text, "a card with an impossible number")
    return rows


def device_of(row: DeviceRow, vendor: Vendor) -> Device:
    """The card of a row; a missing NUMA node is 0, a negative number means unknown."""
    numa = row.numa or 0
    return Device(
        uuid=Uuid(sys.intern(row.id or "")),
        index=row.index or 0,
        vendor=vendor,
        model=sys.intern(row.type or ""),
        mode=sys.intern(row.mode or DEFAULT_MODE),
        numa=numa if numa >= 0 else None,
        healthy=bool(row.health),
        slots=row.count or 0,
        memory_mib=_one_number(row.devmem or 0),
        cores=row.devcore or 0,
    )


@lru_cache(maxsize=1024)
def _one_number(number: int) -> int:
    """One object for all cards of a size."""
    return number


def decode_csv_register(text: str, key: str, vendor: Vendor) -> tuple[Device, ...]:
    """Read the 7 or 9 field form as strictly as HAMi 2.10 does; `model` is the type as written.

    Raises:
        WireError: no `:`, too many cards, neither 7 nor 9 fields, a bad number or boolean, a
            negative index.
    """
    if ":" not in text:
        raise WireError(key, text, "neither JSON nor a list of cards that end in ':'")
    cards = [card for card in text.split(":") if "," in card]
    _check_count(cards, key)
    return tuple(_from_fields(card, key, vendor) for card in cards)


def _check_count(cards: Sized, key: str) -> None:
    if len(cards) > MOST_CARDS:
        raise WireError(key, str(len(cards)), f"more than {MOST_CARDS} cards can't be on one node")


def _from_fields(card: str, key: str, vendor: Vendor) -> Device:
    fields = card.split(",")
    if len(fields) not in (7, 9):
        raise WireError(key, card, "a card needs 7 or 9 fields")
    has_mode = len(fields) == 9
    return Device(
        uuid=Uuid(sys.intern(fields[0])),
        slots=parse_whole(fields[1], key),
        memory_mib=parse_whole(fields[2], key),
        cores=parse_whole(fields[3], key),
        vendor=vendor,
        model=sys.intern(fields[4]),
        numa=None if fields[5] == "-1" else parse_whole(fields[5], key),
        healthy=parse_bool(fields[6], key),
        index=parse_whole(fields[7], key) if has_mode else 0,
        mode=sys.intern(fields[8] if has_mode else DEFAULT_MODE),
    )


def encode_csv7(devices: Iterable[Device], type_prefix: str = "") -> str:
    """Write the form of HAMi 2.4, sorted by (index, uuid)."""
    return "".join(f"{_first_seven(device, type_prefix)}:" for device in in_order(devices))


def encode_csv9(devices: Iterable[Device], type_prefix: str = "") -> str:
    """Write the form of HAMi 2.5 to 2.7, sorted by (index, uuid)."""
    return "".join(
        f"{_first_seven(device, type_prefix)},{device.index},{device.mode}:"
        for device in in_order(devices)
    )


def in_order(devices: Iterable[Device]) -> Sequence[Device]:
    """Sorted by (index, uuid): the same cards give the same text."""
    return sorted(devices, key=lambda device: (device.index, device.uuid))


def _first_seven(device: Device, type_prefix: str) -> str:
    health = "true" if device.healthy else "false"
    return (
        f"{_csv_safe(device.uuid)},{device.slots},{device.memory_mib},{device.cores},"
        f"{type_prefix}{_csv_safe(device.model)},{device.numa or 0},{health}"
    )


def _csv_safe(text: str) -> str:
    """A name with a separator in it would break every card after it."""
    return text.replace(",", " ").replace(":", " ")


def json_row(device: Device, own: Mapping[str, object] | None = None) -> dict[str, object]:
    """One card as a JSON object, without its zero, false and empty members.

    An unknown NUMA node is written as 0, that is left out. `own` are the vendor's own members.
    """
    members: dict[str, object] = {
        "id": device.uuid,
        "index": device.index,
        "count": device.slots,
        "devmem": device.memory_mib,
        "devcore": device.cores,
        "type": device.model,
        "numa": device.numa,
        "mode": device.mode,
        **(own or {}),
        "health": device.healthy,
    }
    return {name: value for name, value in members.items() if value}


def encode_json(devices: Iterable[Device]) -> str:
    """Write the form of HAMi 2.8 and later, sorted by (index, uuid)."""
    return encode_json_text([json_row(device) for device in in_order(devices)])


class _ScoreRow(msgspec.Struct):
    uuid: str = ""
    score: dict[str, int] | None = None


_SCORES: Final = msgspec.json.Decoder(list[_ScoreRow] | None)


def decode_pair_scores(text: str, key: str) -> PairScores:
    """Read `[{"uuid": ..., "score": {uuid: score}}]`; an empty text is no scores.

    Raises:
        WireError: not of that form.
    """
    if not text:
        return {}
    rows = decode_json(_SCORES, text, key) or []
    return {
        Uuid(row.uuid): {Uuid(other): score for other, score in (row.score or {}).items()}
        for row in rows
    }


def encode_pair_scores(scores: PairScores) -> str:
    """Write pair scores, sorted by UUID at both levels."""
    return encode_json_text(
        [{"uuid": uuid, "score": dict(sorted(scores[uuid].items()))} for uuid in sorted(scores)]
    )
