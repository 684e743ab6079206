"""Stands for another maker's device plugin in its DaemonSet: runs inside the product's image.

usage: stand_in.py SOCKET SLICES UUID...

Offers nvidia.com/gpu under SOCKET: SLICES device IDs `<uuid>-<n>` of each card, as HAMi's plugin
does, or with 0 the UUIDs themselves, as NVIDIA's does. It registers once, and reads and writes no
annotation: tests do that, as recorded. Nothing of HAMi's is in here.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from hami_node.kubelet_api import deviceplugin_pb2 as api
from hami_node.kubelet_api import deviceplugin_pb2_grpc as rpc

FOLDER = Path("/var/lib/kubelet/device-plugins")
RESOURCE = "nvidia.com/gpu"


class Plugin(rpc.DevicePluginServicer):
    """A list that never changes; each container gets the cards of its IDs."""

    def __init__(self, cards: dict[str, str]) -> None:
        """The card of each device ID."""
        self._card_of, self.over = cards, threading.Event()

    def _cards(self, ids: Iterable[str]) -> Iterable[str]:
        return dict.fromkeys(self._card_of[one] for one in ids)

    def GetDevicePluginOptions(  # noqa: N802 - the name is kubelet's
        self, request: api.Empty, context: grpc.ServicerContext
    ) -> api.DevicePluginOptions:
        """Nothing special."""
        return api.DevicePluginOptions()

    def ListAndWatch(  # noqa: N802 - the name is kubelet's
        self, request: api.Empty, context: grpc.ServicerContext
    ) -> Iterator[api.ListAndWatchResponse]:
        """Everything, until the end."""
        yield api.ListAndWatchResponse(
            devices=[api.Device(ID=one, health="Healthy") for one in self._card_of]
        )
        self.over.wait()

    def Allocate(  # noqa: N802 - the name is kubelet's
        self, request: api.AllocateRequest, context: grpc.ServicerContext
    ) -> api.AllocateResponse:
        """The cards by their UUIDs, and a mark of who served them."""
        answers = [
            api.ContainerAllocateResponse(
                envs={
                    "NVIDIA_VISIBLE_DEVICES": ",".join(self._cards(asked.devices_ids)),
                    "SERVED_BY": "stand-in",
                }
            )
            for asked in request.container_requests
        ]
        return api.AllocateResponse(container_responses=answers)


def main() -> None:
    """Serve until SIGTERM."""
    socket, slices, *uuids = sys.argv[1:]
    count = int(slices)
    cards = {uuid: uuid for uuid in uuids}
    if count:
        cards = {f"{uuid}-{n}": uuid for uuid in uuids for n in range(count)}
    path = FOLDER / socket
    path.unlink(missing_ok=True)
    plugin = Plugin(cards)
    server = grpc.server(ThreadPoolExecutor(4))
    rpc.add_DevicePluginServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    with grpc.insecure_channel(f"unix:{FOLDER}/kubelet.sock") as channel:
        wanted = api.RegisterRequest(version="v1beta1", endpoint=socket, resource_name=RESOURCE)
        rpc.RegistrationStub(channel).Register(wanted, timeout=10)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: plugin.over.set())
    plugin.over.wait()
    server.stop(0).wait()
    path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
