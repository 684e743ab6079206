"""NVIDIA's part in the demo: cards that pods share, each with its own limits."""

from __future__ import annotations

from typing import Final

from hami_node.vendors.demo import SharedCards
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.node.response import LIBRARY, LOCK_FOLDER, PRELOAD
from hami_node.vendors.nvidia.protocol import nvidia_protocol

A100: Final = ("NVIDIA A100-SXM4-40GB", 40960)
L40S: Final = ("NVIDIA L40S", 46068)


def _config(slots: int) -> str:
    return f"nvidia: {{deviceSplitCount: {slots}}}\n"


def _limits_env(memory_mib: int, cores: int) -> dict[str, str]:
    return {f"{names.ENV_MEMORY_LIMIT}_0": f"{memory_mib}m", names.ENV_CORE_LIMIT: str(cores)}


NVIDIA_DEMO: Final = SharedCards(
    protocol=nvidia_protocol(),
    cards=(A100, A100, L40S, L40S),
    wish=(names.USE_GPU_TYPE, "A100"),
    config=_config,
    limits_env=_limits_env,
    visible_env=names.ENV_VISIBLE_DEVICES,
    limiter_files=(LIBRARY, PRELOAD),
    limiter_folder=LOCK_FOLDER,
)
