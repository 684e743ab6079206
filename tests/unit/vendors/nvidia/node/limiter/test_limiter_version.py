from __future__ import annotations

import random

import pytest

from hami_node.vendors.nvidia.node.limiter.versions import LimiterVersion, version_of

RISING = (
    "latest",
    "v2.4",
    "v2.4.1",
    "2.8.0",
    "v2.8.1",
    "v2.9.0-rc.2",
    "v2.9.0-rc.10",
    "v2.9.0",
    "v2.9.0-0f3a",
    "v2.9.0-1a2b",
    "v2.10.0",
    "v10.0.0",
)


def test_versions_are_sorted_as_numbers() -> None:
    mixed = [LimiterVersion(text) for text in RISING]
    random.Random(1).shuffle(mixed)
    assert [version.text for version in sorted(mixed, key=lambda item: item.key)] == list(RISING)


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("libvgpu.so.v2.9.0", "v2.9.0"),
        ("libvgpu.so.2.10.0", "2.10.0"),
        ("libvgpu.so.v2.9.0-0f3a2b1c", "v2.9.0-0f3a2b1c"),
        ("libvgpu.so.latest", "latest"),
        ("libvgpu.so", None),
        ("libvgpu.so.", None),
        ("libvgpu.soup", None),
        (".libvgpu.so.v2.9.0.Xa1", None),
        ("libvgpu.so..v2.9.0", None),
        *((f"libvgpu.so.v2.9.0{ending}", None) for ending in (".tmp", ".new", "~", ".part")),
        *((f"libvgpu.so{ending}", None) for ending in (".tmp", ".new", "~", ".bak", ".swp")),
        ("libvgpu.so.v2.9.0.tmp.83af", None),
        ("libvgpu.so.v2.9.0 (copy)", None),
        (f"libvgpu.so.{'9' * 200}", None),
    ],
)
def test_version_is_what_follows_the_name_and_never_temporary(
    name: str, version: str | None
) -> None:
    found = version_of(name, "libvgpu.so")
    assert (found.text if found else None) == version
