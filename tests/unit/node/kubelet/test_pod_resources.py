"""kubelet's pod-resources socket: its rate limit, its restarts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from hami_node.errors import KubeletError
from hami_node.kubelet_api import podresources_pb2 as api
from hami_node.kubelet_api.podresources_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)
from hami_node.node.kubelet.pod_resources import KubeletPodResources


class Lister(PodResourcesListerServicer):
    """Turns away the first calls, then lists one pod."""

    def __init__(self) -> None:
        self.calls, self.refusals = 0, 0
        self.code = grpc.StatusCode.RESOURCE_EXHAUSTED

    def List(  # noqa: N802 - the name is kubelet's
        self, request: api.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> api.ListPodResourcesResponse:
        self.calls += 1
        if self.refusals > 0:
            self.refusals -= 1
            context.abort(self.code, "rejected by rate limit")
        pod = api.PodResources(
            namespace="default", name="one", containers=[api.ContainerResources(name="c0")]
        )
        return api.ListPodResourcesResponse(pod_resources=[pod])


@pytest.fixture
def lister() -> Lister:
    return Lister()


@pytest.fixture
def socket(tmp_path: Path, lister: Lister) -> Iterator[Path]:
    path = tmp_path / "kubelet.sock"
    server = grpc.server(ThreadPoolExecutor(1))
    add_PodResourcesListerServicer_to_server(lister, server)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    yield path
    server.stop(0).wait()


@pytest.fixture
def stop() -> threading.Event:
    return threading.Event()


@pytest.fixture
def resources(socket: Path, stop: threading.Event) -> Iterator[KubeletPodResources]:
    lister = KubeletPodResources(socket, stop)
    yield lister
    lister.close()


def test_list_asks_again_when_turned_away_for_its_rate(
    resources: KubeletPodResources, lister: Lister
) -> None:
    lister.refusals = 3
    assert [held.pod for held in resources.list()] == ["one"]
    assert lister.calls == 4


def test_list_raises_at_once_on_other_errors(
    resources: KubeletPodResources, lister: Lister
) -> None:
    lister.refusals, lister.code = 3, grpc.StatusCode.INTERNAL
    with pytest.raises(KubeletError, match="INTERNAL"):
        resources.list()
    assert lister.calls == 1


def test_list_gives_up_waiting_when_the_daemon_stops(
    resources: KubeletPodResources, lister: Lister, stop: threading.Event
) -> None:
    stop.set()
    lister.refusals = 3
    with pytest.raises(KubeletError, match="RESOURCE_EXHAUSTED"):
        resources.list()
    assert lister.calls == 1


def test_is_readable_costs_one_list_a_socket(
    resources: KubeletPodResources, lister: Lister
) -> None:
    assert resources.is_readable()
    assert resources.is_readable()
    assert lister.calls == 1


def test_is_readable_is_false_without_socket(tmp_path: Path, stop: threading.Event) -> None:
    assert not KubeletPodResources(tmp_path / "none.sock", stop).is_readable()


def test_is_readable_asks_again_after_an_error(
    resources: KubeletPodResources, lister: Lister
) -> None:
    assert resources.is_readable()
    lister.refusals, lister.code = 1, grpc.StatusCode.INTERNAL
    with pytest.raises(KubeletError):
        resources.list()
    assert resources.is_readable()
    assert lister.calls == 3
