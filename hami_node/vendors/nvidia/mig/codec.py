"""MIG reservations: 2.10's annotation, and the `[template-slot]` suffix of 2.5 to 2.9. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import msgspec

from hami_node.errors import WireError
from hami_node.model import ContainerGrants, Grant, Uuid
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.mig.layout import (
    MigDevice,
    MigInstance,
    MigPlacement,
    TemplateSlot,
)
from hami_node.wire.values import decode_json, encode_json_text


@dataclass(frozen=True, slots=True, kw_only=True)
class MigAllocation:
    """A MIG instance (2.10) reserved for one grant.

    `container_index` counts init containers first; `device_index` is the grant's position in it.
    `device` is None until the plugin has created the MIG device.
    """

    container_index: int
    device_index: int
    uuid: Uuid
    instance: MigInstance
    device: MigDevice | None = None


class _Row(msgspec.Struct, rename="camel", omit_defaults=True):
    container_index: int | None = None
    device_index: int | None = None
    gpu_uuid: str | None = msgspec.field(name="gpuUUID", default=None)
    profile: str | None = None
    placement: MigPlacement | None = None
    mig_uuid: str | None = msgspec.field(name="migUUID", default=None)
    gpu_instance_id: int | None = msgspec.field(name="gpuInstanceID", default=None)
    compute_instance_id: int | None = msgspec.field(name="computeInstanceID", default=None)


_ROWS: Final = msgspec.json.Decoder(list[_Row])
_ROW: Final = msgspec.json.Decoder(_Row)
_RAW_ROWS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_ANY_ROW: Final = msgspec.json.Decoder(dict[str, Any])
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


def readable_allocations(text: str) -> tuple[MigAllocation, ...]:
    """The rows of that annotation that can be read, each judged alone; two for one grant are none.

    For finding out what is there already: one bad row says nothing about the others.
    """
    found: dict[tuple[int, int], MigAllocation | None] = {}
    try:
        rows = decode_json(_RAW_ROWS, text, _KEY)
    except WireError:
        return ()
    for raw in rows:
        try:
            row = _from_row(decode_json(_ROW, bytes(raw), _KEY), text)
        except WireError:
            continue
        grant = (row.container_index, row.device_index)
        found[grant] = None if grant in found else row
    return tuple(row for row in found.values() if row is not None)


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
        instance=MigInstance(profile=row.profile, placement=placement),
        device=_device_of(row, text),
    )


def _device_of(row: _Row, text: str) -> MigDevice | None:
    gpu_instance, compute_instance = row.gpu_instance_id, row.compute_instance_id
    if not row.mig_uuid and gpu_instance is None and compute_instance is None:
        return None
    if not row.mig_uuid or gpu_instance is None or compute_instance is None:
        raise WireError(_KEY, text, "a MIG device needs its UUID and both instance numbers")
    if min(gpu_instance, compute_instance) < 0:
        raise WireError(_KEY, text, "an instance with an impossible number")
    return MigDevice(
        uuid=row.mig_uuid, gpu_instance_id=gpu_instance, compute_instance_id=compute_instance
    )


def encode_mig_allocations(allocations: Iterable[MigAllocation]) -> str | None:
    """Write the reservations, sorted by container and grant; None when there are none."""
    ordered = sorted(allocations, key=lambda row: (row.container_index, row.device_index))
    if not ordered:
        return None
    return encode_json_text([_to_row(row) for row in ordered])


def _to_row(allocation: MigAllocation) -> dict[str, object]:
    placement = allocation.instance.placement
    row: dict[str, object] = {
        "containerIndex": allocation.container_index,
        "deviceIndex": allocation.device_index,
        "gpuUUID": allocation.uuid,
        "profile": allocation.instance.profile,
        "placement": {"start": placement.start, "size": placement.size},
    }
    return row if allocation.device is None else row | _identity(allocation.device)


def with_devices(text: str, container: int, devices: Mapping[int, MigDevice]) -> str:
    """The reservations with the MIG devices of a container's grants, by the grant's position.

    Only these rows are written anew, and of them only the identity: what else anybody has written
    stays, to the byte.

    Raises:
        WireError: as `decode_mig_allocations`.
    """
    allocations = decode_mig_allocations(text)
    rows, has_changed = decode_json(_RAW_ROWS, text, _KEY), False
    for position, allocation in enumerate(allocations):
        device = devices.get(allocation.device_index)
        is_ours = allocation.container_index == container
        if device is not None and is_ours and device != allocation.device:
            row = decode_json(_ANY_ROW, bytes(rows[position]), _KEY)
            rows[position] = msgspec.Raw(encode_json_text(row | _identity(device)).encode())
            has_changed = True
    if not has_changed:
        return text
    return "[" + ",".join(bytes(row).decode() for row in rows) + "]"


def _identity(device: MigDevice) -> dict[str, object]:
    return {
        "migUUID": device.uuid,
        "gpuInstanceID": device.gpu_instance_id,
        "computeInstanceID": device.compute_instance_id,
    }


_SUFFIX: Final = re.compile(r"([^\[\]]+)\[(\d{1,9})-(\d{1,9})\]", re.ASCII)


def split_uuid(uuid: str) -> tuple[Uuid, TemplateSlot | None]:
    """Split a grant's `UUID[template-slot]` (2.5 to 2.9); None without such a suffix.

    Source: HAMi 2.8, nvidia/device.go AddResourceUsage.
    """
    found = _SUFFIX.fullmatch(uuid)
    if not found:
        return Uuid(uuid), None
    card, template, slot = found.groups()
    return Uuid(card), TemplateSlot(template=int(template), slot=int(slot))


def joined_uuid(grant: Grant) -> Uuid:
    """The card's UUID in an annotation: with the instance in the form up to 2.9."""
    if not isinstance(grant.part, TemplateSlot):
        return grant.uuid
    return Uuid(f"{grant.uuid}[{grant.part.template}-{grant.part.slot}]")


