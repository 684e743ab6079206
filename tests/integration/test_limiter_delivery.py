"""The limiter installed, upgraded and removed under a running daemon, and what containers leave."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from hami_node.node.file_keeper import FileKeeper
from hami_node.simulate.kubelet import Admission, _Admitted
from hami_node.vendors.nvidia.demo import empty_library
from hami_node.vendors.nvidia.node import leftovers
from hami_node.vendors.nvidia.regions.region_layouts import MAGIC
from hami_node.wire import names
from hami_node.wire.limiters import limiters_of
from tests.fakes.clock import PacedClock
from tests.fakes.pods import NODE
from tests.fakes.waiting import eventually
from tests.integration.rig import LIMIT_S, PACE, Rig
from tests.reliability import shows


class LateClock(PacedClock):
    """The rig's time, moved ahead by hand."""

    def __init__(self) -> None:
        super().__init__(PACE)
        self.ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


@pytest.fixture
def bare(node: Rig) -> Rig:
    """A node without a limiter, whose clock can be moved; the daemon is not started."""
    node.take_limiter()
    node.clock = LateClock()
    return node


def content(version: str) -> bytes:
    return empty_library(os.uname().machine) + version.encode()


def sha256(version: str) -> str:
    return hashlib.sha256(content(version)).hexdigest()


def name(version: str) -> str:
    return f"libvgpu.so.{version}-{sha256(version)[:12]}"


