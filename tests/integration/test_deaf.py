"""The daemon when kubelet no longer listens to it: streams that end, another plugin."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import grpc
import pytest

from hami_node.kubelet_api import deviceplugin_pb2 as api
from hami_node.kubelet_api.deviceplugin_pb2_grpc import (
    DevicePluginServicer,
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)
from hami_node.node.kubelet.lifecycle import BACK_OFF_S, LIST_TIMEOUTS_S
from hami_node.wire import names
from tests.fakes.cards import uuid
from tests.fakes.clock import RealClock
from tests.fakes.waiting import eventually
from tests.integration.rig import GPU, LIMIT_S, SLOTS, Rig
from tests.reliability import shows


class OtherPlugin(DevicePluginServicer):
    """A plugin of whole cards: its IDs are their UUIDs."""

    def __init__(self, folder: Path, cards: int) -> None:
        self._ids = [uuid(index) for index in range(cards)]
        self._folder, self._socket = folder, folder / "nvidia-gpu.sock"
        self._server = grpc.server(ThreadPoolExecutor(4))
        add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self._socket}")
        self._server.start()

    def register(self) -> None:
        """As it does at its start."""
        with grpc.insecure_channel(f"unix:{self._folder / 'kubelet.sock'}") as channel:
            request = api.RegisterRequest(
                version="v1beta1", endpoint=self._socket.name, resource_name=GPU
            )
            RegistrationStub(channel).Register(request, timeout=LIMIT_S)

    def close(self) -> None:
        """It is removed from the node."""
        self._server.stop(0).wait(LIMIT_S)
        self._socket.unlink(missing_ok=True)

    def GetDevicePluginOptions(  # noqa: N802 - the name is kubelet's
        self, request: api.Empty, context: grpc.ServicerContext
    ) -> api.DevicePluginOptions:
        del request, context
        return api.DevicePluginOptions()

    def ListAndWatch(  # noqa: N802 - the name is kubelet's
        self, request: api.Empty, context: grpc.ServicerContext
    ) -> Iterator[api.ListAndWatchResponse]:
        del request
        yield api.ListAndWatchResponse(
            devices=[api.Device(ID=name, health="Healthy") for name in self._ids]
        )
        while context.is_active():
            eventually(lambda: not context.is_active(), 3600.0)

    def Allocate(  # noqa: N802 - the name is kubelet's
        self, request: api.AllocateRequest, context: grpc.ServicerContext
    ) -> api.AllocateResponse:
        del context
        each = [api.ContainerAllocateResponse() for _ in request.container_requests]
        return api.AllocateResponse(container_responses=each)


@shows(
    "N10",
    fault="another device plugin registers for our resource while our stream stays open",
    happens="log, Event, metric and readiness name it; once it is gone we register again",
)
def test_plugin_that_takes_the_resource_is_named_and_replaced_once_it_is_gone(rig: Rig) -> None:
    other = OtherPlugin(rig.plugins, rig.card_count)
    try:
        other.register()
        eventually(lambda: rig.kubelet.allocatable(GPU) == rig.card_count, LIMIT_S)
        rig.serve_one("theirs")
        eventually(lambda: rig.metric("resource_taken", resource=GPU) == 1.0, LIMIT_S)
        eventually(lambda: rig.events("ResourceTaken"), LIMIT_S)
        (message,) = rig.events("ResourceTaken")
        assert f"container default/theirs/main was given {uuid(0)}," in message
        assert "nvidia-gpu.sock" in message
    finally:
        other.close()
    rig.wait_registered((rig.card_count - 1) * SLOTS)
    rig.end("theirs")
    rig.wait_registered()
    eventually(lambda: rig.metric("resource_taken", resource=GPU) == 0.0, LIMIT_S)
    rig.serve_one("ours")
    assert rig.bind_phase("ours") == names.PHASE_SUCCESS


def failures(caplog: pytest.LogCaptureFixture) -> str:
    """What the log says of registrations that failed or were lost."""
    said = (vars(record) for record in caplog.records)
    return " ".join(str(each) for each in said if each["msg"].startswith("regist"))


def test_registration_says_version_resource_socket_and_options(node: Rig) -> None:
    node.kubelet.refused_registrations = 2
    node.start()
    assert len({made.endpoint for made in node.kubelet.requests}) == 3, "each time another socket"
    request = node.kubelet.requests[-1]
    assert (request.version, request.resource_name) == ("v1beta1", GPU)
    assert (node.plugins / request.endpoint).is_socket()
    assert request.options.get_preferred_allocation_available
    assert not request.options.pre_start_required
    assert len(list(node.plugins.glob("hami-*.sock"))) == 1


@shows(
    "N10",
    fault="kubelet ends its ListAndWatch stream; both sockets stay as they are",
    happens="not ready, with the reason; registered again within a second",
)
def test_stream_that_kubelet_ends_is_noticed_and_registered_again(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert rig.daemon is not None
    lifecycle = rig.daemon.resources[0].lifecycle
    rig.kubelet.opens_streams = False
    rig.kubelet.end_stream(GPU)
    eventually(lambda: not lifecycle.registered.is_set(), LIMIT_S)
    assert lifecycle.problem != ""
    eventually(lambda: "has ended the ListAndWatch stream of" in failures(caplog), LIMIT_S)
    rig.kubelet.opens_streams = True
    rig.wait_registered()
    assert lifecycle.problem == ""
    assert BACK_OFF_S[0] < 1.0


@shows(
    "N10",
    fault="kubelet accepts a registration and never opens the stream",
    happens="not ready, with the reason; registered again within a second, then less often",
)
def test_stream_that_kubelet_never_opens_is_asked_for_again(
    node: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    node.kubelet.opens_streams = False
    daemon = node._start()
    eventually(lambda: len(node.kubelet.requests) == 3, LIMIT_S)
    assert not daemon.resources[0].lifecycle.registered.is_set()
    assert "kubelet never opened the ListAndWatch stream" in failures(caplog)
    assert LIST_TIMEOUTS_S[0] + BACK_OFF_S[0] < 1.0
    node.kubelet.opens_streams = True
    node.wait_registered()


@shows(
    "N10",
    fault="kubelet ends every stream as soon as it has opened it",
    happens="registrations become rarer, and never a burst",
)
def test_streams_that_kubelet_keeps_ending_are_answered_more_and_more_slowly(node: Rig) -> None:
    node.clock = RealClock()
    node.start()
    node.kubelet.ends_streams = True
    node.kubelet.end_stream(GPU)
    eventually(lambda: len(node.kubelet.registrations) == 5, LIMIT_S)
    at_s = [time_s for time_s, _ in node.kubelet.registrations[1:]]
    gaps_s = [late - early for early, late in pairwise(at_s)]
    assert gaps_s[-1] > gaps_s[0]
    assert gaps_s[-1] > 0.9


@shows(
    "N10",
    fault="kubelet drops the plugin's connection and keeps both sockets: allocatable is 0",
    happens="the daemon registers again by itself; pods are served as before",
)
def test_connection_that_kubelet_drops_is_made_again(rig: Rig) -> None:
    before = len(rig.kubelet.registrations)
    rig.kubelet.end_stream(GPU)
    eventually(lambda: rig.kubelet.allocatable(GPU) == 0, LIMIT_S)
    rig.wait_registered()
    assert len(rig.kubelet.registrations) == before + 1
    rig.serve_one("p")
    assert rig.kubelet.allocatable(GPU) == rig.card_count * SLOTS


@shows(
    "N10",
    fault="after SIGHUP the old server stops, for which kubelet drops the new one",
    happens="the daemon registers once more, at once; all devices are healthy",
)
def test_new_server_that_kubelet_drops_with_the_old_one_is_registered_again(rig: Rig) -> None:
    assert rig.daemon is not None
    rig.daemon.hang_up()
    eventually(lambda: rig.kubelet.dropped, LIMIT_S)
    eventually(lambda: len(rig.kubelet.registrations) == 2 + len(rig.kubelet.dropped), LIMIT_S)
    rig.wait_registered()
    eventually(lambda: len(list(rig.plugins.glob("hami-*.sock"))) == 1, LIMIT_S)
    assert len(rig.kubelet.registrations) == 2 + len(rig.kubelet.dropped)
    assert rig.daemon.resources[0].lifecycle.registered.is_set()


@shows(
    "N10",
    fault="the daemon registers again (SIGHUP, or a setting) while a pod is being admitted",
    happens="the old server stops once the call is answered: kubelet would cancel it",
)
def test_call_in_flight_survives_a_new_registration(rig: Rig) -> None:
    assert rig.daemon is not None
    rig.place_one("p")
    rig.kubelet.lists_hang.set()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(rig.admit, "p")
        plugin = rig.daemon.resources[0].lifecycle
        eventually(lambda: rig.kubelet.hanging, LIMIT_S)
        rig.daemon.hang_up()
        eventually(lambda: plugin.registrations == 2, LIMIT_S)
        threading.Event().wait(1.0)  # in which kubelet would lose the old server, and so the call
        assert not rig.kubelet.dropped
        rig.kubelet.lists_hang.clear()
        assert answer.result(LIMIT_S).refusal == ""
    eventually(lambda: rig.kubelet.dropped, LIMIT_S)
    rig.wait_registered()
