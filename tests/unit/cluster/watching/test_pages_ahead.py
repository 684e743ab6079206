"""A list in pages asks for the next page while it decodes one."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from hami_node.cluster.client import KubeClient
from hami_node.cluster.kinds import PODS
from hami_node.cluster.watching.pages_ahead import PageAhead
from hami_node.cluster.watching.watches import ResourceWatch
from hami_node.errors import KubeError
from hami_node.model import Pod
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.clock import RealClock
from tests.fakes.waiting import eventually
from tests.unit.cluster.conftest import pod


def test_next_page_is_asked_for_while_one_is_decoded(
    server: FaultyApiServer, kube: KubeClient
) -> None:
    for number in range(600):
        server.create("pods", pod("many", f"p{number:04}"))
    asked: list[int] = []

    def decode(raw: bytes) -> Pod:
        if not asked:
            eventually(lambda: len(server.requests(verb="list")) == 2)
        asked.append(len(server.requests(verb="list")))
        return PODS.decode(raw)

    kind, stop = replace(PODS, decode=decode), threading.Event()
    watch = ResourceWatch(kube, kind, clock=RealClock(), from_cache=False)
    thread = threading.Thread(target=watch.run, args=(stop,), daemon=True)
    thread.start()
    eventually(watch.is_synced, 30.0)
    stop.set()
    watch.interrupt()
    thread.join(10.0)

    assert len(asked) == len(watch.cache) == 601
    assert set(asked) == {2}


def test_page_that_fails_fails_where_it_is_wanted() -> None:
    def fetch() -> bytes:
        raise KubeError("the history is gone", 410)

    ahead = PageAhead(fetch)

    with pytest.raises(KubeError, match="the history is gone"):
        ahead.body()
