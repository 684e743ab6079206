"""Write the file that drives the NVML stand-in, and ask it how often it was called."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from tests.nvml_stub.mig import MigHardware

UUIDS = tuple(f"GPU-{i:08d}-0000-4000-8000-00000000000{i}" for i in range(8))
MODEL = "NVIDIA A100-SXM4-40GB"
MEMORY_MIB = 40960
sequence: Iterator[int] = count(1)
"""Numbers of events, which only grow within one process."""


def bus(index: int) -> str:
    """PCI bus id of a card, as NVML writes it."""
    return f"00000000:{0x3A + index:02X}:00.0"


def card(index: int, **changes: object) -> str:
    """The line of one card, well unless `changes` say otherwise."""
    facts: dict[str, object] = {
        "uuid": UUIDS[index],
        "name": f'"{MODEL}"',
        "memory_mib": MEMORY_MIB,
        "bus": bus(index),
        "mig": "disabled",
    }
    return "card " + " ".join(f"{key}={value}" for key, value in (facts | changes).items())


class Stub:
    """The control file. Every change is one rename, as the stand-in asks for."""

    def __init__(self, library: Path, file: Path) -> None:
        self.library = library
        self.file = file
        self.mig = MigHardware(file)

    def show(self, *lines: str, cards: int = 3) -> None:
        """`cards` well cards and then these lines."""
        self.write(*(card(i) for i in range(cards)), *lines)

    def write(self, *lines: str) -> None:
        """Exactly these lines."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n", errors="surrogateescape")
        os.replace(fresh, self.file)

    def calls(self, function: str) -> int:
        """How often the C function has been called in this process."""
        return int(ctypes.CDLL(str(self.library)).nvmlStubCalls(function.encode()))
