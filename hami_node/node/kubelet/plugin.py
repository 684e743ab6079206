"""The device plugin service that kubelet calls. Every method: translate, call, translate back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import grpc

from hami_node.errors import AllocationError, HamiError
from hami_node.kubelet_api import deviceplugin_pb2 as api
from hami_node.kubelet_api.deviceplugin_pb2_grpc import DevicePluginServicer
from hami_node.logs import kv
from hami_node.node.cards.inventory import Inventory, kubelet_list
from hami_node.vendors.answer import ContainerResponse
from hami_node.vendors.spec import PluginOptions

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 3600.0
"""How long a quiet ListAndWatch stream waits before it checks its context again."""
ALLOCATOR_WAIT_S = 20.0
"""How long an Allocate right after the start waits until the pods have been listed."""


class Allocator(Protocol):
    """Decides what a container gets. Raises AllocationError to refuse."""

    def allocate(self, device_ids: Sequence[Sequence[str]]) -> list[ContainerResponse]:
        """One response per container, in order."""

    def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        """The device IDs that kubelet should take. Never raises."""


class AllocatorSlot:
    """Holds the allocator once it is ready; earlier calls wait for a bounded time."""

    def __init__(self, wait_s: float = ALLOCATOR_WAIT_S) -> None:
        self._ready = threading.Event()
        self._allocator: Allocator | None = None
        self._wait_s = wait_s

    def put(self, allocator: Allocator) -> None:
        """From now on calls are answered."""
        self._allocator = allocator
        self._ready.set()

    def take(self, wait_s: float | None = None) -> Allocator:
        """The allocator; `wait_s` None waits as long as an Allocate may.

        Raises:
            AllocationError: the daemon could not list its pods in time.
        """
        self._ready.wait(self._wait_s if wait_s is None else wait_s)
        if self._allocator is None:
            raise AllocationError(
                "hami-node has just started and the API server has not answered for "
                f"{self._wait_s:.0f} s, so the pod's reservation is unknown: delete and recreate "
                "the pod"
            )
        return self._allocator


DEFAULT_OPTIONS: Final = PluginOptions()


class DevicePlugin(DevicePluginServicer):
    """One resource's device plugin. Holds no state of its own."""

    def __init__(
        self,
        inventory: Inventory,
        allocator: AllocatorSlot,
        options: PluginOptions = DEFAULT_OPTIONS,
    ) -> None:
        """Offer the cards of `inventory`; `allocator` answers Allocate."""
        self._inventory = inventory
        self._allocator = allocator
        self._options = options
        self._is_over = False
        self.listed = threading.Event()
        """Set once kubelet has called ListAndWatch."""

    def close(self) -> None:
        """End the streams: the server is about to stop."""
        self._is_over = True
        self._inventory.wake()

    def GetDevicePluginOptions(  # noqa: N802 - the name is kubelet's
        self, request: api.Empty, context: grpc.ServicerContext
    ) -> api.DevicePluginOptions:
        """The optional calls that kubelet should make."""
        del request, context
        return self.options()

    def options(self) -> api.DevicePluginOptions:
        """GetPreferredAllocation if it is switched on; never PreStartContainer."""
        return api.DevicePluginOptions(get_preferred_allocation_available=self._options.prefers)

    def ListAndWatch(  # noqa: N802 - the name is kubelet's
        self, request: api.Empty, context: grpc.ServicerContext
    ) -> Iterator[api.ListAndWatchResponse]:
        """Send the list now and after every change, until kubelet or the server ends the stream."""
        del request
        context.add_callback(self._inventory.wake)
        sent = -1

        def is_over() -> bool:
            return self._is_over or not context.is_active()

        while not is_over():
            version, cards = self._inventory.snapshot()
            if version != sent:
                sent = version
                self.listed.set()
                yield kubelet_list(cards, shows_numa=self._options.shows_numa)
            self._inventory.wait_newer_or(sent, is_over, KEEP_ALIVE_S)

    def GetPreferredAllocation(  # noqa: N802 - the name is kubelet's
        self, request: api.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> api.PreferredAllocationResponse:
        """Prefer IDs on the reserved cards; any IDs without a known reservation."""
        del context
        answers = []
        for asked in request.container_requests:
            must = list(asked.must_include_deviceIDs)
            available = list(asked.available_deviceIDs)
            try:
                chosen = self._allocator.take(wait_s=0).prefer(
                    available, must, asked.allocation_size
                )
            except HamiError as e:
                log.info("preference_unknown", extra=kv(error=str(e)))
                rest = [name for name in available if name not in must]
                chosen = (must + rest)[: asked.allocation_size]
            answers.append(api.ContainerPreferredAllocationResponse(deviceIDs=chosen))
        return api.PreferredAllocationResponse(container_responses=answers)

    def Allocate(  # noqa: N802 - the name is kubelet's
        self, request: api.AllocateRequest, context: grpc.ServicerContext
    ) -> api.AllocateResponse:
        """Answer with exactly the reserved slice, or refuse in one sentence."""
        ids = [list(asked.devices_ids) for asked in request.container_requests]
        try:
            responses = self._allocator.take().allocate(ids)
        except AllocationError as e:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(e))
        except HamiError as e:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(e))
        return api.AllocateResponse(
            container_responses=[_message(response) for response in responses]
        )

    def PreStartContainer(  # noqa: N802 - the name is kubelet's
        self, request: api.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> api.PreStartContainerResponse:
        """Nothing to do; the options disable this call."""
        del request, context
        return api.PreStartContainerResponse()


def _message(response: ContainerResponse) -> api.ContainerAllocateResponse:
    return api.ContainerAllocateResponse(
        envs=dict(response.envs),
        mounts=[
            api.Mount(
                container_path=mount.container_path,
                host_path=mount.host_path,
                read_only=mount.is_read_only,
            )
            for mount in response.mounts
        ],
        cdi_devices=[api.CDIDevice(name=name) for name in response.cdi_devices],
    )
