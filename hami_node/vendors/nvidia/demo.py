"""NVIDIA's part in the demo: cards that pods share, each with its own limits."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

from hami_node.vendors.demo import SharedCards
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.node.limiter.limiter_files import PRELOAD
from hami_node.vendors.nvidia.node.limiter.versions import LIBRARY, MACHINES, MIN_BYTES
from hami_node.vendors.nvidia.protocol import nvidia_protocol

A100: Final = ("NVIDIA A100-SXM4-40GB", 40960)
L40S: Final = ("NVIDIA L40S", 46068)


def _config(slots: int) -> str:
    return f"nvidia: {{deviceSplitCount: {slots}}}\n"


def _limits_env(memory_mib: int, cores: int) -> dict[str, str]:
    return {f"{names.ENV_MEMORY_LIMIT}_0": f"{memory_mib}m", names.ENV_CORE_LIMIT: str(cores)}


def limiter_files(hook_path: Path) -> dict[str, bytes]:
    """Stand-ins of the limiter's files below a hook path: they look whole and do nothing."""
    library = Path("vgpu", LIBRARY)
    return {
        str(library): empty_library(os.uname().machine),
        f"vgpu/{PRELOAD}": f"{hook_path / library}\n".encode(),
    }


def empty_library(machine: str) -> bytes:
    """A shared library without content: ELF header, what to load, nothing else."""
    load, dynamic = 1, 2
    header = struct.pack(
        "<4s3B9xHHI3QI6H",
        *(b"\x7fELF", 2, 1, 1, 3, MACHINES.get(machine, MACHINES["x86_64"]), 1),
        *(0, 64, 0, 0, 64, 56, 2, 64, 0, 0),
    )
    programs = (
        struct.pack("<2I6Q", kind, 4, offset, offset, offset, size, size, 8)
        for kind, offset, size in ((load, 0, MIN_BYTES), (dynamic, 176, 16))
    )
    return (header + b"".join(programs)).ljust(MIN_BYTES, b"\0")


NVIDIA_DEMO: Final = SharedCards(
    protocol=nvidia_protocol(),
    cards=(A100, A100, L40S, L40S),
    wish=(names.USE_GPU_TYPE, "A100"),
    config=_config,
    limits_env=_limits_env,
    visible_env=names.ENV_VISIBLE_DEVICES,
    limiter_files=limiter_files,
)
