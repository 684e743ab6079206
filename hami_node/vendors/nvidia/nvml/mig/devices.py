"""MIG devices: NVML's handle of a compute instance, and what it says of itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hami_node.vendors.nvidia.mig.found import MigDevice
from hami_node.vendors.nvidia.nvml.calls import (
    FUNCTION_NOT_FOUND,
    INVALID_ARGUMENT,
    NOT_FOUND,
    NOT_SUPPORTED,
)
from hami_node.vendors.nvidia.nvml.mig.asked import MAX_LISTED, AskedCard, mig_uuid, within

MAX_INSTANCE_ID: Final = 4095
_NO_DEVICE: Final = frozenset({INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, FUNCTION_NOT_FOUND})


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevice:
    """A MIG device and its handle, which is good for this pass or job only."""

    device: MigDevice
    handle: Any


class Devices:
    """The MIG devices of a card within one pass or job; the card is walked over once at most."""

    def __init__(self, card: AskedCard) -> None:
        """Asks nothing yet."""
        self._card = card
        self._walked: Mapping[tuple[int, int], HeldDevice] | None = None

    def of(
        self, compute_handle: object, gpu_instance_id: int, compute_instance_id: int
    ) -> HeldDevice | None:
        """The one of a compute instance; None where the driver shows none.

        Raises:
            DeviceLost, DriverUnavailable: see `NvmlCalls.ask`; or a UUID that can't be one.
        """
        info = self._card.ask("nvmlComputeInstanceGetInfo_v2", compute_handle)
        # nvml.h calls that handle the card's
        found = _held(self._card, info.device) if info.device else None
        wanted = (gpu_instance_id, compute_instance_id)
        if found is not None and _numbers(found.device) == wanted:
            return found
        return self.walked().get(wanted)

    def walked(self) -> Mapping[tuple[int, int], HeldDevice]:
        """All, by their GPU instance and compute instance; raises as `of`."""
        if self._walked is None:
            self._walked = {_numbers(found.device): found for found in _walk(self._card)}
        return self._walked


def _walk(card: AskedCard) -> Iterator[HeldDevice]:
    count = card.ask("nvmlDeviceGetMaxMigDeviceCount", card.handle)
    for i in range(within(count, 0, MAX_LISTED, "MIG devices")):
        handle = card.ask("nvmlDeviceGetMigDeviceHandleByIndex", card.handle, i, absent=_NO_DEVICE)
        found = None if handle is None else _held(card, handle)
        if found is not None:
            yield found


def _held(card: AskedCard, handle: object) -> HeldDevice | None:
    """None for a handle that is no MIG device's, or no longer."""
    is_mig = card.ask("nvmlDeviceIsMigDeviceHandle", handle, absent=_NO_DEVICE)
    if is_mig is None or is_mig.value != 1:
        return None
    uuid = card.ask("nvmlDeviceGetUUID", handle, absent=_NO_DEVICE)
    numbers = [
        card.ask(function, handle, absent=_NO_DEVICE)
        for function in ("nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId")
    ]
    if uuid is None or None in numbers:
        return None
    gpu_instance_id, compute_instance_id = (
        within(number, 0, MAX_INSTANCE_ID, "an instance's number") for number in numbers
    )
    device = MigDevice(
        uuid=mig_uuid(uuid),
        gpu_instance_id=gpu_instance_id,
        compute_instance_id=compute_instance_id,
    )
    return HeldDevice(device=device, handle=handle)


def _numbers(device: MigDevice) -> tuple[int, int]:
    return device.gpu_instance_id, device.compute_instance_id
