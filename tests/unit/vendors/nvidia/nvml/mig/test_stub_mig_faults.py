"""What the stand-in's MIG does wrong when a test asks for it, and that it outlives processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from functools import partial
from typing import Any

import pytest

from tests.fakes.waiting import eventually
from tests.nvml_stub.control import UUIDS, Stub, sequence
from tests.unit.vendors.nvidia.nvml.mig_calls import (
    NO_ROOM,
    code,
    create,
    device,
    in_mig_mode,
    whole,
)

LIMIT_S = 20.0


def test_a_line_nth_befalls_only_that_call(nvml: Any, stub: Stub) -> None:
    stub.write(
        *in_mig_mode(0),
        "nth first nvmlDeviceCreateGpuInstanceWithPlacement 0 2 before fail 999",
        "nth later changes * 4 after fail 15",
    )
    codes = [code(nvml, partial(create, nvml, 19, at, 1)) for at in range(5)]
    assert codes == [0, 999, 0, 15, 0]
    made = [i.start for i in stub.mig.instances(UUIDS[0])]
    assert sorted(made) == [0, 2, 3, 4], "what failed before did nothing, what failed after did it"
    stub.write(*in_mig_mode(0), "nth first changes * 2 before fail 999")
    assert code(nvml, lambda: create(nvml, 19, 1, 1)) == 0, "an id is counted once for all"


def test_a_call_that_hangs_afterwards_has_done_its_work(nvml: Any, stub: Stub) -> None:
    stub.write(*in_mig_mode(0), "nth 1 changes 0 1 after hang 60")
    thread = threading.Thread(target=lambda: create(nvml, 9, 4, 4))
    thread.start()
    eventually(lambda: stub.mig.instances(UUIDS[0]) != (), LIMIT_S)
    assert nvml.nvmlDeviceGetMigMode(device(nvml, 1)) == [0, 0], "others are answered"
    assert thread.is_alive()
    stub.write(*in_mig_mode(0))
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_a_slow_call_holds_nobody_else(nvml: Any, stub: Stub) -> None:
    stub.write(*in_mig_mode(0, 1), "hang changes 0 60")
    thread = threading.Thread(target=lambda: create(nvml, 9, 4, 4))
    thread.start()
    eventually(lambda: stub.calls("nvmlDeviceCreateGpuInstanceWithPlacement") > 0, LIMIT_S)
    began = time.monotonic()
    create(nvml, 9, 4, 4, 1)
    assert time.monotonic() - began < 30
    assert stub.mig.instances(UUIDS[0]) == ()
    stub.write(*in_mig_mode(0, 1))
    thread.join(LIMIT_S)
    assert len(stub.mig.instances(UUIDS[0])) == 1


SCRIPT = """
import sys
from ctypes import byref
from functools import partial
from pathlib import Path
from hami_node.vendors.nvidia.driver.library import DriverLibrary
from hami_node.vendors.nvidia.nvml.calls import load_pynvml
nvml = load_pynvml(DriverLibrary(Path(sys.argv[1])))
nvml.nvmlInit()
card = nvml.nvmlDeviceGetHandleByIndex(0)
gi = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(
    card, 9, byref(nvml.c_nvmlGpuInstancePlacement_t(4, 4)))
ci = nvml.nvmlGpuInstanceCreateComputeInstance(gi, 2)
nvml.nvmlComputeInstanceDestroy(ci)
nvml.nvmlGpuInstanceDestroy(gi)
"""

STATES = [(), ("3g.20gb", 0), ("3g.20gb", 1), ("3g.20gb", 0), ()]
"""What stands on the card before each of the four calls, and after the last."""


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_is_killed_at_a_call_and_the_hardware_stays(
    stub: Stub, number: int, when: str
) -> None:
    stub.write(*in_mig_mode(0), f"nth 1 changes * {number + 1} {when} kill")
    command = [sys.executable, "-c", SCRIPT, str(stub.library)]
    assert subprocess.run(command, check=False, timeout=60).returncode == -9
    found = tuple((i.profile, len(i.compute)) for i in stub.mig.instances(UUIDS[0]))
    wanted = STATES[number + (when == "after")]
    assert found == ((wanted,) if wanted else ())
    assert len(stub.mig.changes()) == number + (when == "after")
    stub.mig.reset()


def test_processes_at_once_never_overlap(stub: Stub) -> None:
    stub.write(*in_mig_mode(0))
    command = [sys.executable, "-c", SCRIPT.replace("ci =", "sys.exit(0)\nci =")]
    started = [
        subprocess.Popen([*command, str(stub.library)], stderr=subprocess.DEVNULL, env=os.environ)
        for _ in range(4)
    ]
    codes = sorted(process.wait(60) for process in started)
    assert codes == [0, 1, 1, 1]
    assert [c.result for c in stub.mig.changes()].count(NO_ROOM) == 3
    assert len(stub.mig.instances(UUIDS[0])) == 1
    stub.mig.reset()


def test_an_event_names_its_instance(nvml: Any, stub: Stub) -> None:
    events = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(device(nvml), nvml.nvmlEventTypeXidCriticalError, events)
    stub.write(*in_mig_mode(0), f"xid {next(sequence)} 0 94 2 0", f"xid {next(sequence)} 0 79")
    first = nvml.nvmlEventSetWait_v2(events, 1000)
    assert (first.eventData, first.gpuInstanceId, first.computeInstanceId) == (94, 2, 0)
    second = nvml.nvmlEventSetWait_v2(events, 1000)
    assert (second.gpuInstanceId, second.computeInstanceId) == (0xFFFFFFFF, 0xFFFFFFFF)
    nvml.nvmlEventSetFree(events)


@pytest.mark.parametrize("byte", [0, 0x41, 0xFF])
def test_garbage_is_answered_where_the_file_says_so(nvml: Any, stub: Stub, byte: int) -> None:
    whole(nvml, 9, 4, 4, 2)
    stub.write(
        *in_mig_mode(0),
        f"garbage nvmlGpuInstanceGetInfo 0 {byte}",
        f"garbage nvmlDeviceGetGpuInstanceProfileInfoV 0 {byte}",
    )
    spoiled = byte * 0x01010101
    gi = nvml.nvmlDeviceGetGpuInstanceById(device(nvml), 2)
    assert nvml.nvmlGpuInstanceGetInfo(gi).id == spoiled
    assert nvml.nvmlDeviceGetGpuInstanceProfileInfo(device(nvml), 0).sliceCount == spoiled
