"""The daemon when kubelet no longer listens to it: streams that end, another plugin."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from hami_node.kubelet_api import deviceplugin_pb2 as api
from hami_node.kubelet_api.deviceplugin_pb2_grpc import (
    DevicePluginServicer,
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)
from hami_node.wire import names
from tests.fakes.cards import uuid
from tests.fakes.pods import Box, Part
from tests.fakes.waiting import eventually
from tests.integration.rig import GPU, LIMIT_S, SLOTS, Rig
from tests.reliability import shows

SMALL = Box(memory_mib=1000)


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


def place(rig: Rig, name: str) -> None:
    rig.place(name, [SMALL], {"main": [Part(uuid=uuid(0), memory_mib=1000)]})


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
        place(rig, "theirs")
        assert rig.admit("theirs").is_admitted
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
    place(rig, "ours")
    assert rig.admit("ours").is_admitted
    assert rig.bind_phase("ours") == names.PHASE_SUCCESS


def test_pods_that_an_earlier_plugin_served_are_no_sign_of_another(node: Rig) -> None:
    other = OtherPlugin(node.plugins, node.card_count)
    other.register()
    eventually(lambda: node.kubelet.allocatable(GPU) == node.card_count, LIMIT_S)
    place(node, "old")
    assert node.kubelet.admit(node.pod("old"), GPU).is_admitted
    other.close()
    node.closed_count = 1  # the pod's card, until it has ended
    daemon = node.start()
    assert daemon.cluster is not None
    for _ in range(2):
        daemon.cluster._rivals.check()
    assert daemon.cluster._rivals.why_taken(GPU) == ""
    assert not node.events("ResourceTaken")


@shows(
    "N10",
    fault="kubelet drops the plugin's connection and keeps both sockets: allocatable is 0",
    happens="the daemon registers again by itself; pods are served as before",
)
def test_connection_that_kubelet_drops_is_made_again(rig: Rig) -> None:
    before = len(rig.kubelet.registrations)
    with rig.kubelet._state:
        rig.kubelet._endpoints[GPU].channel.close()
    eventually(lambda: rig.kubelet.allocatable(GPU) == 0, LIMIT_S)
    rig.wait_registered()
    assert len(rig.kubelet.registrations) == before + 1
    place(rig, "p")
    assert rig.admit("p").is_admitted
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
    place(rig, "p")
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


def test_restarted_kubelet_is_registered_with_once(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    for count in range(2, 8):
        rig.kubelet.restart()
        rig.wait_registered()
        # a kubelet that is too slow to open the stream is registered with again, and that is said
        failed = sum(record.msg == "register_failed" for record in caplog.records)
        assert count <= len(rig.kubelet.registrations) <= count + failed
