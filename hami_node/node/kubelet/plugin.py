"""The device plugin service that kubelet calls. Every method: translate, call, translate back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import grpc

from hami_node.clock import Deadline
from hami_node.errors import HamiError, NodeUnfit
from hami_node.kubelet_api import deviceplugin_pb2 as api
from hami_node.kubelet_api.deviceplugin_pb2_grpc import DevicePluginServicer
from hami_node.logs import kv
from hami_node.node.cards.inventory import Inventory, kubelet_list
from hami_node.ports import Clock
from hami_node.vendors.on_node.answer import ContainerResponse
from hami_node.vendors.spec import PluginOptions

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 3600.0
"""How long a quiet ListAndWatch stream waits before it checks its context again."""
BUDGET_S: Final = 9.5
"""How long an Allocate, or a question about preferred IDs, may take with all its waits: kubelet is
answered within 10 s."""


class Allocator(Protocol):
    """Decides what a container gets. Raises AllocationError to refuse."""

    def allocate(
        self, device_ids: Sequence[Sequence[str]], deadline: Deadline
    ) -> list[ContainerResponse]:
        """One response per container, in order."""

    def prefer(
        self, available: Sequence[str], must: Sequence[str], size: int, deadline: Deadline
    ) -> list[str]:
        """The device IDs that kubelet should take. Raises HamiError where that is unknown."""


class AllocatorSlot:
    """Holds the allocator once it is ready, and gives each call its deadline."""

    def __init__(
        self, clock: Clock, stop: threading.Event | None = None, budget_s: float = BUDGET_S
    ) -> None:
        self._ready = threading.Event()
        self._allocator: Allocator | None = None
        self._clock, self._stop, self._budget_s = clock, stop, budget_s
        self.awaited = "the API server"
        """What has to answer before there is an allocator."""

    def put(self, allocator: Allocator) -> None:
        """From now on calls are answered."""
        self._allocator = allocator
        self._ready.set()

    def deadline(self) -> Deadline:
        """The deadline of a call that begins now."""
        return self._clock.deadline(self._budget_s, self._stop)

    def take(self, wait_s: float) -> Allocator:
        """The allocator; a call right after the start waits for it.

        Raises:
            NodeUnfit: the daemon could not read its record, or list its pods, in time.
        """
        self._ready.wait(wait_s)
        if self._allocator is None:
            raise NodeUnfit(
                f"hami-node has just started and {self.awaited} has not answered for "
                f"{wait_s:.0f} s, so the pod's reservation is unknown: delete and recreate "
                "the pod"
            )
        return self._allocator


Choose = Callable[[Sequence[str], Sequence[str], int], list[str]]
"""The IDs to take of those that are available, those that must be there included, and how many."""


class DevicePlugin(DevicePluginServicer):
    """One resource's device plugin. Its only state is which of kubelet's streams and calls run.

    Attributes:
        calls: how many calls kubelet has made, beside those for the list.
        listed: set once kubelet has called ListAndWatch.
        on_stream_end: called whenever a stream of kubelet's has ended.
    """

    def __init__(
        self,
        inventory: Inventory,
        allocator: AllocatorSlot,
        options: PluginOptions,
        *,
        choose: Choose,
        shows_numa: Callable[[], bool],
    ) -> None:
        """Offer the cards of `inventory`; `allocator` answers Allocate.

        `choose` prefers IDs where no reservation is known; `shows_numa`: whether the cards' NUMA
        nodes may be shown now, where the options show them at all.
        """
        self._inventory, self._allocator, self._options = inventory, allocator, options
        self._choose, self._shows_numa = choose, shows_numa
        self._is_over = False
        self._ended = threading.Condition()
        self._open_streams = self._unanswered = 0
        self.calls = 0
        self.listed = threading.Event()
        self.on_stream_end: Callable[[], None] = lambda: None

    def has_stream(self) -> bool:
        """True while kubelet keeps a ListAndWatch stream open."""
        return self._open_streams > 0

    def wait_idle(self, limit_s: float) -> bool:
        """Wait until every call of kubelet's is answered; False if one still is not."""
        with self._ended:
            return self._ended.wait_for(lambda: not self._unanswered, limit_s)

    def _begin_stream(self, context: grpc.ServicerContext) -> None:
        with self._ended:
            self._open_streams += 1
        if not context.add_callback(self._end_stream):
            self._end_stream()  # it has ended already

    def _end_stream(self) -> None:
        """Called by gRPC, whoever ended the stream and however."""
        with self._ended:
            self._open_streams -= 1
        self._inventory.wake()
        self.on_stream_end()

    def _begin_call(self, context: grpc.ServicerContext) -> None:
        """Count a call of kubelet's until its answer is sent."""
        with self._ended:
            self.calls += 1
            self._unanswered += 1
        if not context.add_callback(self._end_call):
            self._end_call()

    def _end_call(self) -> None:
        with self._ended:
            self._unanswered -= 1
            self._ended.notify_all()

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
        self._begin_stream(context)
        sent = -1

        def is_over() -> bool:
            return self._is_over or not context.is_active()

        while not is_over():
            version, cards = self._inventory.snapshot()
            if version != sent:
                sent = version
                self.listed.set()
                shows_numa = self._options.shows_numa and self._shows_numa()
                yield kubelet_list(
                    cards,
                    shows_numa=shows_numa,
                    closed=self._inventory.closed_ids,
                    lost=self._inventory.lost_ids,
                )
            self._inventory.wait_newer_or(sent, is_over, KEEP_ALIVE_S)

    def GetPreferredAllocation(  # noqa: N802 - the name is kubelet's
        self, request: api.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> api.PreferredAllocationResponse:
        """Prefer IDs on the reserved cards; any IDs without a known reservation."""
        self._begin_call(context)
        deadline = self._allocator.deadline()
        answers = []
        for asked in request.container_requests:
            must, size = list(asked.must_include_deviceIDs), asked.allocation_size
            chosen = self._preferred(list(asked.available_deviceIDs), must, size, deadline)
            answers.append(api.ContainerPreferredAllocationResponse(deviceIDs=chosen))
        return api.PreferredAllocationResponse(container_responses=answers)

    def _preferred(
        self, available: Sequence[str], must: Sequence[str], size: int, deadline: Deadline
    ) -> list[str]:
        try:
            try:
                allocator = self._allocator.take(wait_s=0)
                return allocator.prefer(available, must, size, deadline)
            except HamiError as e:
                log.info("preference_unknown", extra=kv(error=str(e)))
                return self._choose(available, must, size)
        except Exception:  # any bug: kubelet would fail the pod for an error here
            log.exception("preference_broken")
            return _any_of(available, must, size)

    def Allocate(  # noqa: N802 - the name is kubelet's
        self, request: api.AllocateRequest, context: grpc.ServicerContext
    ) -> api.AllocateResponse:
        """Answer with exactly the reserved slice, or refuse in one sentence."""
        self._begin_call(context)
        ids = [list(asked.devices_ids) for asked in request.container_requests]
        deadline = self._allocator.deadline()
        try:
            responses = self._allocator.take(deadline.left_s()).allocate(ids, deadline)
        except NodeUnfit as e:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(e))
        except HamiError as e:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(e))
        return api.AllocateResponse(
            container_responses=[_message(response) for response in responses]
        )

    def PreStartContainer(  # noqa: N802 - the name is kubelet's
        self, request: api.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> api.PreStartContainerResponse:
        """Nothing to do; the options disable this call."""
        del request, context
        return api.PreStartContainerResponse()


def _any_of(available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
    return [*must, *(name for name in available if name not in must)][:size]


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
        devices=[
            api.DeviceSpec(
                container_path=node.container_path,
                host_path=node.host_path,
                permissions=node.permissions,
            )
            for node in response.devices
        ],
        annotations=dict(response.annotations),
        cdi_devices=[api.CDIDevice(name=name) for name in response.cdi_devices],
    )
