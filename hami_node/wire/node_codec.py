"""A node's cards in its register annotation, in every spelling from HAMi 2.4 to 2.10.

7 fields (2.4):        `uuid,slots,MiB,cores,type,numa,health:` per card
9 fields (2.5 to 2.7): the same and `,index,mode`
JSON (2.8 and later):  a list of objects, zero, false and empty members left out
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from hami_node.errors import WireError
from hami_node.model import (
    Device,
    MigPlacement,
    MigProfile,
    MigTemplate,
    Mode,
    Uuid,
    Vendor,
)
from hami_node.wire import names
from hami_node.wire.json_text import decode_json, encode_json_text
from hami_node.wire.scalars import MAX_INT32, parse_bool, parse_whole

CSV_TYPE_PREFIX: Final = "NVIDIA-"
"""Before NVML's name in the csv forms: their schedulers look for "NVIDIA" in the type."""

PairScores = Mapping[Uuid, Mapping[Uuid, int]]
"""How well two cards are linked, by card and card."""

_KEY: Final = names.NODE_REGISTER


class _Placement(msgspec.Struct):
    start: int = 0
    size: int = 0


class _Profile(msgspec.Struct):
    name: str = ""
    memory_mb: int = msgspec.field(name="memoryMB", default=0)
    core: int = 0
    slice_count: int = msgspec.field(name="sliceCount", default=0)
    placements: list[_Placement] | None = None


class _Template(msgspec.Struct):
    name: str = ""
    memory_mb: int = msgspec.field(name="memoryMB", default=0)
    core: int = 0
    count: int = 1


class DeviceRow(msgspec.Struct):
    """One card as it stands in the JSON; missing or null members are zero."""

    id: str | None = None
    index: int | None = None
    count: int | None = None
    devmem: int | None = None
    devcore: int | None = None
    type: str | None = None
    numa: int | None = None
    mode: str | None = None
    health: bool | None = None
    mig_profiles: list[_Profile] | None = msgspec.field(name="migProfiles", default=None)
    mig_templates: list[list[_Template]] | None = msgspec.field(name="migTemplates", default=None)


_ROWS: Final = msgspec.json.Decoder(list[DeviceRow])


def decode_register(text: str) -> tuple[Device, ...]:
    """Read a register annotation of any generation, in the order registered.

    `model` is the type as written. An empty text registers no card.

    Raises:
        WireError: no generation's form; one bad card makes the whole text bad.
    """
    stripped = text.strip()
    if not stripped:
        return ()
    is_json = stripped[0] in "[{"
    return decode_json_register(stripped) if is_json else decode_csv_register(stripped)


def decode_json_register(text: str) -> tuple[Device, ...]:
    """Read the JSON form.

    Raises:
        WireError: not such a list, or a number outside 0..2^31-1.
    """
    return tuple(_from_row(row, text) for row in decode_json(_ROWS, text, _KEY))


def _from_row(row: DeviceRow, text: str) -> Device:
    check_numbers(row, _KEY, text)
    return Device(
        uuid=Uuid(row.id or ""),
        index=row.index or 0,
        vendor=Vendor.NVIDIA,
        model=sys.intern(row.type or ""),
        mode=sys.intern(row.mode or Mode.HAMI_CORE.value),
        numa=_numa_of(row.numa or 0),
        healthy=bool(row.health),
        slots=row.count or 0,
        memory_mib=row.devmem or 0,
        cores=row.devcore or 0,
        mig_profiles=tuple(map(_profile_of, row.mig_profiles or ())),
        mig_templates=tuple(
            tuple(map(_template_of, geometry)) for geometry in row.mig_templates or ()
        ),
    )


def check_numbers(row: DeviceRow, key: str, text: str) -> None:
    """Refuse a row whose numbers can't be a card's.

    Raises:
        WireError: a number is negative or above 2^31-1; it names `key` and shows `text`.
    """
    numbers = (row.index, row.count, row.devmem, row.devcore)
    if any(not 0 <= (number or 0) <= MAX_INT32 for number in numbers):
        raise WireError(key, text, "a card with an impossible number")


def _numa_of(number: int) -> int | None:
    return number if number >= 0 else None


def _profile_of(row: _Profile) -> MigProfile:
    places = (MigPlacement(start=place.start, size=place.size) for place in row.placements or ())
    return MigProfile(
        name=row.name,
        memory_mib=row.memory_mb,
        cores=row.core,
        slice_count=row.slice_count,
        placements=tuple(places),
    )


def _template_of(row: _Template) -> MigTemplate:
    return MigTemplate(name=row.name, memory_mib=row.memory_mb, cores=row.core, count=row.count)


def decode_csv_register(text: str) -> tuple[Device, ...]:
    """Read the 7 or 9 field form as strictly as HAMi 2.10 does.

    Raises:
        WireError: no `:`, neither 7 nor 9 fields, a bad number or boolean, a negative index.
    """
    return _decode_csv(text, _strict_whole, _strict_bool)


