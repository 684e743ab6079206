"""MIG mode of a card. Cards in MIG mode are published, but not served yet."""

from __future__ import annotations

from hami_node.vendors.nvidia.nvml.calls import NOT_OFFERED, NvmlCalls


def is_mig_enabled(calls: NvmlCalls, handle: object, card: int) -> bool:
    """True when the card is in MIG mode now. Check: nvidia-smi --query-gpu=mig.mode.current.

    Raises:
        DeviceLost, DriverUnavailable: see `NvmlCalls.ask`.
    """
    modes = calls.ask("nvmlDeviceGetMigMode", handle, card=card, absent=NOT_OFFERED)
    return bool(modes and modes[0] == 1)
