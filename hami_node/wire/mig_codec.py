"""MIG reservations: 2.10's annotation, and the `[template-slot]` suffix of 2.5 to 2.9."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from hami_node.errors import WireError
from hami_node.model import MigPlacement, MigReservation, Uuid
from hami_node.wire import names
from hami_node.wire.json_text import decode_json, encode_json_text


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """The MIG device that was made for a reservation."""

    uuid: str
    gpu_instance_id: int
    compute_instance_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MigAllocation(MigReservation):
    """A reservation as it stands on the wire.

    `instance` is None until the plugin has made the MIG device.
    """

    instance: MigInstance | None = None


class _Placement(msgspec.Struct):
    start: int = 0
    size: int = 0


class _Row(msgspec.Struct, rename="camel", omit_defaults=True):
    container_index: int | None = None
    device_index: int | None = None
    gpu_uuid: str | None = msgspec.field(name="gpuUUID", default=None)
    profile: str | None = None
    placement: _Placement | None = None
    mig_uuid: str | None = msgspec.field(name="migUUID", default=None)
    gpu_instance_id: int | None = msgspec.field(name="gpuInstanceID", default=None)
    compute_instance_id: int | None = msgspec.field(name="computeInstanceID", default=None)


_ROWS: Final = msgspec.json.Decoder(list[_Row])
_KEY: Final = names.POD_MIG_ALLOCATIONS


def decode_mig_allocations(text: str) -> tuple[MigAllocation, ...]:
    """Read `hami.io/vgpu-mig-allocations`, in the order written; an empty text holds none.

    Raises:
        WireError: not such a list, an incomplete row, a placement without a size, or two rows
            for the same grant.
    """
    if not text:
        return ()
    allocations = tuple(_from_row(row, text) for row in decode_json(_ROWS, text, _KEY))
    grants = {(row.container_index, row.device_index) for row in allocations}
    if len(grants) != len(allocations):
        raise WireError(_KEY, text, "two reservations for one grant")
    return allocations


def _from_row(row: _Row, text: str) -> MigAllocation:
    container, device, placement = row.container_index, row.device_index, row.placement
    if not row.gpu_uuid or not row.profile or placement is None:
        raise WireError(_KEY, text, "a reservation without card, profile or placement")
    if (container or 0) < 0 or (device or 0) < 0 or placement.start < 0 or placement.size < 1:
        raise WireError(_KEY, text, "a reservation with an impossible number")
    return MigAllocation(
        container_index=container or 0,
        device_index=device or 0,
        uuid=Uuid(row.gpu_uuid),
        profile=row.profile,
        placement=MigPlacement(start=placement.start, size=placement.size),
        instance=_instance_of(row, text),
    )


def _instance_of(row: _Row, text: str) -> MigInstance | None:
    gpu_instance, compute_instance = row.gpu_instance_id, row.compute_instance_id
    if not row.mig_uuid and gpu_instance is None and compute_instance is None:
        return None
    if not row.mig_uuid or gpu_instance is None or compute_instance is None:
        raise WireError(_KEY, text, "a MIG device needs its UUID and both instance numbers")
    return MigInstance(
        uuid=row.mig_uuid, gpu_instance_id=gpu_instance, compute_instance_id=compute_instance
    )


def encode_mig_allocations(allocations: Iterable[MigAllocation]) -> str | None:
    """Write the reservations, sorted by container and grant; None when there are none."""
    ordered = sorted(allocations, key=lambda row: (row.container_index, row.device_index))
    if not ordered:
        return None
    return encode_json_text([_to_row(row) for row in ordered])


def _to_row(allocation: MigAllocation) -> dict[str, object]:
    placement = {"start": allocation.placement.start, "size": allocation.placement.size}
    row: dict[str, object] = {
        "containerIndex": allocation.container_index,
        "deviceIndex": allocation.device_index,
        "gpuUUID": allocation.uuid,
        "profile": allocation.profile,
        "placement": placement,
    }
    if allocation.instance is not None:
        row["migUUID"] = allocation.instance.uuid
        row["gpuInstanceID"] = allocation.instance.gpu_instance_id
        row["computeInstanceID"] = allocation.instance.compute_instance_id
    return row


_SUFFIX: Final = re.compile(r"([^\[\]]+)\[(\d{1,4})-(\d{1,4})\]", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSlot:
    """One entry of an expanded MIG geometry: `uuid[template-slot]` (HAMi 2.5 to 2.9)."""

    uuid: Uuid
    template: int
    slot: int


def decode_template_slot(uuid: str) -> TemplateSlot | None:
    """Take a grant's `UUID[template-slot]` apart; None for a plain UUID or anything else."""
    found = _SUFFIX.fullmatch(uuid)
    if not found:
        return None
    card, template, slot = found.groups()
    return TemplateSlot(uuid=Uuid(card), template=int(template), slot=int(slot))


def card_of(uuid: str) -> Uuid:
    """The card that a grant's UUID means, without a MIG suffix."""
    found = decode_template_slot(uuid)
    return Uuid(uuid) if found is None else found.uuid


def encode_template_slot(slot: TemplateSlot) -> Uuid:
    """`UUID[template-slot]`."""
    return Uuid(f"{slot.uuid}[{slot.template}-{slot.slot}]")
