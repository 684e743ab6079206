"""The node's cards: the C stand-in for the driver and the text file that drives it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.e2e.machine import NODE_DIR
from tests.nvml_stub.build import build

FOLDER: Final = NODE_DIR / "nvml"
CONTROL: Final = FOLDER / "cards"
MODEL: Final = "NVIDIA H100 80GB HBM3"
MEMORY_MIB: Final = 81559
COUNT: Final = 8
SPLIT: Final = 10  # the product's default

NVML_GPU_IS_LOST: Final = 15


def uuid_of(index: int) -> str:
    """The UUID of a card by NVML's number."""
    return f"GPU-{index:08d}-e2e0-4000-8000-00000000000{index}"


def minor_of(index: int) -> int:
    """The number in the name of the card's device node, which is not NVML's number."""
    return COUNT - 1 - index


UUIDS: Final = tuple(uuid_of(i) for i in range(COUNT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One line of trouble, in the stand-in's own words."""

    line: str


def lost(card: int) -> Fault:
    """The card answers nothing any more."""
    return Fault(line=f"fail * {card} {NVML_GPU_IS_LOST}")


def hanging(card: int, seconds: int) -> Fault:
    """Every call about the card takes that long, or until the card is well again."""
    return Fault(line=f"hang * {card} {seconds}")


def _line(index: int, model: str = MODEL) -> str:
    return (
        f'card uuid={uuid_of(index)} name="{model}" memory_mib={MEMORY_MIB} '
        f"bus=00000000:{0x10 + index:02X}:00.0 minor={minor_of(index)}"
    )


class Cards:
    """Writes the control file; the daemon's NVML sees it at its next call."""

    def install(self) -> None:
        """Build the library into the node's folder, with all cards well."""
        build(FOLDER)
        self.heal()

    def heal(self) -> None:
        """No faults."""
        self.show()

    def show(self, *faults: Fault, count: int = COUNT) -> None:
        """Exactly these faults, on the first `count` cards."""
        self._write([_line(i) for i in range(count)] + [fault.line for fault in faults])

    def show_divided(self, *faults: Fault, models: Mapping[int, str], off: int) -> None:
        """Cards that have MIG, in MIG mode but for one; `models` are those of some cards."""
        lines = [
            f"{_line(i, models.get(i, MODEL))} mig={'disabled' if i == off else 'enabled'}"
            for i in range(COUNT)
        ]
        self._write(lines + [fault.line for fault in faults])

    def _write(self, lines: Sequence[str]) -> None:
        lines = ["driver 570.86.15", "nvml 12.570.86.15", *lines]
        fresh = Path(f"{CONTROL}.new")
        fresh.write_text("\n".join(lines) + "\n")
        os.replace(fresh, CONTROL)
