from __future__ import annotations

import pytest

from hami_node.errors import InstallError
from hami_node.vendors.nvidia.node.limiter.versions import (
    Pointer,
    decode_pointer,
    digest_in,
    installed_name,
    version_in,
    wanted_digest,
)

A, B = "0123456789ab" + "0" * 52, "f" * 64


@pytest.mark.parametrize("version", ["v2.10.0", "v2.9.0-rc.1", "2.8", "dev", "unknown", "a_b+c"])
def test_installed_name_tells_version_and_digest(version: str) -> None:
    name = installed_name(version, A)
    assert name == f"libvgpu.so.{version}-0123456789ab"
    assert (version_in(name), digest_in(name)) == (version, "0123456789ab")


@pytest.mark.parametrize("version", ["", "../x", "a/b", "v1.tmp", "new", "x" * 65, "-1", "a b"])
def test_version_that_is_no_part_of_a_file_name_is_refused(version: str) -> None:
    with pytest.raises(InstallError, match="is no version"):
        installed_name(version, A)


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("libvgpu.so", ""),
        ("libvgpu.so.v2.10.0", "v2.10.0"),
        ("libvgpu.so.v2.9.0-0f3a", "v2.9.0-0f3a"),
        ("libvgpu.so.v2.9.0-0123456789AB", "v2.9.0-0123456789AB"),
        ("other.so.v1-0123456789ab", ""),
    ],
)
def test_names_of_others_tell_no_digest(name: str, version: str) -> None:
    assert (version_in(name), digest_in(name)) == (version, "")


@pytest.mark.parametrize(
    ("pins", "machine", "wanted"),
    [
        ((), "x86_64", ""),
        ((A,), "x86_64", A),
        ((A,), "riscv64", A),
        ((f"amd64={A}", f"arm64={B}"), "x86_64", A),
        ((f"amd64={A}", f"arm64={B}"), "aarch64", B),
        ((A, f"arm64={B}"), "aarch64", B),
    ],
)
def test_sha256_is_that_of_the_machine(pins: tuple[str, ...], machine: str, wanted: str) -> None:
    assert wanted_digest(pins, machine) == wanted


@pytest.mark.parametrize("pin", ["", "abc", A.upper(), f"x86={A}", f"{A} ", f"sha256:{A}"])
def test_what_is_no_sha256_is_refused(pin: str) -> None:
    if pin == A:
        pytest.skip("digits only")
    with pytest.raises(InstallError, match="is no sha256"):
        wanted_digest((pin,), "x86_64")


def test_sha256_for_other_machines_only_is_refused() -> None:
    with pytest.raises(InstallError, match="no sha256 is given for amd64"):
        wanted_digest((f"arm64={A}",), "x86_64")


def test_pointer_is_read_as_it_was_written() -> None:
    pointer = Pointer(installed_name("v2.10.0", A), A)
    assert decode_pointer(pointer.encode()) == pointer


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 100,
        f"libvgpu.so {A}\n".encode(),
        f"libvgpu.so.v1-0123456789ab {B}\n".encode(),
        f"../libvgpu.so.v1-0123456789ab {A}\n".encode(),
        f"libvgpu.so.v1-0123456789ab {A}".encode(),
        f"libvgpu.so.v1-0123456789ab {A}\n\n".encode(),
    ],
)
def test_what_the_installer_has_not_written_is_no_pointer(content: bytes) -> None:
    assert decode_pointer(content) is None
