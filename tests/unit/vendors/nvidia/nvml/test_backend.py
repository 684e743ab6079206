"""The backend as its callers see it, on the real pynvml and the C stand-in for the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hami_node.errors import DriverChanged, DriverUnavailable
from hami_node.model import Device, Uuid
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.driver import DriverLibrary
from hami_node.vendors.nvidia.mig.layout import (
    DriverCard,
    MigCard,
    minor_of,
)
from hami_node.vendors.nvidia.nvml.backend import NvmlBackend, NvmlSettings
from hami_node.vendors.nvidia.nvml.cards import FELL_OFF, UNKNOWN_MODEL
from tests.fakes.clock import RealClock
from tests.nvml_stub.control import MEMORY_MIB, MODEL, UUIDS, Stub, bus, card
from tests.reliability import shows
from tests.unit.vendors.nvidia.nvml.conftest import Open

BAD = 1
"""The card that fails in these tests."""

IDENTITY = ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetUUID")
REQUIRED = (*IDENTITY, "nvmlDeviceGetName")
OPTIONAL = (
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetRemappedRows",
)
NOT_OFFERED = {"not supported": 3, "no such function": 13, "other version": 25, "deprecated": 26}
CODES = {
    "uninitialized": 1,
    "no permission": 4,
    "not found": 6,
    "insufficient power": 8,
    "driver not loaded": 9,
    "timeout": 10,
    "irq": 11,
    "corrupted inforom": 14,
    "lost": 15,
    "reset required": 16,
    "blocked by the system": 17,
    "version mismatch": 18,
    "in use": 19,
    "out of memory": 20,
    "no data": 21,
    "not ready": 27,
    "gpu not found": 28,
    "invalid state": 29,
    "unknown": 999,
    "code of a later driver": 4711,
}


def table(codes: dict[str, int]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("code", codes.values(), ids=codes.keys())


def health(cards: tuple[Device, ...]) -> dict[str, bool]:
    return {str(found.uuid): found.healthy for found in cards}


def good(*indexes: int) -> dict[str, bool]:
    return {UUIDS[i]: True for i in indexes}


def test_scan_reads_every_fact_of_every_card(start: Open, stub: Stub, tmp_path: Path) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text("1\n")
    stub.show(cards=2)
    first, second = start().scan()
    assert first == Device(
        uuid=Uuid(UUIDS[0]),
        index=0,
        vendor=NVIDIA,
        model=MODEL,
        memory_mib=MEMORY_MIB,
        pci_bus=bus(0),
        detail=DriverCard(minor=0, mig=MigCard(is_enabled=False, is_pending=False)),
    )
    assert (second.uuid, second.index, second.numa) == (UUIDS[1], 1, 1)


@pytest.mark.parametrize(
    ("function", "code"),
    [
        *((function, code) for function in (*REQUIRED, *OPTIONAL) for code in CODES.values()),
        *((function, code) for function in REQUIRED for code in NOT_OFFERED.values()),
    ],
)
def test_bad_card_later_costs_one_card_and_heals(
    start: Open, stub: Stub, function: str, code: int
) -> None:
    backend = start()
    before = backend.scan()
    stub.show(f"fail {function} {BAD} {code}")
    cards = backend.scan()
    assert health(cards) == good(0, 2) | {UUIDS[BAD]: False}
    named = function.removesuffix("_v2").removesuffix("_v3")
    assert named in cards[BAD].unhealthy_reason
    assert f"code {code}" in cards[BAD].unhealthy_reason
    assert replace(cards[BAD], healthy=True, unhealthy_reason="") == before[BAD]
    stub.show()
    assert backend.scan() == before


@table(CODES)
@pytest.mark.parametrize("function", [*REQUIRED[3:], *OPTIONAL])
def test_bad_card_at_start_is_published_unhealthy_when_its_uuid_is_known(
    start: Open, stub: Stub, function: str, code: int
) -> None:
    stub.show(f"fail {function} {BAD} {code}")
    backend = start()
    cards = backend.scan()
    assert health(cards) == good(0, 2) | {UUIDS[BAD]: False}
    assert cards[BAD].model == (UNKNOWN_MODEL if function == "nvmlDeviceGetName" else MODEL)
    assert backend.nameless_faults() == ()
    stub.show()
    assert health(backend.scan()) == good(0, 1, 2)


@table(CODES)
@pytest.mark.parametrize("function", IDENTITY)
def test_bad_card_at_start_is_reported_when_its_uuid_was_never_read(
    start: Open, stub: Stub, function: str, code: int
) -> None:
    stub.show(f"fail {function} {BAD} {code}")
    backend = start()
    assert health(backend.scan()) == good(0, 2)
    (fault,) = backend.nameless_faults()
    assert fault.startswith(f"card {BAD}: NVML call nvmlDeviceGet")
    stub.show()
    assert health(backend.scan()) == good(0, 1, 2)
    assert backend.nameless_faults() == ()


@table(NOT_OFFERED)
@pytest.mark.parametrize("function", [f for f in OPTIONAL if "Memory" not in f])
def test_reading_that_a_card_does_not_offer_is_no_fault(
    start: Open, stub: Stub, function: str, code: int
) -> None:
    stub.show(f"fail {function} * {code}")
    assert health(start().scan()) == good(0, 1, 2)


@table(NOT_OFFERED)
def test_card_without_a_minor_number_is_served_all_the_same(
    start: Open, stub: Stub, code: int
) -> None:
    stub.write(card(0, minor=7), card(1), f"fail nvmlDeviceGetMinorNumber 1 {code}")
    assert [minor_of(found) for found in start().scan()] == [7, None]


@table({**CODES, **NOT_OFFERED, "invalid argument": 2})
@pytest.mark.parametrize("function", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
def test_driver_that_refuses_is_unavailable_and_no_reason_to_hurry(
    start: Open, stub: Stub, function: str, code: int
) -> None:
    stub.show(f"fail {function} * {code}")
    backend = start()
    with pytest.raises(DriverUnavailable, match=f"code {code}"):
        backend.scan()
    assert not backend.wait_for_event(0.01)


def test_driver_that_comes_back_wakes_the_waiter(start: Open, stub: Stub) -> None:
    stub.show("fail nvmlInitWithFlags * 9")
    backend = start(interval_s=0.05)
    with pytest.raises(DriverUnavailable, match="modprobe nvidia"):
        backend.scan()
    stub.show()
    assert backend.wait_for_event(10)
    assert health(backend.scan()) == good(0, 1, 2)


def test_driver_reloaded_is_opened_again_in_the_same_pass(start: Open, stub: Stub) -> None:
    backend = start()
    backend.scan()
    opened = stub.calls("nvmlInitWithFlags")
    stub.show("generation 2")
    assert health(backend.scan()) == good(0, 1, 2)
    assert stub.calls("nvmlInitWithFlags") == opened + 1


def test_driver_version_is_told(start: Open, stub: Stub) -> None:
    stub.show("driver 535.104.05")
    backend = start()
    backend.scan()
    assert backend.driver_version == "535.104.05"


def test_driver_replaced_under_a_session_needs_a_new_process(start: Open, stub: Stub) -> None:
    backend = start()
    backend.scan()
    stub.show("fail * * 18")
    with pytest.raises(DriverChanged, match="different versions"):
        backend.scan()


def test_version_mismatch_before_any_session_is_the_nodes(start: Open, stub: Stub) -> None:
    stub.show("fail * * 18")
    with pytest.raises(DriverUnavailable, match="different versions") as refused:
        start().scan()
    assert not isinstance(refused.value, DriverChanged)


def test_library_missing_names_library_path_and_cure(settings: NvmlSettings) -> None:
    backend = NvmlBackend(
        RealClock(), replace(settings, library=DriverLibrary(Path("/no/such/libnvidia-ml.so")))
    )
    with pytest.raises(DriverUnavailable) as refused:
        backend.scan()
    backend.close()
    for part in ("libnvidia-ml.so.1", "/no/such/", "runtimeClassName nvidia", "utility"):
        assert part in str(refused.value)


def test_library_that_is_none_says_what_the_loader_says(
    settings: NvmlSettings, tmp_path: Path
) -> None:
    (tmp_path / "lib.so").write_text("no library")
    backend = NvmlBackend(
        RealClock(), replace(settings, library=DriverLibrary(tmp_path / "lib.so"))
    )
    with pytest.raises(DriverUnavailable, match=r"lib\.so"):
        backend.scan()
    backend.close()


def run_python(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_card_that_is_no_longer_listed_stays_unhealthy(start: Open, stub: Stub) -> None:
    backend = start()
    before = backend.scan()
    stub.write(card(0), card(2))
    cards = backend.scan()
    gone = next(found for found in cards if found.uuid == UUIDS[1])
    assert (gone.healthy, gone.unhealthy_reason) == (False, FELL_OFF)
    assert next(found for found in cards if found.uuid == UUIDS[2]).index == 1
    stub.show()
    assert backend.scan() == before


def test_card_that_fails_at_anothers_index_is_known_by_its_bus(start: Open, stub: Stub) -> None:
    backend = start()
    backend.scan()
    stub.write(card(1), card(2), "fail nvmlDeviceGetUUID 1 15")
    reasons = {found.uuid: found.unhealthy_reason for found in backend.scan()}
    assert (reasons[Uuid(UUIDS[0])], reasons[Uuid(UUIDS[1])]) == (FELL_OFF, "")
    assert "nvmlDeviceGetUUID" in reasons[Uuid(UUIDS[2])]
    assert backend.nameless_faults() == ()


def test_new_card_wakes_the_waiter(start: Open, stub: Stub) -> None:
    backend = start(interval_s=0.02)
    backend.scan()
    stub.show(cards=4)
    assert backend.wait_for_event(10)
    assert health(backend.scan()) == good(0, 1, 2, 3)


@shows(
    "N12",
    fault="scan-interval-s is changed while the old interval has an hour to go",
    happens="the next scan comes at once, and the ones after it by the new interval",
)
def test_interval_applied_later_ends_the_wait_by_the_old_one(
    start: Open, stub: Stub, settings: NvmlSettings
) -> None:
    backend = start(interval_s=3600.0)
    backend.scan()
    backend.apply(replace(settings, interval_s=0.02))
    stub.show(cards=4)
    assert backend.wait_for_event(10)
    assert health(backend.scan()) == good(0, 1, 2, 3)


def test_wait_without_change_times_out(start: Open) -> None:
    backend = start(interval_s=0.01)
    backend.scan()
    while backend.wait_for_event(0.1):  # the links are news, once
        backend.scan()
    assert not backend.wait_for_event(0.1)


def test_settings_applied_later_count_from_the_next_pass(
    start: Open, stub: Stub, settings: NvmlSettings
) -> None:
    stub.show("fail nvmlDeviceGetMemoryInfo 0 3")
    backend = start()
    assert not backend.scan()[0].healthy
    sources = replace(settings.sources, preconfigured_memory_mib=122880)
    backend.apply(replace(settings, sources=sources))
    assert backend.scan()[0].memory_mib == 122880


def test_close_twice_is_harmless_and_gives_the_session_back(start: Open, stub: Stub) -> None:
    backend = start()
    backend.scan()
    given_back = stub.calls("nvmlShutdown")
    backend.close()
    backend.close()
    assert stub.calls("nvmlShutdown") == given_back + 1


@pytest.mark.gpu
def test_real_driver_lists_healthy_cards() -> None:
    script = """
import json, time
from hami_node.vendors.nvidia.nvml.backend import NvmlBackend
backend = NvmlBackend(type("C", (), {"now": time.time, "monotonic": time.monotonic}))
cards = backend.scan()
backend.wait_for_event(5)
backend.scan()
print(json.dumps({"cards": [[c.uuid, c.model, c.memory_mib, c.healthy, c.unhealthy_reason,
    c.pci_bus, c.numa] for c in cards], "driver": backend.driver_version,
    "scores": backend.pair_scores()}))
backend.close()
"""
    done = run_python(script)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(found)
    assert found["cards"]
    assert all(uuid.startswith("GPU-") and memory > 0 for uuid, _, memory, *_ in found["cards"])


def test_failing_version_call_costs_nothing(start: Open, stub: Stub) -> None:
    stub.show("fail nvmlSystemGetDriverVersion * 999")
    backend = start()
    assert health(backend.scan()) == good(0, 1, 2)
    assert backend.driver_version.startswith("unknown")
