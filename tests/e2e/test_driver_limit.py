"""The driver's own memory limit: NVIDIA's real hook sets it for the container's cgroup."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from tests.e2e import cards, toolkit
from tests.e2e.api import Json
from tests.e2e.daemon import Daemon
from tests.e2e.pods import Pods
from tests.e2e.scheduler import Scheduler, Slice
from tests.e2e.setups import Setup, mount, start
from tests.e2e.toolkit import DRIVER_ROOT, RuntimeClass

_LIMIT = "NVIDIA_GPU_MEMORY_LIMIT"
_CGROUPS = Path("/sys/fs/cgroup")
_SETUPS = {
    "driver": Setup(runtime=RuntimeClass.AUTO, args=("--memory-limit-by=driver",)),
    "both": Setup(runtime=RuntimeClass.AUTO, args=("--memory-limit-by=both",)),
    "driver_without_runtime": Setup(
        env={"NVIDIA_DRIVER_ROOT": str(DRIVER_ROOT), "NVIDIA_CDI_HOOK_PATH": str(toolkit.HOOK)},
        args=("--memory-limit-by=driver",),
    ),
}
_FIRST = Slice(uuid=cards.uuid_of(2), memory_mib=4000)
_SECOND = Slice(uuid=cards.uuid_of(5), memory_mib=7001)


@pytest.fixture(scope="module", params=_SETUPS)
def setup(request: pytest.FixtureRequest, changeable: Daemon, runtimes: None) -> Setup:
    """The daemon runs on such a node."""
    found = _SETUPS[request.param]

    def change(pod: Json) -> None:
        found.change(pod)
        if not (_CGROUPS / "cgroup.controllers").exists():  # a machine with both versions
            mount(pod, "cgroups", str(_CGROUPS / "unified"), str(_CGROUPS))

    changeable.run_changed(change)
    return found


def test_driver_is_given_the_limit_of_the_containers_cgroup(
    setup: Setup, pods: Pods, scheduler: Scheduler
) -> None:
    toolkit.LIMITS.unlink(missing_ok=True)
    for name, own in (("first", _FIRST), ("second", _SECOND)):
        start(pods, scheduler, name, own, setup)
    pods.wait_running("first", "second")
    given = {uuid: (limit_mib, cgroup) for uuid, limit_mib, cgroup in toolkit.limits_set()}
    assert set(given) == {_FIRST.uuid, _SECOND.uuid}
    for name, own in (("first", _FIRST), ("second", _SECOND)):
        limit_mib, cgroup = given[own.uuid]
        assert limit_mib == own.memory_mib
        pod = pods.read(name)
        container = pod["status"]["containerStatuses"][0]["containerID"].rpartition("/")[2]
        assert f"pod{pod['metadata']['uid']}" in cgroup
        assert cgroup.endswith(f"/{container}")
        env = pods.inside(name, "c0").env
        assert env[_LIMIT] == str(own.memory_mib)
        assert (f"{nvidia_names.ENV_MEMORY_LIMIT}_0" in env) == ("both" in setup.args[0])


def test_pod_that_sets_its_own_driver_limit_is_refused(
    setup: Setup, pods: Pods, scheduler: Scheduler
) -> None:
    start(pods, scheduler, "greedy", _FIRST, setup, NVIDIA_GPU_MEMORY_LIMIT="80000")
    assert _LIMIT in pods.wait_phase("greedy", "Failed")["message"]
