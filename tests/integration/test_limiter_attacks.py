"""Real links, real mounts, a real user without rights: what a container could try. As root only."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hami_node.model import Container
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.choices import BackendKind
from hami_node.vendors.nvidia.node.handover.node_hand_over import NodeHandOver
from hami_node.vendors.nvidia.node.limiter.hook_folder import HookFolder
from hami_node.vendors.nvidia.node.response import NvidiaResponder
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.answer import ContainerResponse, Slice
from tests.fakes.limiter import build_library, lay_limiter
from tests.reliability import shows

ROOT = Path(__file__).parents[2]


def _can_mount() -> bool:
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return False
    return (
        subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode == 0
    )


pytestmark = pytest.mark.skipif(not _can_mount(), reason="needs root and a mount namespace")

VICTIM = """
import json, os, stat
from pathlib import Path
from hami_node.model import Container
from hami_node.vendors.on_node.answer import Slice
from hami_node.vendors.nvidia.choices import BackendKind
from hami_node.vendors.nvidia.node.handover.node_hand_over import NodeHandOver
from hami_node.vendors.nvidia.node.limiter.hook_folder import HookFolder
from hami_node.vendors.nvidia.node.response import NvidiaResponder
from hami_node.vendors.nvidia.settings import NvidiaSettings
from tests.fakes.limiter import lay_limiter

Path("/tmp/victim").mkdir(mode=0o700)
Path("/tmp/vgpulock").symlink_to("/tmp/victim")
hook = Path("/tmp/hook")
lay_limiter(hook, "v2.8.0")
settings = NvidiaSettings(hook_path=hook, backend=BackendKind.SIMULATED)
hand_over = NodeHandOver(lambda: settings)
responder = NvidiaResponder(HookFolder(hook), lambda: settings, hand_over)
answer = responder.respond(Slice(pod_uid="u", container=Container(name="c"), grants=()))
locks = [m.host_path for m in answer.mounts if m.container_path == "/tmp/vgpulock"]
mode = stat.S_IMODE(os.stat("/tmp/victim").st_mode)
print(json.dumps({"mode": mode, "locks": locks, "inside": os.listdir("/tmp/victim")}))
"""


@shows(
    "N8",
    fault="a pod with hostPath made /tmp/vgpulock on the host a link to a folder of somebody else",
    happens="the folder keeps its mode; the lock is below the root-only hook folder instead",
)
def test_link_in_the_hosts_tmp_changes_nothing_for_its_victim() -> None:
    root = shlex.quote(str(ROOT))
    # A checkout below /tmp stays where it is.
    inner = (
        f"mount --bind {root} /mnt && mount -t tmpfs none /tmp && mkdir -p {root} && "
        f"mount --bind /mnt {root} && cd {root} && "
        f"exec {shlex.quote(sys.executable)} -c {shlex.quote(VICTIM)}"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-ec", inner], check=True, capture_output=True, text=True
    )
    assert json.loads(done.stdout) == {
        "mode": 0o700,
        "locks": ["/tmp/hook/vgpu/lock"],
        "inside": [],
    }


ATTACKS = """
PATH=/bin:/usr/bin
folder=$(dirname "$CACHE")
try() { if "$@"; then echo "yes: $*"; else echo "no: $*"; fi }
write() { echo "$1" >> "$2"; }
try write first "$CACHE"
try sh -c 'echo second >> "$CACHE"'
try touch "$folder/other.cache"
try rm -f "$CACHE"
try mv "$CACHE" "$folder/moved"
try ln -sfn /etc/shadow "$CACHE"
try chmod 0600 "$CACHE"
try write x "$folder/libvgpu.so"
try rm -f "$folder/libvgpu.so"
try write x /etc/ld.so.preload
try mkdir /tmp/vgpulock/taken
try touch /tmp/other
"""
"""What a program in a container tries; CACHE is the path that the limiter is told."""


def inside(rootfs: Path, response: ContainerResponse, script: str) -> list[str]:
    """Run a script as uid 1000 with the mounts of the answer in a read-only root file system."""
    steps = [f"mount --bind {rootfs} {rootfs}"]
    for system in ("bin", "lib", "lib64", "usr"):
        (rootfs / system).mkdir(parents=True, exist_ok=True)
        if Path("/", system).exists():
            steps.append(f"mount --bind /{system} {rootfs}/{system}")
    for mount in response.mounts:
        point = rootfs / mount.container_path.lstrip("/")
        point.parent.mkdir(parents=True, exist_ok=True)
        if Path(mount.host_path).is_dir():
            point.mkdir()
        else:
            point.touch()
        steps.append(f"mount --bind {mount.host_path} {point}")
        if mount.is_read_only:
            steps.append(f"mount -o remount,bind,ro {point}")
    (rootfs / "tmp").chmod(0o755)
    steps.append(f"mount -o remount,bind,ro {rootfs}")
    steps.append(f"exec chroot --userspec=1000:1000 {rootfs} /bin/sh -c {shlex.quote(script)}")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-ec", "\n".join(steps)],
        check=True,
        capture_output=True,
        text=True,
        env={"CACHE": dict(response.envs)[nvidia_names.ENV_CACHE], "PATH": os.environ["PATH"]},
    )
    return done.stdout.splitlines()


@shows(
    "N8",
    fault="a program of uid 1000 in a read-only container tries to change everything it sees",
    happens="it writes its cache file and the old limiter's lock folder, a second one does too; "
    "nothing else",
)
def test_container_changes_its_cache_and_the_lock_folder_and_nothing_else(tmp_path: Path) -> None:
    hook = tmp_path / "hook"
    lay_limiter(hook, "v2.8.0")
    build_library(hook / "vgpu" / "libvgpu.so.v2.8.0")
    settings = NvidiaSettings(hook_path=hook, backend=BackendKind.SIMULATED)
    hand_over = NodeHandOver(lambda: settings)
    responder = NvidiaResponder(HookFolder(hook), lambda: settings, hand_over)
    served = Slice(pod_uid="u-1", container=Container(name="main"), grants=())
    response = responder.respond(served)

    told = inside(tmp_path / "rootfs", response, ATTACKS)

    assert [line.split(":")[0] for line in told] == ["yes"] * 2 + ["no"] * 8 + ["yes", "no"], told
    own = hook / "vgpu" / "containers" / "u-1_main"
    assert {path.name for path in own.iterdir()} == {"u-1_main.cache", "libvgpu.so.v2.8.0"}
    assert (own / "u-1_main.cache").read_text() == "first\nsecond\n"
    assert {path.name for path in (hook / "vgpu" / "lock").iterdir()} == {"taken"}
    assert responder.respond(served) == response
