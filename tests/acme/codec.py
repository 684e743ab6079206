"""ACME cards in the register annotation: the common members and the firmware."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import msgspec

from hami_node.model import Device
from hami_node.wire import register
from hami_node.wire.values import encode_json_text
from tests.acme import names
from tests.acme.cards import ACME, AcmeDetail


class _Row(register.DeviceRow):
    firmware: int = 0


_ROWS: Final = msgspec.json.Decoder(list[_Row])


def decode_cards(text: str) -> tuple[Device, ...]:
    """Raises WireError for anything that is no such list."""
    rows = register.decode_rows(_ROWS, text, names.NODE_REGISTER)
    return tuple(
        replace(register.device_of(row, ACME), detail=AcmeDetail(firmware=row.firmware))
        for row in rows
    )


def encode_cards(devices: Iterable[Device]) -> str:
    """Sorted by (index, uuid)."""
    return encode_json_text(
        [
            register.json_row(device, {"firmware": firmware_of(device)})
            for device in register.in_order(devices)
        ]
    )


def firmware_of(device: Device) -> int:
    """The firmware's version; 0 when it is not known."""
    return device.detail.firmware if isinstance(device.detail, AcmeDetail) else 0