def with_parts(
    containers: Sequence[ContainerGrants], allocations: Sequence[MigAllocation]
) -> tuple[ContainerGrants, ...]:
    """The written grants with the MIG instances that their UUIDs or the allocations name."""
    if not allocations and not any(["[" in grant.uuid for held in containers for grant in held]):
        return tuple(containers)
    instances = {(row.container_index, row.device_index): row for row in allocations}
    return tuple(
        tuple(
            _with_part(grant, instances.get((container, index)))
            for index, grant in enumerate(grants)
        )
        for container, grants in enumerate(containers)
    )


def _with_part(grant: Grant, allocation: MigAllocation | None) -> Grant:
    card, slot = split_uuid(grant.uuid)
    if slot is not None:
        return replace(grant, uuid=card, part=slot)
    if allocation is not None and allocation.uuid == card:
        return replace(grant, part=allocation.instance)
    return grant


def allocations_of(containers: Sequence[ContainerGrants]) -> tuple[MigAllocation, ...]:
    """The 2.10 rows of grants that are MIG instances, in their order."""
    return tuple(
        MigAllocation(
            container_index=container, device_index=index, uuid=grant.uuid, instance=grant.part
        )
        for container, grants in enumerate(containers)
        for index, grant in enumerate(grants)
        if isinstance(grant.part, MigInstance)
    )


# -- how the record keeps which MIG instances of others a container was given ----------------------
# The text stands where the pod's annotation of 2.10 stands for instances that were made for it.
_Number = Annotated[int, msgspec.Meta(ge=0)]
_BEGIN: Final = "{"
"""The annotation is a list."""


class _GivenRow(msgspec.Struct):
    index: _Number
    uuid: str = msgspec.field(name="migUUID")
    gpu_instance_id: _Number = msgspec.field(name="gpuInstanceID")
    compute_instance_id: _Number = msgspec.field(name="computeInstanceID")


class _Given(msgspec.Struct):
    given: list[_GivenRow]


_DECODER: Final = msgspec.json.Decoder(_Given)


def is_given(text: str) -> bool:
    """True for such a text, whether or not it can be read."""
    return text.startswith(_BEGIN)


def encode_given(containers: Sequence[ContainerGrants]) -> str:
    """The instances of the only container; "" where it has none."""
    held = containers[0] if len(containers) == 1 else ()
    rows = [
        {
            "index": index,
            "migUUID": grant.part.uuid,
            "gpuInstanceID": grant.part.gpu_instance_id,
            "computeInstanceID": grant.part.compute_instance_id,
        }
        for index, grant in enumerate(held)
        if isinstance(grant.part, MigDevice)
    ]
    return encode_json_text({"given": rows}) if rows else ""


def with_given(containers: Sequence[ContainerGrants], text: str) -> tuple[ContainerGrants, ...]:
    """The grants of the only container with the instances that the text names.

    Raises:
        WireError: it can't be read.
    """
    rows = {row.index: row for row in decode_json(_DECODER, text, names.POD_MIG_ALLOCATIONS).given}
    if len(containers) != 1 or not rows.keys() <= set(range(len(containers[0]))):
        raise WireError(names.POD_MIG_ALLOCATIONS, text, "instances of another container")
    return (
        tuple(
            replace(grant, part=_device(rows[index])) if index in rows else grant
            for index, grant in enumerate(containers[0])
        ),
    )


def _device(row: _GivenRow) -> MigDevice:
    return MigDevice(
        uuid=row.uuid,
        gpu_instance_id=row.gpu_instance_id,
        compute_instance_id=row.compute_instance_id,
    )
