"""Where the driver is on this node, what its installation waits for, and its library."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hami_node.errors import DriverChanged, DriverUnavailable
from hami_node.logs import kv
from hami_node.text import cut
from hami_node.vendors.nvidia.settings import NvidiaSettings

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


# -- where the driver is: by the settings, else as the GPU Operator says ---------------------------
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


# -- what the GPU Operator's validator leaves on the node: marks, and where the driver is ----------
TOOLKIT_READY: Final = "toolkit-ready"
DRIVER_READY: Final = "driver-ready"
DRIVER_ROOT: Final = "NVIDIA_DRIVER_ROOT"
_MAX_BYTES: Final = 4096
_MAX_VALUE: Final = 512
_LINE: Final = re.compile(r"(?:export )?([A-Z][A-Z0-9_]{0,63})=(.*)", re.ASCII)
_PLAIN: Final = re.compile(r"[A-Za-z0-9/._+@:-]*", re.ASCII)
"""Values that mean the same to a shell and to us."""
_READ: Final = frozenset(
    {
        "IS_HOST_DRIVER",
        DRIVER_ROOT,
        "DRIVER_ROOT_CTR_PATH",
        "NVIDIA_DEV_ROOT",
        "DEV_ROOT_CTR_PATH",
    }
)


class Validations:
    """The validator's folder; where it is not mounted, nothing is waited for."""

    def __init__(self, folder: Path) -> None:
        """Read `folder` whenever something is asked for."""
        self._folder = folder
        self._logged = ""
        self._last: Mapping[str, str] = {}
        self._was_ready = False

    @property
    def is_mounted(self) -> bool:
        """True where the folder is there."""
        return self._folder.is_dir()

    @property
    def toolkit_mark(self) -> Path:
        """The file that is there once the container toolkit is installed."""
        return self._folder / TOOLKIT_READY

    @property
    def driver_mark(self) -> Path:
        """The file that is there once the driver is installed."""
        return self._folder / DRIVER_READY

    @property
    def awaits_driver(self) -> bool:
        """True where the driver has never been ready since this process runs."""
        self._was_ready = self._was_ready or self.driver_mark.exists()
        return self.is_mounted and not self._was_ready

    def driver_facts(self) -> Mapping[str, str]:
        """What the validator found out about the driver; empty where it has never said.

        What it said last counts while its file is gone, or says less: it removes its files whenever
        its pod ends, and the driver is where it was.

        The file has lines for a shell. It is only read: a line that a shell would have to
        interpret is left out.
        """
        facts = self._facts()
        if facts.get(DRIVER_ROOT, "").startswith("/") and facts.keys() >= self._last.keys():
            self._last, self._was_ready = facts, True
        return self._last or facts

    def _facts(self) -> Mapping[str, str]:
        try:
            text = _content(self.driver_mark)
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as e:
            self._report(str(e))
            return {}
        facts: dict[str, str] = {}
        bad: list[str] = []
        for line in text.splitlines():
            name, value = _fact(line)
            if value is None:
                bad.append(line)
            elif name in _READ:
                facts[name] = value
        self._report("; ".join(cut(line, 60) for line in bad[:3]))
        return facts

    def _report(self, problem: str) -> None:
        """Log what can't be read, once."""
        if problem and problem != self._logged:
            log.warning(
                "driver_ready_not_understood",
                extra=kv(file=str(self.driver_mark), left_out=problem),
            )
        self._logged = problem


def _content(path: Path) -> str:
    """Raises OSError or UnicodeDecodeError: not a regular file, too large, no text."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError("is no regular file")
        data = os.read(handle, _MAX_BYTES + 1)
    finally:
        os.close(handle)
    if len(data) > _MAX_BYTES:
        raise OSError(f"is larger than {_MAX_BYTES} bytes")
    return data.decode("ascii")


def _fact(line: str) -> tuple[str, str | None]:
    """Name and value of a line; no value for one that has to be interpreted."""
    text = line.strip()
    if not text or text.startswith("#"):
        return "", ""
    found = _LINE.fullmatch(text)
    if found is None:
        return "", None
    name, value = found.groups()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        value = value[1:-1]
    is_plain = len(value) <= _MAX_VALUE and _PLAIN.fullmatch(value)
    return (name, value) if is_plain else ("", None)


# -- paths inside another root: a driver's folder has links that were made for the host ------------
LIBRARY: Final = "libnvidia-ml.so.1"
FOLDERS: Final = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",
    "lib",
    "usr/local/lib",
    "usr/local/nvidia/lib64",
    "nvidia/lib64",
)
"""Where distributions and driver containers keep the library, below the root."""
_MAX_LINKS: Final = 40
"""As many as the kernel follows."""


def resolve_in(root: Path, path: str) -> Path:
    """The real path of `path` inside `root`; links, absolute ones too, stay inside.

    Raises:
        OSError: a part is missing, or there are too many links.
    """
    parts = _parts(path)
    found: list[str] = []
    links = 0
    while parts:
        part = parts.pop()
        if part == "..":
            del found[-1:]  # above the root there is nothing, as for the kernel
            continue
        here = root.joinpath(*found, part)
        if not stat.S_ISLNK(here.lstat().st_mode):
            found.append(part)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(here))
        target = here.readlink()
        if target.is_absolute():
            found.clear()
        parts += _parts(str(target))
    return root.joinpath(*found)


def libraries_below(root: Path) -> Iterator[Path]:
    """The files that could be the driver's library, in the order of the folders, each once."""
    seen: set[Path] = set()
    for folder in FOLDERS:
        try:
            path = resolve_in(root, f"{folder}/{LIBRARY}")
            is_new = path not in seen and path.is_file()
        except OSError:
            continue
        if is_new:
            seen.add(path)
            yield path


def _parts(path: str) -> list[str]:
    """The names of a path, the first one last."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


# -- which boot of the node this is ----------------------------------------------------------------
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id(path: Path = BOOT_ID) -> str:
    """Differs after each boot; "" where that can't be read."""
    try:
        return path.read_bytes()[:64].decode("ascii", "replace").strip()
    except OSError:
        return ""
