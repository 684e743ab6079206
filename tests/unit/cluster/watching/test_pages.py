"""Pages of a list stay small, however large the objects are that users make."""

from __future__ import annotations

import threading

import pytest

from hami_node.cluster.calls import Query
from hami_node.cluster.client import KubeClient
from hami_node.cluster.transport.connection import PAGE_LIMIT
from hami_node.cluster.watching import watches
from hami_node.cluster.watching.object_cache import PODS
from hami_node.cluster.watching.watches import PAGE_BYTES, Pages, ResourceWatch
from hami_node.errors import AnswerTooLarge
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.clock import RealClock
from tests.fakes.waiting import eventually
from tests.unit.cluster.conftest import pod

MIB = 1 << 20


class Listed:
    """A server with objects of these sizes; a page's text is as long as all of its objects."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes, self.limits = sizes, list[int]()

    def send(self, query: Query, most_bytes: int | None) -> bytes:
        found = dict(query)
        begin, limit = int(found.get("continue", "0")), int(found["limit"])
        self.limits.append(limit)
        size = sum(self.sizes[begin : begin + limit])
        if most_bytes is not None and size > most_bytes:
            raise AnswerTooLarge(f"more than {most_bytes} bytes")
        return bytes(size)

    def fetched(self) -> tuple[int, int]:
        """(objects that were fetched, bytes of the largest page)."""
        got, largest, pages_ = 0, 0, Pages(self.send, (("fieldSelector", "a=b"),))
        while got < len(self.sizes):
            size = len(pages_.fetch(str(got) if got else ""))
            got += self.limits[-1]
            largest = max(largest, size)
        return min(got, len(self.sizes)), largest


def test_pages_of_large_objects_have_fewer_and_later_ones_have_as_many_as_before() -> None:
    """500 pods of a MiB were one page, of which there are four copies at a time."""
    server = Listed([10_000] * 500 + [MIB] * 500 + [10_000] * 3_000)
    got, largest = server.fetched()
    assert got == 4_000
    assert largest <= PAGE_BYTES
    assert server.limits[-1] == PAGE_LIMIT
    assert len(server.limits) < 80


def test_single_object_comes_whatever_its_size() -> None:
    server = Listed([10_000, 2 * PAGE_BYTES, 10_000])
    assert server.fetched() == (3, 2 * PAGE_BYTES)


def test_watch_of_large_objects_lists_them_all(
    server: FaultyApiServer, kube: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "PAGE_BYTES", 20_000)
    for number in range(100):
        server.create("pods", pod("many", f"p{number:04}"))
    watch = ResourceWatch(kube, PODS, clock=RealClock(), from_cache=False)
    stop = threading.Event()
    thread = threading.Thread(target=watch.run, args=(stop,), daemon=True)
    thread.start()
    eventually(watch.is_synced, 30.0)
    stop.set()
    watch.interrupt()
    thread.join(10.0)
    assert len(watch.cache) == 101
    assert len(server.requests(verb="list")) > 2


def test_list_that_comes_in_one_piece_has_a_limit(
    server: FaultyApiServer, kube: KubeClient
) -> None:
    for number in range(10):
        server.create("pods", pod("many", f"p{number:04}"))
    assert len(list(kube.sender.list_items("/api/v1/pods", "pods", most_bytes=MIB))) == 11
    with pytest.raises(AnswerTooLarge, match="list pods: more than 500 bytes"):
        list(kube.sender.list_items("/api/v1/pods", "pods", most_bytes=500))
