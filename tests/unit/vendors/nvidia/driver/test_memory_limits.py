"""The C stand-in's memory limits, called as the container toolkit's hook calls the driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.nvml_stub.build import NoCompiler, build
from tests.nvml_stub.control import MEMORY_MIB, UUIDS, Stub

CALL = """
import ctypes, sys
class Limits(ctypes.Structure):
    _fields_ = [
        ("cgroup", ctypes.c_char_p),
        ("soft", ctypes.c_ulonglong),
        ("hard", ctypes.c_ulonglong),
    ]
library, uuid, cgroup, mib = sys.argv[1:]
nvml = ctypes.CDLL(library)
card = ctypes.c_void_p()
assert nvml.nvmlInit_v2() == 0
assert nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(card)) == 0
limits = Limits(cgroup.encode(), int(mib) << 20, int(mib) << 20)
sys.exit(nvml.nvmlDeviceSetMemoryLimits_v1(card, ctypes.byref(limits)))
"""
KNOWS = """
import ctypes, sys
from hami_node.vendors.nvidia.driver.library import has_function
before = has_function("nvmlDeviceSetMemoryLimits_v1")
ctypes.CDLL(sys.argv[1])
print(before, has_function("nvmlDeviceSetMemoryLimits_v1"))
"""


def python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("mib", "result"), [(3000, 0), (MEMORY_MIB, 0), (MEMORY_MIB + 1, 2)])
def test_limit_is_kept_with_card_and_cgroup_and_never_above_the_card(
    stub_library: Stub, mib: int, result: int
) -> None:
    stub_library.show()
    kept = Path(f"{stub_library.file}.limits")
    kept.unlink(missing_ok=True)
    cgroup = "/sys/fs/cgroup/kubepods.slice/pod/c"
    done = python(CALL, str(stub_library.library), UUIDS[1], cgroup, str(mib))
    assert done.returncode == result, done.stderr
    if result == 0:
        assert kept.read_text() == f"{UUIDS[1]} {mib << 20} {mib << 20} {cgroup}\n"
    else:
        assert not kept.exists()


@pytest.mark.parametrize(("defines", "known"), [((), True), (("WITHOUT_MEMORY_LIMITS",), False)])
def test_driver_without_the_function_is_known(
    tmp_path: Path, defines: tuple[str, ...], known: bool
) -> None:
    try:
        library = build(tmp_path, *defines)
    except NoCompiler as e:
        pytest.skip(str(e))
    assert python(KNOWS, str(library)).stdout.split() == ["None", str(known)]
