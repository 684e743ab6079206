"""What the Neuron driver's own files say about the health of devices. Reads sysfs, writes nothing.

Below `devices/virtual/neuron_device` each device has counters since the driver was loaded. Writing
to them resets them, or the chip. Before Neuron 2.30 only root may read some of them: what can't
be read says nothing. Sources: AWS's guide to the sysfs of Neuron; its node problem detector, for
which of the errors mean that the instance has to be replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from hami_node.vendors.on_node.publication import Closed

FOLDER: Final = "devices/virtual/neuron_device"
MAX_BYTES: Final = 64
OF_DEVICE: Final = (
    "stats/hardware/mem_ecc_uncorrected",
    "stats/hardware/sram_ecc_uncorrected",
    "stats/hardware/health_status/unhealthy_components",
)
OF_CORE: Final = ("hw_nc_ue_error", "hw_hbm_ue_error", "hw_dma_abort_error")
_NUMBER: Final = re.compile(rb"0x[0-9a-fA-F]{1,16}|[0-9]{1,20}")
_DEVICE: Final = re.compile(r"neuron[0-9]{1,3}")


def read_signs(sysfs_root: Path, devices: int, cores_per_device: int) -> Mapping[int, Closed]:
    """What can't be used of devices 0 to `devices` - 1; none where the driver has no such files."""
    folder = sysfs_root / FOLDER
    try:
        there = {path.name for path in folder.iterdir() if _DEVICE.fullmatch(path.name)}
    except OSError:
        return {}
    found: dict[int, Closed] = {}
    for device in range(devices if there else 0):
        sign = _sign_of(folder / f"neuron{device}", cores_per_device)
        if sign is not None:
            found[device] = sign
    return found


def _sign_of(folder: Path, cores_per_device: int) -> Closed | None:
    everything = (1 << cores_per_device) - 1
    if not folder.is_dir():
        return Closed(cores=everything, reason="the driver does not have the device")
    for name in OF_DEVICE:
        count = _number(folder / name)
        if count:
            return Closed(cores=everything, reason=f"the driver counts {count} in {name}")
    bad = list(_bad_cores(folder, cores_per_device))
    if not bad:
        return None
    mask = 0
    for core, _ in bad:
        mask |= 1 << core
    return Closed(cores=mask, reason=f"the driver counts errors of cores: {bad[0][1]}")


def _bad_cores(folder: Path, cores_per_device: int) -> Iterator[tuple[int, str]]:
    """Logical cores with uncorrectable errors; the files are of physical ones."""
    physical = _number(folder / "core_count") or cores_per_device
    merged = max(physical // cores_per_device, 1) if cores_per_device else 1
    for core in range(min(physical, merged * cores_per_device)):
        for name in OF_CORE:
            count = _number(folder / f"neuron_core{core}/stats/status/{name}/total")
            if count:
                yield core // merged, f"{name} of core {core // merged}"


def _number(path: Path) -> int:
    """What the file counts; 0 where it can't be read or is no number."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES).strip()
    except OSError:
        return 0
    return int(text, 0 if text.startswith(b"0x") else 10) if _NUMBER.fullmatch(text) else 0
