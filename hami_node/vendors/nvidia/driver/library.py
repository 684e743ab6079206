"""The driver's library: as the container runtime injected it, else from the driver's root."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hami_node.errors import DriverChanged, DriverUnavailable
from hami_node.logs import kv
from hami_node.vendors.nvidia.driver.location import DriverRoot
from hami_node.vendors.nvidia.driver.rooted import FOLDERS, LIBRARY, libraries_below
from hami_node.vendors.nvidia.driver.validations import Validations

log = logging.getLogger(__name__)

HINT: Final = (
    "install the NVIDIA driver on the node and give this pod its library: runtimeClassName nvidia, "
    "NVIDIA_VISIBLE_DEVICES=all and NVIDIA_DRIVER_CAPABILITIES=utility; or mount the driver's "
    "folder (daemonset/overlays/driver-root); in the GPU Operator's NRI mode its toolkit has to "
    "allow this namespace (daemonset/overlays/nri)"
)
NODE: Final = "nvidiactl"
"""The device node that every program of the driver opens first."""
AGAIN: Final = "this process ends, so that kubelet makes the container again"


class DriverLibrary:
    """Loads the library once; pynvml, which loads it by its name, then gets the same."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        root: Callable[[], DriverRoot] | None = None,
        validations: Validations | None = None,
        dev: Path = Path("/dev"),
    ) -> None:
        """Load exactly `path`; without it by name, and else from below the root.

        Args:
            path: the library's file.
            root: returns where the driver is now; None: it is never looked for there.
            validations: what is waited for; None: nothing.
            dev: this container's device nodes.
        """
        self._path, self._root = path, root
        self._validations, self._dev = validations, dev
        self._loaded: tuple[Path, tuple[int, int, int]] | None = None
        self._has_waited = self._had_no_nodes = False

    def load(self) -> None:
        """Load it.

        Raises:
            DriverUnavailable: says where it was looked for, and what to do.
        """
        try:
            ctypes.CDLL(str(self._path or LIBRARY))
        except OSError as e:
            if self._path is not None:
                raise DriverUnavailable(f"{LIBRARY} can't be loaded: {e}; {HINT}") from e
            problem = self._load_from_root()
            if problem is not None:
                where = "(looked in LD_LIBRARY_PATH, ld.so.cache, the system folders)"
                text = f"{LIBRARY} can't be loaded: {e} {where}{problem}; {HINT}"
                raise DriverUnavailable(text) from e

    def _load_from_root(self) -> str | None:
        """Load the first library below the root that can be (None); else why there is none."""
        if self._root is None:
            return ""
        root = self._root().inside
        if not root.is_dir():
            return f", and no driver root is mounted at {root}"
        marks = self._validations
        if marks is not None and marks.is_mounted and not marks.driver_mark.exists():
            # a driver that is being installed may have half of its library there
            return (
                f", and the driver below {root} is not ready ({marks.driver_mark} is missing; "
                "without the GPU Operator name its folder by --driver-root)"
            )
        problems = []
        for path in libraries_below(root):
            try:
                ctypes.CDLL(str(path))
            except OSError as e:
                problems.append(str(e))
            else:
                self._loaded = path, _identity(path)
                log.info("driver_library_loaded", extra=kv(path=str(path)))
                return None
        found = "; ".join(problems) or f"looked in {', '.join(FOLDERS)}"
        return f", nor from the driver root {root} ({found})"

    @property
    def was_replaced(self) -> bool:
        """True if another file than the loaded one is in the driver's root now."""
        if self._loaded is None:
            return False
        path, identity = self._loaded
        return _identity(path) != identity

    @property
    def may_go_on(self) -> bool:
        """True once what was waited for is there."""
        marks = self._validations
        return self._has_waited and marks is not None and marks.toolkit_mark.exists()

    def explained(self, error: DriverUnavailable, *, is_loaded: bool) -> DriverUnavailable:
        """The error as people should read it: what is waited for comes first.

        Returns:
            DriverChanged once the runtime or the driver could give this container what it lacks,
            if it were made again.
        """
        if isinstance(error, DriverChanged):
            return error
        if is_loaded and self._has_missed_nodes():
            return DriverChanged(
                f"the driver was loaded after this container was made, which has no {NODE}: {AGAIN}"
            )
        marks = self._validations
        if marks is None or not marks.is_mounted:
            return error
        if not marks.toolkit_mark.exists():
            self._has_waited = True
            return DriverUnavailable(
                f"waits for the GPU Operator's container toolkit ({marks.toolkit_mark}): {error}"
            )
        has_root = self._root is not None and self._root().inside.is_dir()
        if not self._has_waited or is_loaded or has_root:
            self._has_waited = False
            return error
        return DriverChanged(
            "the GPU Operator's container toolkit is ready, but this container was made before it "
            f"and has no driver: {AGAIN}"
        )

    def _has_missed_nodes(self) -> bool:
        """True if the host has got the driver's device nodes since, and this container has not."""
        if self._root is None or (self._dev / NODE).exists():
            return False
        is_on_host = (self._root().dev_inside / "dev" / NODE).exists()
        self._had_no_nodes = self._had_no_nodes or not is_on_host
        return self._had_no_nodes and is_on_host


def has_function(name: str) -> bool | None:
    """Whether the loaded library has a function of that name; None while none is loaded."""
    try:
        library = ctypes.CDLL(LIBRARY, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None
    return hasattr(library, name)


def _identity(path: Path) -> tuple[int, int, int]:
    """Device, inode and time of the last write; zeros for a file that is gone."""
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return status.st_dev, status.st_ino, status.st_mtime_ns
