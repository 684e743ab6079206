"""Where the driver is: by the settings, else as the GPU Operator says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hami_node.vendors.nvidia.driver.validations import DRIVER_ROOT, Validations
from hami_node.vendors.nvidia.settings import NvidiaSettings

HOST: Final = Path("/")
HOST_MOUNT: Final = Path("/host")
"""Where the overlays mount the host; a folder of it may also be mounted under its own name."""
OPERATORS_MOUNT: Final = Path("/driver-root")
"""Where they mount the GPU Operator's driver container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverRoot:
    """The folder with the driver's files, and the folder whose dev/ has its device nodes.

    Attributes:
        host, dev_host: as the node sees them.
        inside, dev_inside: as this process does; they need not be mounted.
    """

    host: Path
    inside: Path
    dev_host: Path
    dev_inside: Path


def driver_root_of(settings: NvidiaSettings, validations: Validations | None = None) -> DriverRoot:
    """Where the driver is now; the Operator's file counts where no setting names the root."""
    facts: Mapping[str, str] = {}
    if settings.driver_root is None:
        found = validations or Validations(settings.validations_dir)
        facts = found.driver_facts()
    host = settings.driver_root or _folder(facts.get(DRIVER_ROOT)) or HOST
    inside = _folder(facts.get("DRIVER_ROOT_CTR_PATH")) or settings.driver_root_ctr_path
    dev_host = settings.dev_root or _folder(facts.get("NVIDIA_DEV_ROOT"))
    dev_inside = _folder(facts.get("DEV_ROOT_CTR_PATH")) if settings.dev_root is None else None
    if dev_host is None:
        dev_host = host if (inside / "dev").is_dir() else HOST
    if dev_inside is None:
        dev_inside = inside if dev_host == host else dev_host
    return DriverRoot(host=host, inside=inside, dev_host=dev_host, dev_inside=dev_inside)


def _folder(text: str | None) -> Path | None:
    """An absolute path without steps upwards; None for anything else."""
    if not text or not text.startswith("/") or ".." in text.split("/"):
        return None
    return Path(text)
