"""Names of installed libraries, which tell their content, and checksums that were asked for. Pure.

An installed library is `libvgpu.so.<version>-<first 12 digits of its sha256>`: another content has
another name, so no file is ever written twice, and one that a container has mapped never changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from hami_node.errors import InstallError
from hami_node.vendors.nvidia.node.limiter.limiter_version import version_of

LIBRARY: Final = "libvgpu.so"
POINTER: Final = "limiter.installed"
"""The file that says which library was installed last."""
MAX_POINTER_BYTES: Final = 300
DIGITS: Final = 12
UNKNOWN: Final = "unknown"
MACHINES: Final[Mapping[str, str]] = {"x86_64": "amd64", "aarch64": "arm64"}
"""The kernel's names of processors, and those of container images."""
MAX_VERSION_CHARS: Final = 64

_INSTALLED: Final = re.compile(r"(.+)-([0-9a-f]{12})")
_PIN: Final = re.compile(r"(?:(amd64|arm64)=)?([0-9a-f]{64})")
_POINTER: Final = re.compile(r"([!-~]{1,200}) ([0-9a-f]{64})\n")


@dataclass(frozen=True, slots=True)
class Pointer:
    """Which library was installed last: the name of its file, and its whole checksum."""

    name: str
    sha256: str

    def encode(self) -> bytes:
        """The content of the pointer's file."""
        return f"{self.name} {self.sha256}\n".encode()


def decode_pointer(content: bytes) -> Pointer | None:
    """What a pointer's file says; None for anything that the installer has not written."""
    found = _POINTER.fullmatch(content.decode("ascii", "replace"))
    if found is None or digest_in(found[1]) != found[2][:DIGITS]:
        return None
    return Pointer(found[1], found[2])


def installed_name(version: str, sha256: str) -> str:
    """The name of an installed library.

    Raises:
        InstallError: the version can't be part of a file's name.
    """
    name = f"{LIBRARY}.{version}-{sha256[:DIGITS]}"
    if len(version) > MAX_VERSION_CHARS or version_of(name, LIBRARY) is None:
        raise InstallError(
            f"{version[:80]!r} is no version: use letters, digits, '.', '-', '_' and '+', at most "
            f"{MAX_VERSION_CHARS} of them, and no word for a temporary file such as 'new'"
        )
    return name


def digest_in(name: str) -> str:
    """The first digits of the sha256 that an installed library's name tells; "" for others."""
    version = version_of(name, LIBRARY)
    found = _INSTALLED.fullmatch(version.text) if version is not None else None
    return found[2] if found is not None else ""


def version_in(name: str) -> str:
    """The version that the name of a library tells, without its checksum; "" for none."""
    version = version_of(name, LIBRARY)
    if version is None:
        return ""
    found = _INSTALLED.fullmatch(version.text)
    return found[1] if found is not None else version.text


def wanted_digest(pins: Iterable[str], machine: str) -> str:
    """The sha256 that a library for this machine has to have; "" where none was asked for.

    Args:
        pins: each a sha256, or `amd64=` or `arm64=` before one.
        machine: the kernel's name of the processor.

    Raises:
        InstallError: there are some, but none for this machine, or one can't be read.
    """
    by_kind: dict[str, str] = {}
    for text in pins:
        found = _PIN.fullmatch(text)
        if found is None:
            raise InstallError(
                f"{text[:80]!r} is no sha256: write 64 hexadecimal digits in lower case, or "
                "amd64=... and arm64=..."
            )
        by_kind[found[1] or ""] = found[2]
    kind = MACHINES.get(machine, machine)
    if by_kind and not by_kind.keys() & {kind, ""}:
        raise InstallError(f"no sha256 is given for {kind}: add {kind}=... to the others")
    return by_kind.get(kind, by_kind.get("", ""))
