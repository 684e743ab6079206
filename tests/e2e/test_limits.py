"""(b) A container sees exactly its own limits, cards and mounts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.e2e import cards, limiter
from tests.e2e.pods import Inside, Pods, RealContainer
from tests.e2e.scheduler import Scheduler, Slice
from tests.e2e.waiting import eventually

_FIRST, _SECOND = cards.uuid_of(1), cards.uuid_of(4)
_ENV_PREFIXES = ("CUDA_", "NVIDIA_", "GPU_", "LIBCUDA_", "AWS_", "NEURON_")


def _limits(inside: Inside) -> dict[str, str]:
    """The environment without what Kubernetes and the shell put there."""
    return {k: v for k, v in inside.env.items() if k.startswith(_ENV_PREFIXES)}


def test_container_sees_its_limits_and_nothing_else(pods: Pods, scheduler: Scheduler) -> None:
    pod = pods.create("one", RealContainer(name="c0", cards=1, memory_mib=3000, cores=30))
    scheduler.place(pod, {"c0": (Slice(uuid=_FIRST, memory_mib=3000, cores=30),)})
    pods.wait_running("one")
    limits = _limits(pods.inside("one", "c0"))
    cache = limits.pop(nvidia_names.ENV_CACHE)
    assert limits == {
        f"{nvidia_names.ENV_MEMORY_LIMIT}_0": "3000m",
        nvidia_names.ENV_CORE_LIMIT: "30",
        nvidia_names.ENV_VISIBLE_DEVICES: _FIRST,
        nvidia_names.ENV_LOG_LEVEL: "1",
        nvidia_names.ENV_REDIRECT: str(limiter.LIBRARY),
    }
    assert cache.startswith(f"{limiter.HOOK}/vgpu/")
    assert cache.endswith(".cache")
    assert pod["metadata"]["uid"] in cache


def test_container_sees_the_limiter_and_a_cache_file_of_its_own(
    pods: Pods, scheduler: Scheduler
) -> None:
    pod = pods.create("one", RealContainer(name="c0", cards=1, memory_mib=3000))
    scheduler.place(pod, {"c0": (Slice(uuid=_FIRST, memory_mib=3000),)})
    pods.wait_running("one")
    inside = pods.inside("one", "c0")
    ours = (str(limiter.HOOK), "/tmp", "/etc/ld.so.preload")
    name = f"{pod['metadata']['uid']}_c0"
    assert {k: v for k, v in inside.mounts.items() if k.startswith(ours)} == {
        f"{limiter.HOOK}/vgpu/libvgpu.so": "ro",
        f"{limiter.HOOK}/vgpu/{name}.cache": "rw",
        "/tmp/vgpulock": "rw",
        "/etc/ld.so.preload": "ro",
    }
    assert inside.preload == f"{limiter.LIBRARY}\n"
    folder = limiter.CONTAINERS / name
    assert folder.stat().st_mode & 0o777 == 0o755
    assert {path.name for path in folder.iterdir()} == {f"{name}.cache", limiter.LIBRARY.name}
    assert (folder / f"{name}.cache").stat().st_mode & 0o777 == 0o666
    assert limiter.LOCK.stat().st_mode & 0o777 == 0o777


def test_cards_and_limits_have_one_order_by_card_number(pods: Pods, scheduler: Scheduler) -> None:
    pod = pods.create("two", RealContainer(name="c0", cards=2, memory_mib=4000))
    slices = (Slice(uuid=_SECOND, memory_mib=4000), Slice(uuid=_FIRST, memory_mib=4000))
    scheduler.place(pod, {"c0": slices})
    pods.wait_running("two")
    inside = pods.inside("two", "c0")
    assert inside.cards == (_FIRST, _SECOND)
    assert inside.memory_limits == ("4000m", "4000m")


def test_served_pod_is_marked_and_its_lock_is_free(pods: Pods, scheduler: Scheduler) -> None:
    pod = pods.create("one", RealContainer(name="c0", cards=1, memory_mib=3000))
    scheduler.place(pod, {"c0": (Slice(uuid=_FIRST, memory_mib=3000),)}, is_locked=True)
    pods.wait_running("one")
    assert pods.annotation("one", names.POD_BIND_PHASE) == names.PHASE_SUCCESS
    assert _FIRST not in pods.annotation("one", nvidia_names.POD_TO_ALLOCATE)
    assert _FIRST in pods.annotation("one", nvidia_names.POD_ALLOCATED)
    eventually("the node's lock is free", lambda: not scheduler.lock_owner())


def test_whole_card_is_limited_to_its_size(pods: Pods, scheduler: Scheduler) -> None:
    pod = pods.create("whole", RealContainer(name="c0", cards=1))
    scheduler.place(pod, {"c0": (Slice(uuid=_FIRST, memory_mib=cards.MEMORY_MIB),)})
    pods.wait_running("whole")
    assert pods.inside("whole", "c0").memory_limits == (f"{cards.MEMORY_MIB}m",)


@pytest.fixture
def _without_limiter() -> Iterator[None]:
    limiter.remove()
    yield
    limiter.install()


@pytest.mark.usefixtures("_without_limiter")
def test_missing_limiter_refuses_with_the_cure(pods: Pods, scheduler: Scheduler) -> None:
    pod = pods.create("unlimited", RealContainer(name="c0", cards=1, memory_mib=3000))
    scheduler.place(pod, {"c0": (Slice(uuid=_FIRST, memory_mib=3000),)}, is_locked=True)
    status = pods.wait_phase("unlimited", "Failed")
    assert str(limiter.LIBRARY) in status["message"]
    assert not limiter.LIBRARY.exists()
    eventually("the node's lock is free", lambda: not scheduler.lock_owner())
