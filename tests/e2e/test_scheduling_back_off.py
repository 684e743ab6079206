"""A node that serves nobody gets one pod, not all of them, and the next ones once it is mended."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from hami_node.extender.state.node_back_off import BackOffReason
from hami_node.wire import names
from hami_node.wire.node_fault import Fault
from tests.e2e import limiter
from tests.e2e.api import Api
from tests.e2e.extender import DEFAULT, Extender
from tests.e2e.pages import get_page
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.waiting import eventually

_ONE = RealContainer(name="c0", cards=1, memory_mib=3000)
_CLOSED = re.compile(
    rf'^hami_node_extender_nodes_backed_off{{(?=.*reason="{Fault.UNAVAILABLE}").*}} (\S+)$',
    re.MULTILINE,
)
_WAVES = 5
"""The wait that begins then is long enough for a pod to find the node closed."""


@pytest.fixture
def _without_limiter(daemon: object) -> Iterator[None]:
    assert daemon
    limiter.remove()
    yield
    limiter.install()


@pytest.mark.usefixtures("_without_limiter")
def test_node_that_serves_nobody_is_left_alone_until_it_is_mended(
    pods: Pods, extender: Extender, api: Api
) -> None:
    for number in range(_WAVES):
        pods.create(f"refused-{number}", _ONE, scheduler=DEFAULT)
        status = pods.wait_phase(f"refused-{number}", "Failed")
        assert status["reason"] == "UnexpectedAdmissionError"
        assert "code = Unavailable" in status["message"]
    print(status["message"])
    eventually("the leader counts the node as closed", lambda: _closed(extender) == 1)
    for number in range(3):
        pods.create(f"held-off-{number}", _ONE, scheduler=DEFAULT)
    eventually("they wait, and are told why", lambda: _are_told(api, 3))
    before = _opened(api)
    limiter.install()
    began = time.monotonic()  # from now on nothing happens in the cluster
    for number in range(3):
        pods.wait_running(f"held-off-{number}")
        assert pods.inside(f"held-off-{number}", "c0").memory_limits == ("3000m",)
    assert _opened(api) != before
    print(f"from the mended node to the third pod: {time.monotonic() - began:.1f} s")


def _closed(extender: Extender) -> int:
    """How many nodes the leader keeps pods from, because their plugins can't serve."""
    pod = extender.wait_leader()
    page = get_page(f"http://{pod['status']['podIP']}:9395/metrics").text
    return sum(int(float(value)) for value in _CLOSED.findall(page))


def _are_told(api: Api, count: int) -> bool:
    """Events about the pods say so."""
    events = api.read("/api/v1/namespaces/default/events")["items"]
    told = {
        one["involvedObject"]["name"]
        for one in events
        if BackOffReason.BACKED_OFF in str(one.get("message"))
    }
    return sum(1 for name in told if name.startswith("held-off-")) == count


def _opened(api: Api) -> list[str]:
    """What is written on the nodes that were open again."""
    nodes = api.read("/api/v1/nodes")["items"]
    return [str(node["metadata"]["labels"].get(names.OPENED_NODE, "")) for node in nodes]
