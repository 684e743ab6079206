"""MIG mode of a card. Cards in MIG mode are published, but not served yet."""

from __future__ import annotations

from typing import Final

from hami_node.backends.nvml_calls import NOT_OFFERED, NvmlCalls

NOT_SERVED: Final = (
    "MIG mode is not served yet: switch it off (nvidia-smi -mig 0), "
    "or hide the card by filterdevices"
)


def is_mig_enabled(calls: NvmlCalls, handle: object, card: int) -> bool:
    """True when the card is in MIG mode now. Check: nvidia-smi --query-gpu=mig.mode.current.

    Raises:
        DeviceLost, DriverUnavailable: see `NvmlCalls.ask`.
    """
    modes = calls.ask("nvmlDeviceGetMigMode", handle, card=card, absent=NOT_OFFERED)
    return bool(modes and modes[0] == 1)
