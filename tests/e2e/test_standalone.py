"""(s) Fixed shares with a real kube-scheduler and kubelet, and nothing else that schedules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.shares import share_resource
from tests.e2e import cards, parts
from tests.e2e.api import Api
from tests.e2e.daemon import CONFIG_MAP, Daemon
from tests.e2e.extender import DEFAULT
from tests.e2e.kubelet import healthy_slices
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.waiting import eventually

HALF: Final = share_resource(nvidia_names.RESOURCE_GPU, 2)
QUARTER: Final = share_resource(nvidia_names.RESOURCE_GPU, 4)
QUARTERS: Final = 4 * (cards.COUNT - 1)


@pytest.fixture
def shares(api: Api, daemon: Daemon) -> Iterator[None]:
    """The node in standalone mode: card 0 in halves, the others in quarters; as before after it."""
    before: dict[str, str] = api.read(CONFIG_MAP)["data"]
    entry = {"name": parts.NODE, "standalone": True, "standaloneshares": {"0": 2, "*": 4}}
    api.patch(CONFIG_MAP, {"data": {"config.json": json.dumps({"nodeconfig": [entry]})}})
    daemon.forget_crashes()  # the mode is read at the start
    eventually(
        "every share is offered",
        lambda: (daemon.allocatable(HALF), daemon.allocatable(QUARTER)) == (2, QUARTERS),
    )
    yield
    api.patch(CONFIG_MAP, {"data": before})
    daemon.forget_crashes()
    daemon.wait_offered()


def _asking(resource: str, count: int) -> RealContainer:
    return RealContainer(name="c0", limits={resource: str(count)})


def _held_mib(daemon: Daemon) -> float:
    return daemon.metric("hami_node_allocation_memory_bytes", pod="two") / 2**20


def test_shares_are_limited_counted_and_survive_the_daemon(
    daemon: Daemon, shares: None, pods: Pods
) -> None:
    assert shares is None
    eventually(
        "no scheduler sees a card",
        lambda: nvidia_names.NODE_REGISTER not in daemon.annotations(),
    )
    pods.create("half", _asking(HALF, 1), scheduler=DEFAULT)
    pods.create("two", _asking(QUARTER, 2), scheduler=DEFAULT)
    pods.wait_running("half", "two")
    half, two = pods.inside("half", "c0"), pods.inside("two", "c0")
    assert half.cards == (cards.uuid_of(0),)
    assert half.memory_limits == (f"{cards.MEMORY_MIB // 2}m",)
    assert len(set(two.cards)) == 2
    assert two.memory_limits == (f"{cards.MEMORY_MIB // 4}m",) * 2
    assert two.env[nvidia_names.ENV_CORE_LIMIT] == "25"
    eventually("what it holds is known", lambda: _held_mib(daemon) == 2 * (cards.MEMORY_MIB // 4))
    before, restarts = pods.incarnations(), daemon.restarts()
    daemon.kill()
    eventually("the daemon is started again", lambda: daemon.restarts() > restarts)
    daemon.wait_ready()
    eventually("kubelet has its list", lambda: healthy_slices(QUARTER).total() == QUARTERS)
    pods.create("rest", _asking(QUARTER, QUARTERS - 2), scheduler=DEFAULT)
    pods.wait_running("rest")
    assert len(pods.inside("rest", "c0").cards) == cards.COUNT - 1
    pods.create("late", _asking(QUARTER, 1), scheduler=DEFAULT)
    now = pods.incarnations()
    assert {key: now[key] for key in before} == before
    assert pods.read("late")["status"]["phase"] == "Pending"
    pods.delete("two")
    pods.wait_running("late")
