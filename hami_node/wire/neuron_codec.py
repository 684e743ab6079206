"""AWS Neuron on the wire: our register JSON and the id list that AWS's own plugin reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from hami_node.errors import WireError
from hami_node.model import Device, Uuid, Vendor
from hami_node.wire import names
from hami_node.wire.json_text import decode_json, encode_json_text
from hami_node.wire.node_codec import DeviceRow, check_numbers, json_row
from hami_node.wire.scalars import parse_whole

_KEY: Final = names.NODE_NEURON_REGISTER
_ROWS: Final = msgspec.json.Decoder(list[DeviceRow])


def decode_neuron_register(text: str, instance_type: str = "") -> tuple[Device, ...]:
    """Read `hami.io/node-register-AWSNeuron`, sorted by (index, uuid).

    `cores` is the bit mask of a device's cores, `slots` their number, memory 0.

    Raises:
        WireError: not such a list, a device without an id, an impossible number.
    """
    rows = decode_json(_ROWS, text, _KEY)
    return tuple(
        sorted(
            (_from_row(row, instance_type, text) for row in rows),
            key=lambda device: (device.index, device.uuid),
        )
    )


def _from_row(row: DeviceRow, instance_type: str, text: str) -> Device:
    check_numbers(row, _KEY, text)
    if not row.id:
        raise WireError(_KEY, text, "a device without an id")
    return Device(
        uuid=Uuid(row.id),
        index=row.index or 0,
        vendor=Vendor.AWS_NEURON,
        model=row.type or Vendor.AWS_NEURON,
        mode="",
        numa=row.numa or 0,
        healthy=bool(row.health),
        slots=row.count or 0,
        memory_mib=0,
        cores=row.devcore or 0,
        instance_type=instance_type,
    )


def encode_neuron_register(devices: Iterable[Device]) -> str:
    """Write the register JSON, sorted by (index, uuid); memory stays out, as facts ask for."""
    ordered = sorted(devices, key=lambda device: (device.index, device.uuid))
    rows = []
    for device in ordered:
        row = json_row(device)
        row.pop("devmem", None)
        row["type"] = str(Vendor.AWS_NEURON)
        rows.append(row)
    return encode_json_text(rows)


def neuron_uuid(node_name: str, index: int) -> Uuid:
    """The id of a Neuron device: `<node>-AWSNeuron-<index>`."""
    return Uuid(f"{node_name}-{Vendor.AWS_NEURON}-{index}")


def decode_neuron_ids(text: str) -> tuple[int, ...]:
    """Read `AWS_NEURON_IDS`: device numbers or core numbers, in the order written.

    Raises:
        WireError: an id is not a whole number of at least 0.
    """
    if not text.strip():
        return ()
    return tuple(parse_whole(part.strip(), names.NEURON_IDS) for part in text.split(","))


def encode_neuron_ids(ids: Iterable[int]) -> str:
    """Write device or core numbers, comma-separated, in the order given."""
    return ",".join(map(str, ids))
