"""NVIDIA's container runtime on the node: the real programs, over a driver of the tests' own.

The driver's root holds the C stand-in for NVML, other libraries and programs by their names only,
and device nodes that no driver serves: opening one that the container may use says "no such
device", opening another "operation not permitted".
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

from tests.e2e.assets import NODE_DIR, PROGRAMS
from tests.nvml_stub.build import LIBRARY_NAME, build

FOLDER: Final = NODE_DIR / "toolkit"
DRIVER_ROOT: Final = NODE_DIR / "driver"
CDI: Final = NODE_DIR / "cdi"
CONTROL: Final = NODE_DIR / "nvml" / "cards"  # what the stand-in for NVML answers
LIMITS: Final = Path(f"{CONTROL}.limits")  # what it was given by nvmlDeviceSetMemoryLimits_v1
HOOK: Final = FOLDER / "nvidia-cdi-hook"
VERSION: Final = "570.86.15"
LIBRARIES: Final = Path("/usr/lib/x86_64-linux-gnu")
MANAGEMENT: Final = "management.nvidia.com/gpu"
"""The kind of the Operator's own spec, which holds only the device `all`."""
MAJOR: Final = 195
_UVM_MAJOR: Final = 510
_CONTROL_MINOR: Final = 255


class RuntimeClass(StrEnum):
    """NVIDIA's runtime in the configurations that clusters have; a handler and a class each."""

    AUTO = "nvidia"
    OPERATOR = "nvidia-operator"  # the GPU Operator from 25.10 on
    MOUNTS = "nvidia-mounts"  # the environment counts in privileged containers only


def program(name: RuntimeClass) -> Path:
    """What containerd starts in place of runc."""
    return FOLDER / name / "nvidia-container-runtime"


def install(minors: range) -> None:
    """Lay out driver, runtimes and the Operator's spec; cards have these minor numbers."""
    _install_driver(minors)
    CDI.mkdir(parents=True, exist_ok=True)
    for name in RuntimeClass:
        program(name).parent.mkdir(parents=True, exist_ok=True)
        config = program(name).with_name("config.toml")
        config.write_text(_config(name))
        _write_script(
            program(name),
            f"export NVIDIA_CTK_CONFIG_FILE_PATH={config}\n"
            f'exec {PROGRAMS / "nvidia-container-runtime"} "$@"\n',
        )
    _write_script(HOOK, _HOOK.replace("HOOK", str(PROGRAMS / "nvidia-cdi-hook")))
    _write_management_spec(minors)


def class_objects() -> list[Mapping[str, object]]:
    """The RuntimeClass objects."""
    return [
        {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": name.value},
            "handler": name.value,
        }
        for name in RuntimeClass
    ]


def limits_set() -> list[tuple[str, int, str]]:
    """Memory limits that NVML was given: the card's UUID, the hard limit in MiB, the cgroup."""
    lines = LIMITS.read_text().splitlines() if LIMITS.exists() else []
    found = [line.split(maxsplit=3) for line in lines]
    return [(uuid, int(hard) >> 20, cgroup) for uuid, _, hard, cgroup in found]


def _install_driver(minors: range) -> None:
    folder = DRIVER_ROOT / LIBRARIES.relative_to("/")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LIBRARY_NAME).unlink(missing_ok=True)  # a link, once this has run
    build(folder)
    (folder / LIBRARY_NAME).replace(folder / f"libnvidia-ml.so.{VERSION}")
    for name in ("libcuda", "libnvidia-ptxjitcompiler"):
        _compile_empty(folder / f"{name}.so.{VERSION}", f"{name}.so.1")
    for link, target in (
        (LIBRARY_NAME, f"libnvidia-ml.so.{VERSION}"),
        ("libcuda.so.1", f"libcuda.so.{VERSION}"),
        ("libcuda.so", "libcuda.so.1"),
    ):
        (folder / link).unlink(missing_ok=True)
        (folder / link).symlink_to(target)
    _write_script(DRIVER_ROOT / "usr/bin/nvidia-smi", "")
    (DRIVER_ROOT / "dev").mkdir(exist_ok=True)
    for minor in minors:
        _make_node(f"nvidia{minor}", MAJOR, minor)
    _make_node("nvidiactl", MAJOR, _CONTROL_MINOR)
    _make_node("nvidia-uvm", _UVM_MAJOR, 0)


def _compile_empty(path: Path, soname: str) -> None:
    """A library with nothing in it: loaders and caches want a real one."""
    command = ("gcc", "-shared", "-x", "c", "-", f"-Wl,-soname,{soname}", "-o", str(path))
    subprocess.run(command, check=True, input=b"")


def _make_node(name: str, major: int, minor: int) -> None:
    path = DRIVER_ROOT / "dev" / name
    path.unlink(missing_ok=True)
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    path.chmod(0o666)


def _write_script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nexport NVML_STUB_FILE={CONTROL}\n{text}")
    path.chmod(0o755)


def _config(name: RuntimeClass) -> str:
    is_operator = name is RuntimeClass.OPERATOR
    takes_mounts = name is RuntimeClass.MOUNTS
    return _CONFIG.format(
        root=DRIVER_ROOT,
        hook=HOOK,
        cdi=CDI,
        runc=shutil.which("runc"),
        log=FOLDER / name / "runtime.log",
        mode="cdi" if is_operator else "auto",
        kind=MANAGEMENT if is_operator else "nvidia.com/gpu",
        env=json.dumps(not takes_mounts),
        mounts=json.dumps(takes_mounts),
    )


def _write_management_spec(minors: range) -> None:
    nodes = ["nvidiactl", "nvidia-uvm", *(f"nvidia{minor}" for minor in minors)]
    library = LIBRARIES / f"libnvidia-ml.so.{VERSION}"
    edits = {
        "deviceNodes": [
            {"path": f"/dev/{n}", "hostPath": str(DRIVER_ROOT / "dev" / n)} for n in nodes
        ],
        "mounts": [
            {
                "hostPath": f"{DRIVER_ROOT}{library}",
                "containerPath": str(library),
                "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
            }
        ],
        "hooks": [
            {
                "hookName": "createContainer",
                "path": str(HOOK),
                "args": [HOOK.name, "update-ldcache", "--folder", str(LIBRARIES)],
            }
        ],
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
    }
    spec = {
        "cdiVersion": "0.5.0",
        "kind": MANAGEMENT,
        "devices": [{"name": "all", "containerEdits": edits}],
    }
    (CDI / "management.nvidia.com-gpu.yaml").write_text(json.dumps(spec))  # JSON is YAML


_CONFIG: Final = """\
accept-nvidia-visible-devices-envvar-when-unprivileged = {env}
accept-nvidia-visible-devices-as-volume-mounts = {mounts}
[nvidia-container-cli]
root = "{root}"
ldconfig = "@/sbin/ldconfig"
[nvidia-container-runtime]
debug = "{log}"
mode = "{mode}"
runtimes = ["{runc}"]
[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
default-kind = "{kind}"
spec-dirs = ["{cdi}"]
[nvidia-ctk]
path = "{hook}"
"""
# The hook sets memory limits on cgroup v2 only: on a machine with both, it sees that tree alone.
_HOOK: Final = """\
if [ "$1" = apply-cuda-memory-limits ] && [ ! -e /sys/fs/cgroup/cgroup.controllers ]; then
    exec unshare --mount /bin/sh -c \\
        'mount --bind /sys/fs/cgroup/unified /sys/fs/cgroup && exec "$@"' sh HOOK "$@"
fi
exec HOOK "$@"
"""
