"""NVIDIA cards in the register annotation, in every format from HAMi 2.4 to 2.10."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import msgspec

from hami_node.engine.usage import DeviceUsage
from hami_node.errors import WireError
from hami_node.model import Device, Uuid
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.cards import (
    NVIDIA,
)
from hami_node.vendors.nvidia.mig.layout import (
    MigLayout,
    MigPlacement,
    MigProfile,
    MigTemplate,
    layout_of,
)
from hami_node.wire import register
from hami_node.wire.values import encode_json_text

CSV_TYPE_PREFIX: Final = "NVIDIA-"
"""Before NVML's name in the csv forms: their schedulers look for "NVIDIA" in the type."""
MOST_INSTANCES: Final = 256
"""Placements of profiles, and entries of geometries, of one card; known cards have a quarter."""


class _Profile(msgspec.Struct):
    name: str = ""
    memory_mb: int = msgspec.field(name="memoryMB", default=0)
    core: int = 0
    slice_count: int = msgspec.field(name="sliceCount", default=0)
    placements: list[MigPlacement] | None = None


class _Template(msgspec.Struct):
    name: str = ""
    memory_mb: int = msgspec.field(name="memoryMB", default=0)
    core: int = 0
    count: int = 1


class _Row(register.DeviceRow):
    mig_profiles: list[_Profile] | None = msgspec.field(name="migProfiles", default=None)
    mig_templates: list[list[_Template]] | None = msgspec.field(name="migTemplates", default=None)


_ROWS: Final = msgspec.json.Decoder(list[_Row])


def decode_register(text: str) -> tuple[Device, ...]:
    """Read a register annotation of any generation, in the order registered.

    `model` is the type as written. An empty text registers no card.

    Raises:
        WireError: no generation's form; a single bad card, or one with too many parts, makes the
            whole text invalid.
    """
    stripped = text.strip()
    if not stripped:
        return ()
    if not register.is_json(stripped):
        return register.decode_csv_register(stripped, names.NODE_REGISTER, NVIDIA)
    return tuple(map(_from_row, register.decode_rows(_ROWS, stripped, names.NODE_REGISTER)))


def _from_row(row: _Row) -> Device:
    device = register.device_of(row, NVIDIA)
    profiles, geometries = row.mig_profiles or (), row.mig_templates or ()
    if not profiles and not geometries:
        return device
    listed = sum(1 + len(profile.placements or ()) for profile in profiles)
    listed += sum(1 + len(geometry) for geometry in geometries)
    if listed > MOST_INSTANCES:
        raise WireError(names.NODE_REGISTER, str(listed), "a card with too many MIG instances")
    layout = MigLayout(
        profiles=tuple(map(_profile_of, profiles)),
        templates=tuple(tuple(map(_template_of, geometry)) for geometry in geometries),
    )
    return replace(device, detail=layout)


def _profile_of(row: _Profile) -> MigProfile:
    return MigProfile(
        name=row.name,
        memory_mib=row.memory_mb,
        cores=row.core,
        slice_count=row.slice_count,
        placements=tuple(row.placements or ()),
    )


def _template_of(row: _Template) -> MigTemplate:
    return MigTemplate(name=row.name, memory_mib=row.memory_mb, cores=row.core, count=row.count)


def encode_csv7(devices: Iterable[Device]) -> str:
    """Write the form of HAMi 2.4, sorted by (index, uuid)."""
    return register.encode_csv7(devices, CSV_TYPE_PREFIX)


def encode_csv9(devices: Iterable[Device]) -> str:
    """Write the form of HAMi 2.5 to 2.7, sorted by (index, uuid)."""
    return register.encode_csv9(devices, CSV_TYPE_PREFIX)


def encode_json(devices: Iterable[Device]) -> str:
    """Write the form of HAMi 2.8 and later, sorted by (index, uuid).

    Zero, false and empty members are left out, as its writer does; an unknown NUMA node is
    written as 0.
    """
    return encode_json_text([_json_row(device) for device in register.in_order(devices)])


class _ShareRow(register.DeviceRow):
    used: int | None = None
    usedmem: int | None = None
    usedcore: int | None = None


_SHARE_ROWS: Final = msgspec.json.Decoder(list[_ShareRow])


def encode_shares(devices: Iterable[Device], used: Mapping[Uuid, DeviceUsage]) -> str:
    """Write cards in fixed shares: the JSON form, and what is taken of each card."""
    return encode_json_text(
        [
            register.json_row(device, _taken(used.get(device.uuid)))
            for device in register.in_order(devices)
        ]
    )


def _taken(use: DeviceUsage | None) -> dict[str, object]:
    if use is None:
        return {}
    return {"used": use.slots_used, "usedmem": use.memory_used_mib, "usedcore": use.cores_used}


def decode_shares(text: str) -> tuple[DeviceUsage, ...]:
    """Read cards in fixed shares, in the order written.

    Raises:
        WireError: not the form.
    """
    return tuple(
        DeviceUsage(
            device=register.device_of(row, NVIDIA),
            slots_used=max(row.used or 0, 0),
            memory_used_mib=max(row.usedmem or 0, 0),
            cores_used=max(row.usedcore or 0, 0),
        )
        for row in register.decode_rows(_SHARE_ROWS, text, names.NODE_STANDALONE)
    )


def _json_row(device: Device) -> dict[str, object]:
    layout = layout_of(device)
    own: dict[str, object] = {
        "migProfiles": [_profile_row(profile) for profile in layout.profiles],
        "migTemplates": [
            [_template_row(template) for template in geometry] for geometry in layout.templates
        ],
    }
    return register.json_row(device, own)


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
