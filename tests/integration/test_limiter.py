"""The limiter's files on the node, and the files that containers get, over kubelet's own wire."""

from __future__ import annotations

import os
import stat

from hami_node.vendors.nvidia import names as nvidia_names
from tests.fakes.waiting import eventually
from tests.integration.rig import Rig
from tests.reliability import shows


@shows(
    "N7",
    fault="the limiter's library is cut off by a copy in progress, later it is whole",
    happens="pods are refused with file, reason and what to do, the metric is 1; whole, it serves",
)
def test_half_a_library_refuses_pods_until_it_is_whole(rig: Rig) -> None:
    library = rig.hook / "vgpu" / "libvgpu.so"
    os.truncate(library, 700)
    rig.place_one("a")
    refusal = rig.admit("a").refusal
    assert f"{library} has 700 bytes" in refusal
    assert "without its limits" in refusal
    assert "install it again" in refusal
    eventually(lambda: rig.metric("limiter_missing") == 1)
    rig.lay_limiter()
    rig.serve_one("b")


@shows(
    "N7",
    fault="the node has limiter 2.8.1, which does not limit a container's second program",
    happens="pods run, each with an Event that says so; the metric is 1",
    lost="the limit of second programs, until limiter 2.8.2 is installed",
)
def test_leaky_limiter_is_reported_on_pod_and_node(node: Rig) -> None:
    node.take_limiter()
    node.lay_limiter("v2.8.1")
    node.start()
    node.serve_one("a")
    eventually(lambda: any("second program" in str(event) for event in node.api.list("events")))
    eventually(lambda: node.metric("limiter_defective") == 1)
    assert node.metric("limiter_missing") == 0


def test_container_gets_files_of_its_own_and_the_lock_folder_below_the_hook_path(rig: Rig) -> None:
    rig.place_one("a")
    response = rig.admit("a").responses["main"]
    root, name = rig.hook / "vgpu", "uid-a_main"
    mounts = {m.container_path: (m.host_path, m.read_only) for m in response.mounts}
    own = root / "containers" / name
    assert mounts == {
        str(root / f"{name}.cache"): (str(own / f"{name}.cache"), False),
        str(root / "libvgpu.so"): (str(own / "libvgpu.so"), True),
        "/etc/ld.so.preload": (str(root / "ld.so.preload"), True),
        "/tmp/vgpulock": (str(root / "lock"), False),
    }
    assert response.envs[nvidia_names.ENV_CACHE] == str(root / f"{name}.cache")
    assert response.envs[nvidia_names.ENV_REDIRECT] == str(root / "libvgpu.so")
    for path, mode in ((own / f"{name}.cache", 0o666), (own, 0o755), (root / "lock", 0o777)):
        assert stat.S_IMODE(path.lstat().st_mode) == mode