def install(rig: Rig, version: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As the init container does, with an image that has this version."""
    source = rig.root / f"image-{version}"
    source.mkdir(exist_ok=True)
    (source / f"libvgpu.so.{version}").write_bytes(content(version))
    command = [sys.executable, "-m", "hami_node", "install-limiter", "--from", str(source)]
    return subprocess.run(
        [*command, "--hook-path", str(rig.hook), *arguments],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def admit(rig: Rig, pod: str) -> Admission:
    rig.place_one(pod)
    return rig.admit(pod)


def mounts(answer: Admission) -> dict[str, str]:
    return {m.container_path: m.host_path for m in answer.responses["main"].mounts}


def library(rig: Rig, answer: Admission) -> str:
    return Path(mounts(answer)[f"{rig.hook}/vgpu/libvgpu.so"]).name


def keeper(rig: Rig) -> FileKeeper:
    assert rig.daemon is not None
    assert rig.daemon.cluster is not None
    return rig.daemon.cluster._files


def tidy(rig: Rig) -> None:
    """The files are looked at soon."""
    assert rig.daemon is not None
    assert rig.daemon.cluster is not None
    rig.daemon.cluster.node.wake("files")


def pass_time(rig: Rig, seconds: float) -> None:
    """In steps in which the API server is heard of."""
    assert isinstance(rig.clock, LateClock)
    assert rig.daemon is not None
    cluster = rig.daemon.cluster
    assert cluster is not None
    while seconds > 0:
        step_s = min(seconds, 100.0)
        seconds -= step_s
        rig.clock.ahead_s += step_s
        rig.api.create("pods", {"metadata": {"name": f"t{rig.clock.ahead_s:.0f}", "namespace": "x"},
                                "spec": {"nodeName": NODE, "containers": []}})  # fmt: skip
        rig.api.annotate("nodes", NODE, {"example.org/time": str(rig.clock.ahead_s)})
        eventually(lambda: (cluster.node.view.last_contact_age_s() or 0.0) < 50, LIMIT_S)
        tidy(rig)


def in_time(rig: Rig, is_true: Callable[[], bool]) -> None:
    """Let time pass until it is true."""

    def is_done() -> bool:
        if is_true():
            return True
        pass_time(rig, leftovers.GRACE_S + 1)
        return False

    eventually(is_done, LIMIT_S)


def own_folders(rig: Rig) -> list[str]:
    return sorted(path.name for path in (rig.hook / "vgpu" / "containers").iterdir())


@shows(
    "L2",
    fault="another limiter is installed while containers run, and kubelet asks for them again",
    happens="a container keeps its library for its whole life, new ones get the new library; "
    "metrics and the node's annotation tell both",
)
def test_upgrade_under_running_containers(bare: Rig) -> None:
    assert install(bare, "v2.9.0").returncode == 0
    bare.start()
    first = admit(bare, "a")
    done = install(bare, "v2.10.0")
    assert (done.returncode, done.stdout.startswith("installed: ")) == (0, True)
    second = admit(bare, "b")
    assert library(bare, first) == name("v2.9.0")
    again = bare.kubelet.call_again(bare.resource, first.device_ids["main"])
    assert again == first.responses["main"]
    assert library(bare, second) == name("v2.10.0")
    for pod, file in {"a": name("v2.9.0"), "b": name("v2.10.0")}.items():
        version = file.removeprefix("libvgpu.so.")
        assert limiters_of(bare.pod(pod).annotations) == {"main": version}
    versions = {"a": name("v2.9.0"), "b": name("v2.10.0")}
    for pod, file in versions.items():
        labels = {"pod": pod, "version": file.removeprefix("libvgpu.so.")}
        eventually(partial(bare.metric, "container_limiter_info", **labels), LIMIT_S)
    eventually(lambda: bare.metric("limiter_info", sha256=sha256("v2.10.0")) == 1, LIMIT_S)
    assert bare.metric("limiter_info", sha256=sha256("v2.9.0")) is None
    version = name("v2.10.0").removeprefix("libvgpu.so.")
    cluster = bare.daemon and bare.daemon.cluster
    assert cluster
    cluster.node.wake()
    eventually(lambda: bare.notes.get(names.NODE_LIMITER) == version, LIMIT_S)


@shows(
    "L5",
    fault="an old limiter is on the node, and the last container that has it ends",
    happens="it is removed 10 minutes later, not before; the series of the container vanishes",
)
def test_old_limiter_goes_with_its_last_container(bare: Rig) -> None:
    install(bare, "v2.9.0")
    bare.start()
    admit(bare, "a")
    install(bare, "v2.10.0")
    old = bare.hook / "vgpu" / name("v2.9.0")
    pass_time(bare, leftovers.LIMITER_GRACE_S + 60)
    assert old.exists()
    eventually(lambda: bare.metric("container_limiter_info", pod="a") == 1, LIMIT_S)
    bare.end("a")
    eventually(lambda: bare.metric("container_limiter_info", pod="a") is None, LIMIT_S)
    in_time(bare, lambda: own_folders(bare) == [])
    assert old.exists()
    in_time(bare, lambda: not old.exists())
    assert library(bare, admit(bare, "b")) == name("v2.10.0")


@shows(
    "L1",
    fault="the node has another limiter than the sha256 of the settings",
    happens="the daemon is not ready and refuses pods with the remedy, but serves a container "
    "again that it has served; with the wanted library it goes on",
)
def test_wanted_sha256_that_is_not_there_refuses_new_pods_only(bare: Rig) -> None:
    install(bare, "v2.9.0")
    bare.start()
    first = admit(bare, "a")
    bare.restart(limiter_sha256=sha256("v2.10.0"))
    refusal = admit(bare, "b").refusal
    assert f"no limiter with the sha256 {sha256('v2.10.0')}" in refusal
    assert "hami-node install-limiter" in refusal
    again = bare.kubelet.call_again(bare.resource, first.device_ids["main"])
    assert again == first.responses["main"]
    cluster = bare.daemon and bare.daemon.cluster
    assert cluster
    eventually(lambda: "no limiter with the sha256" in cluster._hand_overs.why_unlimited(), LIMIT_S)
    eventually(lambda: bare.metric("limiter_missing") == 1, LIMIT_S)
    assert install(bare, "v2.8.3", "--sha256", sha256("v2.10.0")).returncode == 1
    assert install(bare, "v2.10.0", "--sha256", sha256("v2.10.0")).returncode == 0
    assert library(bare, admit(bare, "c")) == name("v2.10.0")
    eventually(lambda: cluster._hand_overs.why_unlimited() == "", LIMIT_S)


def test_limiter_that_hami_left_serves_with_and_without_being_installed(bare: Rig) -> None:
    bare.lay_limiter("v2.9.0")
    bare.start()
    assert library(bare, admit(bare, "a")) == "libvgpu.so.v2.9.0"
    command = [sys.executable, "-m", "hami_node", "install-limiter", "--from-host"]
    subprocess.run([*command, "--hook-path", str(bare.hook)], check=True, timeout=60)
    assert library(bare, admit(bare, "b")).startswith("libvgpu.so.v2.9.0-")


@shows(
    "L6",
    fault="a pod ends, or is deleted while the daemon is stopped",
    happens="its files go a minute later, also after a restart; disk use is shown, and shrinks",
)
def test_files_of_ended_pods_go(bare: Rig) -> None:
    install(bare, "v2.9.0")
    bare.start()
    for pod in ("a", "b", "c"):
        path = mounts(admit(bare, pod))[f"{bare.hook}/vgpu/uid-{pod}_main.cache"]
        Path(path).write_bytes(b"x" * 2_000_000)
    tidy(bare)
    eventually(lambda: bare.metric("container_files_folders") == 3, LIMIT_S)
    eventually(lambda: (bare.metric("container_files_bytes") or 0) > 5_900_000, LIMIT_S)
    bare.end("a")
    eventually(lambda: bare.metric("container_limiter_info", pod="a") is None, LIMIT_S)
    in_time(bare, lambda: own_folders(bare) == ["uid-b_main", "uid-c_main"])
    bare.stop()
    bare.kubelet.remove("default", "b")
    bare.api.delete("pods", "b", "default")
    bare.start()
    eventually(lambda: bare.metric("container_files_folders") == 2, LIMIT_S)
    in_time(bare, lambda: own_folders(bare) == ["uid-c_main"])
    eventually(lambda: (bare.metric("container_files_bytes") or 0) < 2_100_000, LIMIT_S)


@shows(
    "L6",
    fault="kubelet lists a pod with cards that nobody else knows, while files are unclaimed",
    happens="nothing is removed until it is known whose they are",
)
def test_nothing_goes_while_kubelet_lists_a_stranger(bare: Rig) -> None:
    install(bare, "v2.9.0")
    bare.start()
    admit(bare, "a")
    (bare.hook / "vgpu" / "containers" / "uid-x_main").mkdir()
    stranger = replace(bare.pod("a"), name="stranger", uid="uid-x")
    with bare.kubelet._state:
        held = bare.kubelet._pods["default", "a"].held
        bare.kubelet._pods["default", "stranger"] = _Admitted(pod=stranger, held=held)
    pass_time(bare, 2 * leftovers.GRACE_S)
    assert keeper(bare)._used() is None
    assert own_folders(bare) == ["uid-a_main", "uid-x_main"]
    bare.kubelet.remove("default", "stranger")
    in_time(bare, lambda: own_folders(bare) == ["uid-a_main"])


@shows(
    "L7",
    fault="HAMi's folders of ended containers are on the node, open to all and full of files",
    happens="they go as well; what can't be removed is on the metric and in an Event of the node",
)
def test_hostile_left_overs_of_hami_go(bare: Rig) -> None:
    install(bare, "v2.9.0")
    bare.start()
    admit(bare, "a")
    left = bare.hook / "vgpu" / "containers" / "0f7e1c4a-1111-2222-3333-444455556666_main"
    (left / "deep" / "deeper").mkdir(parents=True)
    left.chmod(0o777)
    for number in range(2500):
        (left / f"{number}.cache").touch()
    (left / "link").symlink_to(bare.hook)
    tidy(bare)
    eventually(lambda: bare.metric("container_files_folders") == 2, LIMIT_S)
    in_time(bare, lambda: own_folders(bare) == ["uid-a_main"])
    assert (bare.hook / "vgpu" / name("v2.9.0")).exists()
    assert bare.metric("container_files_stuck") == 0


@shows(
    "L10",
    fault="a container fills the lock folder that it shares, or leaves others notes there",
    happens="all but the limiter's empty lock goes within half a minute; it is counted till then",
)
def test_lock_folder_holds_nothing_but_the_lock(bare: Rig, tmp_path: Path) -> None:
    install(bare, "v2.8.0")
    bare.start()
    lock = Path(mounts(admit(bare, "a"))["/tmp/vgpulock"])
    (lock / "lock").touch()
    (lock / "fill").write_bytes(b"x" * 8_000_000)
    (lock / "note").write_text("secret")
    (lock / "empty").mkdir()
    (lock / "tree" / "deeper").mkdir(parents=True)
    (lock / "tree" / "deeper" / "fill").write_bytes(b"x" * 8_000_000)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (lock / "link").symlink_to(victim)
    for number in range(5000):
        (lock / f"f{number}").touch()
    in_time(bare, lambda: [path.name for path in lock.iterdir()] == ["lock"])
    in_time(bare, lambda: own_folders(bare) == ["uid-a_main"])
    (lock / "lock").write_bytes(b"x" * 8_000_000)
    in_time(bare, lambda: not list(lock.iterdir()))
    eventually(lambda: (bare.metric("container_files_bytes") or 0) < 100_000, LIMIT_S)
    assert bare.metric("container_files_stuck") == 0
    assert victim.read_text() == "precious"


@shows(
    "L8",
    fault="the library of a running container is removed by hand, and kubelet asks for it again",
    happens="the container gets the present library and a new cache file, on record too",
)
def test_container_whose_library_is_gone_gets_the_present_one(bare: Rig) -> None:
    install(bare, "v2.8.0")
    bare.start()
    first = admit(bare, "a")
    cache = Path(mounts(first)[f"{bare.hook}/vgpu/uid-a_main.cache"])
    cache.write_bytes(struct.pack("<iII", MAGIC, 1, 1).ljust(2_008_953, b"\0"))
    install(bare, "v2.10.0")
    (bare.hook / "vgpu" / "containers" / "uid-a_main" / name("v2.8.0")).unlink()
    again = bare.kubelet.call_again(bare.resource, first.device_ids["main"])
    paths = {m.container_path: Path(m.host_path) for m in again.mounts}
    assert paths[f"{bare.hook}/vgpu/libvgpu.so"].name == name("v2.10.0")
    assert all(path.exists() for path in paths.values())
    assert cache.stat().st_size == 0
    version = name("v2.10.0").removeprefix("libvgpu.so.")
    eventually(lambda: bare.metric("container_limiter_info", version=version) == 1, LIMIT_S)
    bare.restart()
    assert bare.kubelet.call_again(bare.resource, first.device_ids["main"]) == again
