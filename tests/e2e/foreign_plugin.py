"""Another vendor's plugin on the node: whole cards under our resource's name, by their UUIDs."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import grpc

from hami_node.kubelet_api import deviceplugin_pb2 as api
from hami_node.kubelet_api import deviceplugin_pb2_grpc as rpc
from hami_node.vendors.nvidia import names as nvidia_names
from tests.e2e.machine import KUBELET_DIR

_FOLDER: Final = KUBELET_DIR / "device-plugins"
_ENDPOINT: Final = "another.sock"


class _WholeCards(rpc.DevicePluginServicer):
    """Offers each card once, as NVIDIA's own plugin does."""

    def __init__(self, uuids: Sequence[str]) -> None:
        self._uuids, self.over = uuids, threading.Event()

    def GetDevicePluginOptions(  # noqa: N802 - the name is kubelet's
        self, request: api.Empty, context: grpc.ServicerContext
    ) -> api.DevicePluginOptions:
        """Nothing special."""
        return api.DevicePluginOptions()

    def ListAndWatch(  # noqa: N802 - the name is kubelet's
        self, request: api.Empty, context: grpc.ServicerContext
    ) -> Iterator[api.ListAndWatchResponse]:
        """All cards, until the end."""
        yield api.ListAndWatchResponse(
            devices=[api.Device(ID=uuid, health="Healthy") for uuid in self._uuids]
        )
        self.over.wait()

    def Allocate(  # noqa: N802 - the name is kubelet's
        self, request: api.AllocateRequest, context: grpc.ServicerContext
    ) -> api.AllocateResponse:
        """The cards by their UUIDs."""
        answers = [
            api.ContainerAllocateResponse(
                envs={nvidia_names.ENV_VISIBLE_DEVICES: ",".join(asked.devices_ids)}
            )
            for asked in request.container_requests
        ]
        return api.AllocateResponse(container_responses=answers)


@contextmanager
def foreign_plugin(uuids: Sequence[str]) -> Iterator[None]:
    """Serve the cards to kubelet as long as the block runs."""
    socket = _FOLDER / _ENDPOINT
    socket.unlink(missing_ok=True)
    plugin = _WholeCards(uuids)
    server = grpc.server(ThreadPoolExecutor(4))
    rpc.add_DevicePluginServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        with grpc.insecure_channel(f"unix:{_FOLDER}/kubelet.sock") as channel:
            rpc.RegistrationStub(channel).Register(
                api.RegisterRequest(
                    version="v1beta1",
                    endpoint=_ENDPOINT,
                    resource_name=nvidia_names.RESOURCE_GPU,
                ),
                timeout=60,
            )
        yield
    finally:
        plugin.over.set()
        server.stop(1).wait()
        socket.unlink(missing_ok=True)