def decode_csv_register_leniently(text: str) -> tuple[Device, ...]:
    """Read the 7 or 9 field form as HAMi 2.8 does: a bad number is 0, a bad boolean is false.

    Raises:
        WireError: no `:`, or neither 7 nor 9 fields.
    """
    return _decode_csv(text, _lenient_whole, _lenient_bool)


def _decode_csv(
    text: str, whole: Callable[[str], int], boolean: Callable[[str], bool]
) -> tuple[Device, ...]:
    if ":" not in text:
        raise WireError(_KEY, text, "neither JSON nor a list of cards that end in ':'")
    cards = (card for card in text.split(":") if "," in card)
    return tuple(_from_fields(card.split(","), card, whole, boolean) for card in cards)


def _from_fields(
    fields: list[str], text: str, whole: Callable[[str], int], boolean: Callable[[str], bool]
) -> Device:
    if len(fields) not in (7, 9):
        raise WireError(_KEY, text, "a card needs 7 or 9 fields")
    has_mode = len(fields) == 9
    return Device(
        uuid=Uuid(fields[0]),
        slots=whole(fields[1]),
        memory_mib=whole(fields[2]),
        cores=whole(fields[3]),
        vendor=Vendor.NVIDIA,
        model=sys.intern(fields[4]),
        numa=None if fields[5] == "-1" else whole(fields[5]),
        healthy=boolean(fields[6]),
        index=whole(fields[7]) if has_mode else 0,
        mode=sys.intern(fields[8] if has_mode else Mode.HAMI_CORE.value),
    )


def _strict_whole(text: str) -> int:
    return parse_whole(text, _KEY)


def _strict_bool(text: str) -> bool:
    return parse_bool(text, _KEY)


def _lenient_whole(text: str) -> int:
    try:
        return parse_whole(text, _KEY)
    except WireError:
        return 0


def _lenient_bool(text: str) -> bool:
    try:
        return parse_bool(text, _KEY)
    except WireError:
        return False


def encode_csv7(devices: Iterable[Device], type_prefix: str = CSV_TYPE_PREFIX) -> str:
    """Write the form of HAMi 2.4, sorted by (index, uuid)."""
    return "".join(f"{_first_seven(device, type_prefix)}:" for device in _ordered(devices))


def encode_csv9(devices: Iterable[Device], type_prefix: str = CSV_TYPE_PREFIX) -> str:
    """Write the form of HAMi 2.5 to 2.7, sorted by (index, uuid)."""
    return "".join(
        f"{_first_seven(device, type_prefix)},{device.index},{device.mode}:"
        for device in _ordered(devices)
    )


def _ordered(devices: Iterable[Device]) -> list[Device]:
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


def encode_json(devices: Iterable[Device], *, with_pair_scores: bool = False) -> str:
    """Write the form of HAMi 2.8 and later, sorted by (index, uuid).

    Zero, false and empty members are left out, as its writer does; an unknown NUMA node is
    written as 0. `with_pair_scores` adds the empty member that 2.8 and 2.9 write.
    """
    rows = []
    for device in _ordered(devices):
        row = json_row(device)
        if with_pair_scores:
            row["devicepairscore"] = {}
        rows.append(row)
    return encode_json_text(rows)


def json_row(device: Device) -> dict[str, object]:
    """One card as a JSON object, without its zero, false and empty members."""
    members: dict[str, object] = {
        "id": device.uuid,
        "index": device.index,
        "count": device.slots,
        "devmem": device.memory_mib,
        "devcore": device.cores,
        "type": device.model,
        "numa": device.numa,
        "mode": device.mode,
        "migProfiles": [_profile_row(profile) for profile in device.mig_profiles],
        "migTemplates": [
            [_template_row(template) for template in geometry] for geometry in device.mig_templates
        ],
        "health": device.healthy,
    }
    return {name: value for name, value in members.items() if value}


def _profile_row(profile: MigProfile) -> dict[str, object]:
    return {
        "name": profile.name,
        "memoryMB": profile.memory_mib,
        "core": profile.cores,
        "sliceCount": profile.slice_count,
        "placements": [{"start": p.start, "size": p.size} for p in profile.placements],
    }


def _template_row(template: MigTemplate) -> dict[str, object]:
    return {
        "name": template.name,
        "memoryMB": template.memory_mib,
        "core": template.cores,
        "count": template.count,
    }


class _ScoreRow(msgspec.Struct):
    uuid: str = ""
    score: dict[str, int] | None = None


_SCORES: Final = msgspec.json.Decoder(list[_ScoreRow] | None)


def decode_pair_scores(text: str) -> PairScores:
    """Read `[{"uuid": ..., "score": {uuid: score}}]`; an empty text is no scores.

    Raises:
        WireError: not of that form.
    """
    if not text:
        return {}
    rows = decode_json(_SCORES, text, names.NODE_PAIR_SCORES) or []
    return {
        Uuid(row.uuid): {Uuid(other): score for other, score in (row.score or {}).items()}
        for row in rows
    }


def encode_pair_scores(scores: PairScores) -> str:
    """Write pair scores, sorted by UUID at both levels."""
    return encode_json_text(
        [{"uuid": uuid, "score": dict(sorted(scores[uuid].items()))} for uuid in sorted(scores)]
    )
