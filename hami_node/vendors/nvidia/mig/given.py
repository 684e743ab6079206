"""How the record keeps which MIG instances of others a container was given. Pure.

The text stands where the pod's annotation of 2.10 stands for instances that were made for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Final

import msgspec

from hami_node.errors import WireError
from hami_node.model import ContainerGrants
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.mig.found import MigDevice
from hami_node.wire.values.json_text import decode_json, encode_json_text

_Number = Annotated[int, msgspec.Meta(ge=0)]
_BEGIN: Final = "{"
"""The annotation is a list."""


class _Row(msgspec.Struct):
    index: _Number
    uuid: str = msgspec.field(name="migUUID")
    gpu_instance_id: _Number = msgspec.field(name="gpuInstanceID")
    compute_instance_id: _Number = msgspec.field(name="computeInstanceID")


class _Given(msgspec.Struct):
    given: list[_Row]


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


def _device(row: _Row) -> MigDevice:
    return MigDevice(
        uuid=row.uuid,
        gpu_instance_id=row.gpu_instance_id,
        compute_instance_id=row.compute_instance_id,
    )
