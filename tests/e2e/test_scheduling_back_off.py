"""A node that serves nobody gets one pod, not all of them, and the next one once it is mended."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from hami_node.inspection.back_off import BackOffReason
from hami_node.wire import names
from hami_node.wire.outcome import Fault
from tests.e2e import limiter
from tests.e2e.api import Api
from tests.e2e.extender import DEFAULT, Extender
from tests.e2e.pages import get_page
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.waiting import eventually

_ONE = RealContainer(name="c0", cards=1, memory_mib=3000)
_CLOSED = re.compile(
    rf'^hami_node_extender_nodes_backed_off{{(?=.*reason="{Fault.UNAVAILABLE}")'
    r'(?=.*closed_to="node").*} (\S+)$',
    re.MULTILINE,
)


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
    began = time.monotonic()
    pods.create("refused", _ONE, scheduler=DEFAULT)
    status = pods.wait_phase("refused", "Failed")
    print(status["message"])
    assert status["reason"] == "UnexpectedAdmissionError"
    assert "code = Unavailable" in status["message"]
    eventually("the leader counts the node as closed to all", lambda: _closed(extender) == 1)
    pods.create("held-off", _ONE, scheduler=DEFAULT)  # without a controller: another owner's
    until_s = eventually("it waits, and is told until when", lambda: _told_until(api, "held-off"))
    limiter.install()  # nothing tells the cluster so: that comes with the pod that tries
    pods.wait_running("held-off")
    assert float(pods.annotation("held-off", names.POD_BIND_TIME)) >= until_s
    assert pods.inside("held-off", "c0").memory_limits == ("3000m",)
    eventually("the node is open again", lambda: _closed(extender) == 0)
    pods.create("later", _ONE, scheduler=DEFAULT)
    pods.wait_running("later")
    print(f"from the broken node to the third pod: {time.monotonic() - began:.1f} s")


def _closed(extender: Extender) -> int:
    """How many nodes the leader keeps everybody from, because their plugins can't serve."""
    pod = extender.leader()
    assert pod is not None, "nobody leads"
    page = get_page(f"http://{pod['status']['podIP']}:9395/metrics").text
    return sum(int(float(value)) for value in _CLOSED.findall(page))


def _told_until(api: Api, pod: str) -> float:
    """When the node is tried again, Unix seconds, as an Event about the pod says."""
    path = "/api/v1/namespaces/default/events"
    events = api.read(path, fieldSelector=f"involvedObject.name={pod}")["items"]
    texts = [str(one.get("message")) for one in events]
    said = "\n".join(text for text in texts if BackOffReason.BACKED_OFF in text)
    found = re.search(r"until (\d{4}-\S+Z)", said)
    assert found, texts
    return datetime.fromisoformat(found.group(1)).timestamp()
