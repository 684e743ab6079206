"""Calls of MIG through the real pynvml, short to write."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref
from typing import Any

from tests.nvml_stub.control import UUIDS, card

INVALID, NOT_SUPPORTED, NO_PERMISSION, IN_USE, NO_ROOM = 2, 3, 4, 19, 23


def in_mig_mode(*numbers: int, **words: object) -> tuple[str, ...]:
    """The lines of three cards, these of them in MIG mode."""
    return tuple(card(i, **({"mig": "enabled"} | words if i in numbers else {})) for i in range(3))


def code(nvml: Any, call: Callable[[], object]) -> int:
    """The code of the error that it raises; 0 without one."""
    try:
        call()
    except nvml.NVMLError as e:
        return int(e.value)
    return 0


def device(nvml: Any, number: int = 0) -> Any:
    return nvml.nvmlDeviceGetHandleByUUID(UUIDS[number])


def create(nvml: Any, profile: int, start: int, size: int, number: int = 0) -> Any:
    place = nvml.c_nvmlGpuInstancePlacement_t(start, size)
    return nvml.nvmlDeviceCreateGpuInstanceWithPlacement(
        device(nvml, number), profile, byref(place)
    )


def whole(nvml: Any, profile: int, start: int, size: int, compute: int) -> tuple[Any, Any]:
    """A GPU instance and the compute instance over all of it."""
    gi = create(nvml, profile, start, size)
    return gi, nvml.nvmlGpuInstanceCreateComputeInstance(gi, compute)


def places(nvml: Any, profile: int, number: int = 0) -> list[tuple[int, int]]:
    count = nvml.c_uint(0)
    ask = nvml.nvmlDeviceGetGpuInstancePossiblePlacements
    ask(device(nvml, number), profile, None, byref(count))
    found = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
    ask(device(nvml, number), profile, found, byref(count))
    return [(p.start, p.size) for p in found]
