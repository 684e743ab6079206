"""(d) Twenty pods of twenty sizes bound at once, without a lock: everybody gets its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.e2e import cards, parts
from tests.e2e.api import Api, Json
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.kubelet import held_slices
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.scheduler import Scheduler, Slice
from tests.e2e.waiting import eventually
from tests.fakes.pods import Generation

_COUNT = 20
_GATE = "KubeletPodResourcesListUseActivePods"


def _slice(number: int) -> Slice:
    """The slice of pod `number`: its size and its card together are nobody else's."""
    return Slice(
        uuid=cards.uuid_of(number * 3 % cards.COUNT), memory_mib=1000 + 37 * number, cores=number
    )


def _burst(api: Api, pods: Pods) -> None:
    """Create, reserve in every generation's way, then bind all at once; check who got what."""
    generations = tuple(Generation)
    created = []
    for number in range(_COUNT):
        own = _slice(number)
        box = RealContainer(name="c0", cards=1, memory_mib=own.memory_mib, cores=own.cores or None)
        created.append(pods.create(f"burst-{number:02d}", box))
    schedulers = [Scheduler(api, generations[n % len(generations)]) for n in range(_COUNT)]
    for number, pod in enumerate(created):
        schedulers[number].reserve(pod, {"c0": (_slice(number),)})

    def bind(number: int) -> None:
        schedulers[number].bind(created[number])

    began = time.monotonic()
    with ThreadPoolExecutor(_COUNT) as pool:
        list(pool.map(bind, range(_COUNT)))
    pods.wait_running(*(p["metadata"]["name"] for p in created))
    print(f"{_COUNT} pods bound at once run after {time.monotonic() - began:.1f} s")
    _check(pods, created)


def _check(pods: Pods, created: list[Json]) -> None:
    caches = set()
    for number, pod in enumerate(created):
        own, name = _slice(number), pod["metadata"]["name"]
        inside = pods.inside(name, "c0")
        assert inside.cards == (own.uuid,), name
        assert inside.memory_limits == (f"{own.memory_mib}m",), name
        assert inside.env.get(nvidia_names.ENV_CORE_LIMIT, "0") == str(own.cores), name
        assert pod["metadata"]["uid"] in inside.env[nvidia_names.ENV_CACHE], name
        caches.add(inside.env[nvidia_names.ENV_CACHE])
    assert len(caches) == len(created)
    phases = {p["metadata"]["annotations"][names.POD_BIND_PHASE] for p in pods.all()} - {"failed"}
    assert phases == {names.PHASE_SUCCESS}
    held = held_slices()
    names_on_card = {n: {i.rpartition("-")[0] for i in ids} for n, ids in held.items()}
    for number, pod in enumerate(created):
        # GetPreferredAllocation leads kubelet to IDs on the reserved card
        assert names_on_card[f"{pod['metadata']['name']}/c0"] == {_slice(number).uuid}


def test_burst_without_lock_serves_everybody_its_own(api: Api, pods: Pods) -> None:
    _burst(api, pods)


def _leave_the_dead(api: Api, pods: Pods) -> None:
    """Pods that finished and pods that were refused, left lying about."""
    scheduler = Scheduler(api)
    finished = [f"finished-{n}" for n in range(4)]
    for name in finished:
        pod = pods.create(name, RealContainer(name="c0", cards=1, memory_mib=500, script="true"))
        scheduler.place(pod, {"c0": (Slice(uuid=cards.uuid_of(7), memory_mib=500),)})
    refused = [f"refused-{n}" for n in range(4)]
    for name in refused:
        pod = pods.create(name, RealContainer(name="c0", cards=1, memory_mib=cards.MEMORY_MIB + 1))
        reserved = Slice(uuid=cards.uuid_of(6), memory_mib=cards.MEMORY_MIB + 1)
        scheduler.place(pod, {"c0": (reserved,)})
    for name in finished:
        pods.wait_phase(name, "Succeeded")
    for name in refused:
        pods.wait_phase(name, "Failed")


@pytest.fixture
def old_kubelet(cluster: Cluster, daemon: Daemon) -> Iterator[None]:
    """kubelet as before 1.34: its pod-resources list holds pods that are over."""
    for is_on in (False, True):
        parts.write_kubelet_config(cluster.root, {_GATE: is_on})
        cluster.restart("kubelet")
        eventually("the node is Ready", cluster.is_node_ready)
        daemon.wait_offered()
        if not is_on:
            yield


@pytest.mark.e2e_long
@pytest.mark.usefixtures("old_kubelet")
def test_burst_among_the_dead_serves_everybody_its_own(api: Api, pods: Pods) -> None:
    _leave_the_dead(api, pods)
    _burst(api, pods)
