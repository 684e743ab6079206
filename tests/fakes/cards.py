"""Cards and the text of their simulated file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hami_node.model import Device, Uuid
from hami_node.vendors.nvidia.cards import NVIDIA

MODEL: Final = "NVIDIA A100-SXM4-40GB"
MEMORY_MIB: Final = 40960


def card(index: int = 0, **changes: object) -> Device:
    """An offered card: 10 slots, 40 GiB, healthy."""
    fields: dict[str, object] = {
        "uuid": uuid(index),
        "index": index,
        "vendor": NVIDIA,
        "model": MODEL,
        "slots": 10,
        "memory_mib": MEMORY_MIB,
        "cores": 100,
    }
    return Device(**(fields | changes))  # type: ignore[arg-type]  # fields by name, on purpose


def uuid(index: int) -> Uuid:
    """The UUID of the card with that index."""
    return Uuid(f"GPU-{index:08x}-0000-4000-8000-{index:012x}")


def cards_file(
    count: int, *, lost: Sequence[int] = (), driver_down: str = "", memory_mib: int = MEMORY_MIB
) -> str:
    """YAML of the simulated backend: `count` equal cards, those in `lost` without an answer."""
    lines = [f'driver_down: "{driver_down}"', "cards:"]
    for index in range(count):
        lines.append(f"  - model: {MODEL}")
        lines.append(f"    memory_mib: {memory_mib}")
        lines.append(f"    uuid: {uuid(index)}")
        if index in lost:
            lines.append("    lost: true")
    return "\n".join(lines) + "\n"
