"""Pods come and go while daemon, kubelet and extender are killed at random: all stays right."""

from __future__ import annotations

import random
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.wire.grants import decode_grants
from tests.e2e import cards
from tests.e2e.api import Api, Json
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.extender import DEFAULT, Extender
from tests.e2e.pods import Pods, RealContainer, describe
from tests.e2e.scheduler import Scheduler
from tests.e2e.trouble import Trouble, impatient_kubelet
from tests.e2e.waiting import eventually
from tests.reliability import shows

_PODS: Final = 60
_EVERY_S: Final = 0.5
_DAEMON_KILLS: Final = 12
_KUBELET_KILLS: Final = 3
_EXTENDER_KILLS: Final = 4
_BOUND_S: Final = 90
"""So long after the last event, the return of the node's slices, no pod waits for a node.

kube-scheduler tries pods again every 30 s that its own count of cards has refused, whatever becomes
of the node meanwhile, if they ask for something that no node lists, such as memory of a card. Its
back-off is up to 10 s. What it never tries again waits for minutes. kubelet starts the pods at its
own pace.
"""
_NO_PLUGIN: Final = re.compile(
    "Unavailable|Canceled|EOF|connection|no healthy devices|Available: 0|not registered|"
    "unregistered|endpoint|transport|daemon is (starting|stopping)|has not listed",
    re.IGNORECASE,
)
"""What kubelet says of a pod that came while no plugin served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """A pod of the churn; `stays_s` is how long its containers run, None for ever."""

    name: str
    memory_mib: int
    stays_s: int | None
    names: tuple[str, ...]

    @property
    def containers(self) -> list[RealContainer]:
        one = RealContainer(name="", cards=1, memory_mib=self.memory_mib, cores=2)
        asked = one if self.stays_s is None else replace(one, script=f"sleep {self.stays_s}")
        return [replace(asked, name=name) for name in self.names]


@pytest.fixture
def impatient(cluster: Cluster, api: Api, daemon: Daemon) -> Iterator[None]:
    """A kubelet that starts crashed containers again within seconds."""
    with impatient_kubelet(cluster, api):
        daemon.wait_offered()
        yield
    daemon.forget_crashes()


def _plans(seed: random.Random) -> list[_Plan]:
    return [
        _Plan(
            name=f"churn-{number:02d}",
            memory_mib=1000 + 17 * number,
            stays_s=seed.choice([None, None, 2, 8, 20]),
            names=("c0", "c1") if number % 3 == 0 else ("c0",),
        )
        for number in range(_PODS)
    ]


def _churn(
    cluster: Cluster, daemon: Daemon, extender: Extender, pods: Pods, number: int
) -> list[_Plan]:
    seed = random.Random(number)
    plans = _plans(seed)
    trouble = Trouble(seed, _PODS * _EVERY_S)
    trouble.kill("daemon", _DAEMON_KILLS, daemon.kill)
    trouble.kill("kubelet", _KUBELET_KILLS, lambda: cluster.restart("kubelet", signal.SIGKILL))
    trouble.kill("extender", _EXTENDER_KILLS, extender.kill_leader)
    for plan in plans:
        pods.insist(plan.name, *plan.containers, scheduler=DEFAULT)
        time.sleep(_EVERY_S)
    for thread in trouble.threads:
        thread.join()
    assert not trouble.errors
    print(f"seed {number}: killed {dict(trouble.done)}")
    return plans


def _none_waits(pods: Pods, *, for_a_node: bool) -> bool:
    """No pod is Pending any more, or none of them without a node."""
    waiting = {
        pod["metadata"]["name"]: describe(pod["status"])
        for pod in pods.all()
        if pod["status"]["phase"] == "Pending" and not (for_a_node and pod["spec"].get("nodeName"))
    }
    assert not waiting, waiting
    return True


def _check(pods: Pods, plans: Sequence[_Plan], scheduler: Scheduler) -> None:
    """Every container has its own slice, no card is overfull, no lock is left."""
    states = {pod["metadata"]["name"]: pod for pod in pods.all()}
    used: Counter[str] = Counter()
    phases: Counter[str] = Counter()
    for plan in plans:
        pod = states[plan.name]
        phase = pod["status"]["phase"]
        phases[phase] += 1
        if phase == "Failed":
            if _has_done_its_work(pod["status"]):
                continue
            text = describe(pod["status"])
            assert _NO_PLUGIN.search(text), f"{plan.name} was refused: {text}"
            continue
        key = nvidia_names.POD_ALLOCATED
        slots = decode_grants(pod["metadata"]["annotations"][key], key, NVIDIA)
        grants = [grant for slot in slots for grant in slot]
        for name, grant in zip(plan.names, grants, strict=True):
            inside = pods.inside(plan.name, name)
            assert inside.cards == (grant.uuid,), plan.name
            assert inside.memory_limits == (f"{plan.memory_mib}m",), plan.name
            assert pod["metadata"]["uid"] in inside.env[nvidia_names.ENV_CACHE], plan.name
            if phase == "Running":
                used[grant.uuid] += plan.memory_mib
    assert not used or max(used.values()) <= cards.MEMORY_MIB, used
    eventually("the node's lock is free", lambda: not scheduler.lock_owner())
    print(f"after the churn: {dict(phases)}")


def _has_done_its_work(status: Json) -> bool:
    """Its container ended by itself while kubelet was dead: the next one admits the pod once more.

    Where no plugin serves at that moment the pod fails, and a third kubelet drops the reason. A pod
    that has one is judged by it.
    """
    if status.get("reason") or status.get("message"):
        return False
    ended = [item["state"].get("terminated") for item in status.get("containerStatuses", ())]
    return bool(ended) and all(end is not None and end["exitCode"] == 0 for end in ended)


def _run(request: pytest.FixtureRequest, number: int) -> None:
    given: Any = request.getfixturevalue
    cluster, daemon, extender, pods = map(given, ("cluster", "daemon", "extender", "pods"))
    plans = _churn(cluster, daemon, extender, pods, number)
    killed = time.monotonic()
    daemon.wait_ready()
    extender.wait_ready()
    daemon.wait_offered()
    began = time.monotonic()
    eventually("no pod waits for a node", lambda: _none_waits(pods, for_a_node=True), _BOUND_S)
    bound_s = time.monotonic() - began
    eventually("no pod is Pending", lambda: _none_waits(pods, for_a_node=False))
    print(
        f"all offered {began - killed:.1f} s after the last kill, all bound {bound_s:.1f} s and "
        f"started {time.monotonic() - began:.1f} s after that"
    )
    _check(pods, plans, given("scheduler"))
    daemon.wait_offered()


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("impatient")
@shows(
    "N4",
    fault="60 pods come and go while the daemon is killed 12 times, kubelet 3 times and the "
    "extender 4 times",
    happens="every container has its own slice, no card is overfull, no lock stays, no pod waits",
    lost="pods that came while no plugin served: kubelet refuses them",
)
def test_churn_among_kills(request: pytest.FixtureRequest) -> None:
    _run(request, 1)


@pytest.mark.e2e_long
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("number", range(2, 11))
def test_churn_among_kills_at_other_moments(request: pytest.FixtureRequest, number: int) -> None:
    _run(request, number)
