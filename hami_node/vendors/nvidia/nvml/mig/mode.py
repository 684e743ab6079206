"""The MIG mode of a card: what is in force, and what will be after its next reset."""

from __future__ import annotations

from typing import NamedTuple

from hami_node.vendors.nvidia.nvml.calls import NOT_OFFERED, NvmlCalls


class MigModes(NamedTuple):
    """True: enabled."""

    is_enabled: bool
    is_pending: bool


def read_modes(calls: NvmlCalls, handle: object, card: int) -> MigModes | None:
    """None for a card without MIG. Check: nvidia-smi --query-gpu=mig.mode.current,mig.mode.pending.

    Raises:
        DeviceLost, DriverUnavailable: see `NvmlCalls.ask`.
    """
    modes = calls.ask("nvmlDeviceGetMigMode", handle, card=card, absent=NOT_OFFERED)
    return MigModes(modes[0] == 1, modes[1] == 1) if modes else None
