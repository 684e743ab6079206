"""Calls of MIG through the real pynvml, short to write."""

from __future__ import annotations

from tests.nvml_stub.control import card


def in_mig_mode(*numbers: int, **words: object) -> tuple[str, ...]:
    """The lines of three cards, these of them in MIG mode."""
    return tuple(card(i, **({"mig": "enabled"} | words if i in numbers else {})) for i in range(3))
