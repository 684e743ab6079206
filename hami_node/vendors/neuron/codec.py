"""AWS Neuron on the wire: our register JSON and the id list that AWS's own plugin reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from hami_node.errors import WireError
from hami_node.model import Device, Uuid
from hami_node.vendors.neuron import names
from hami_node.vendors.neuron.cards import NEURON
from hami_node.vendors.neuron.placement import NeuronDetail
from hami_node.wire import register
from hami_node.wire.values import encode_json_text, parse_whole

_KEY: Final = names.NODE_NEURON_REGISTER


def decode_neuron_register(text: str, instance_type: str = "") -> tuple[Device, ...]:
    """Read `hami.io/node-register-AWSNeuron`, sorted by (index, uuid).

    `cores` is the bit mask of a device's cores, `slots` their number, memory 0.

    Raises:
        WireError: not such a list, a device without an id, an impossible number.
    """
    rows = register.decode_rows(register.ROWS, text, _KEY)
    return tuple(register.in_order([_from_row(row, instance_type, text) for row in rows]))


def _from_row(row: register.DeviceRow, instance_type: str, text: str) -> Device:
    if not row.id:
        raise WireError(_KEY, text, "a device without an id")
    device = register.device_of(row, NEURON)
    return replace(
        device,
        model=device.model or NEURON.word,
        mode="",
        numa=row.numa or 0,
        memory_mib=0,
        detail=NeuronDetail(instance_type=instance_type),
    )


def encode_neuron_register(devices: Iterable[Device]) -> str:
    """Write the register JSON, sorted by (index, uuid); memory is left out."""
    rows = []
    for device in register.in_order(devices):
        row = register.json_row(device)
        row.pop("devmem", None)
        row["type"] = NEURON.word
        rows.append(row)
    return encode_json_text(rows)


def neuron_uuid(node_name: str, index: int) -> Uuid:
    """The id of a Neuron device: `<node>-AWSNeuron-<index>`."""
    return Uuid(f"{node_name}-{NEURON.word}-{index}")


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
