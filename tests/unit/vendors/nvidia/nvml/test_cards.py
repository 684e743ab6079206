"""Facts of one card, and whose fault a failed query is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.vendors.nvidia.nvml.backend import NvmlSettings
from hami_node.vendors.nvidia.nvml.cards import (
    numa_node,
    system_memory_mib,
)
from tests.nvml_stub.control import MEMORY_MIB, Stub, card
from tests.unit.vendors.nvidia.nvml.conftest import Open

NO_MEMORY = "fail nvmlDeviceGetMemoryInfo 0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0\n", 0),
        ("1\n", 1),
        ("15", 15),
        ("-1\n", None),
        ("0-1\n", None),
        ("N/A", None),
        ("", None),
        *((text, None) for text in ("9" * 5000, "4294967296", "1024", "1e3", "0x1", "\udcff", "²")),
    ],
)
def test_numa_node_reads_sysfs_or_knows_nothing(
    tmp_path: Path, text: str, expected: int | None
) -> None:
    folder = tmp_path / "bus/pci/devices/0000:3b:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(text, errors="surrogateescape")
    assert numa_node(tmp_path, "00000000:3B:00.0") == expected


@pytest.mark.parametrize(
    ("pci_bus", "folder"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("0000000A:C1:1F.7", "000a:c1:1f.7"),
        ("00010000:01:00.0", "10000:01:00.0"),
    ],
)
def test_numa_node_finds_the_folder_of_every_spelling(
    tmp_path: Path, pci_bus: str, folder: str
) -> None:
    (tmp_path / "bus/pci/devices" / folder).mkdir(parents=True)
    (tmp_path / "bus/pci/devices" / folder / "numa_node").write_text("3")
    assert numa_node(tmp_path, pci_bus) == 3


@given(st.text())
def test_numa_node_of_any_text_never_fails(pci_bus: str) -> None:
    assert numa_node(Path("/nonexistent"), pci_bus) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("MemTotal:       125486592 kB\nMemFree: 1 kB\n", 122545),
        ("MemFree: 1 kB\n", None),
        ("MemTotal: many kB\n", None),
        ("\udcff\udcfe\nMemTotal: " + "9" * 5000 + " kB\n", None),
    ],
)
def test_system_memory_is_read_in_mib(tmp_path: Path, text: str, expected: int | None) -> None:
    (tmp_path / "meminfo").write_text(text, errors="surrogateescape")
    assert system_memory_mib(tmp_path / "meminfo") == expected


@pytest.mark.parametrize("code", [3, 13, 25, 26])
def test_unified_memory_card_offers_the_configured_size(
    start: Open,
    stub: Stub,
    settings: NvmlSettings,
    code: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stub.show(f"{NO_MEMORY} {code}")
    sources = replace(settings.sources, preconfigured_memory_mib=119808)
    backend = start(sources=sources)
    first, second, _ = backend.scan()
    backend.scan()
    assert (first.healthy, first.memory_mib) == (True, 119808)
    assert [r.message for r in caplog.records] == ["nvml_memory_not_told"]
    assert second.memory_mib == MEMORY_MIB


@pytest.mark.parametrize("line", [f"{NO_MEMORY} 3", ""], ids=["not supported", "answers 0"])
def test_unified_memory_card_offers_the_systems_size(
    start: Open, stub: Stub, settings: NvmlSettings, line: str
) -> None:
    stub.write(card(0, memory_mib=0), line)
    settings.sources.meminfo.write_text("MemTotal: 125486592 kB\n")
    (found,) = start().scan()
    assert (found.healthy, found.memory_mib) == (True, 122545)


def test_unified_memory_card_without_any_size_names_the_setting(start: Open, stub: Stub) -> None:
    stub.show(f"{NO_MEMORY} 3")
    first, second, _ = start().scan()
    assert not first.healthy
    assert "preConfiguredDeviceMemory" in first.unhealthy_reason
    assert second.healthy


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"recovery": "none"}, ""),
        ({"recovery": "unsupported"}, ""),
        ({"recovery": 1}, "reset the GPU"),
        ({"recovery": 2}, "reboot the node"),
        ({"recovery": 4}, "drain it and reset it"),
        ({"recovery": 99}, "take action 99"),
        ({"remapped": "none"}, ""),
        ({"remapped": "unsupported"}, ""),
        ({"remapped": "pending"}, ""),
        ({"remapped": "failure"}, "row remapping has failed"),
        ({"remapped": "failure", "recovery": 1}, "reset the GPU"),
        ({"mig": "enabled", "recovery": 1}, "reset the GPU"),
    ],
    ids=str,
)
def test_drivers_own_verdict_decides_health(
    start: Open, stub: Stub, changes: dict[str, object], reason: str
) -> None:
    stub.write(card(0), card(1, **changes))
    first, second = start().scan()
    assert first.healthy
    assert second.healthy == (not reason)
    assert reason in second.unhealthy_reason
