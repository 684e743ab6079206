from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest

from hami_node.clock import Deadline
from hami_node.errors import AllocationError, HamiError, KubeError, NodeUnfit, NoPendingPod
from hami_node.kubelet_api import deviceplugin_pb2 as api
from hami_node.kubelet_api.deviceplugin_pb2_grpc import (
    DevicePluginStub,
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from hami_node.node.cards.inventory import Inventory
from hami_node.node.kubelet.lifecycle import (
    BACK_OFF_S,
    LIST_TIMEOUTS_S,
    Lifecycle,
    remove_stale_sockets,
)
from hami_node.node.kubelet.plugin import AllocatorSlot, DevicePlugin
from hami_node.ports import Clock
from hami_node.vendors.on_node.answer import ContainerResponse, Mount
from tests.fakes.cards import card
from tests.fakes.clock import FakeClock, RealClock
from tests.fakes.waiting import eventually
from tests.reliability import shows

GPU = "nvidia.com/gpu"
LIMIT_S = 10.0


class Registry(RegistrationServicer):
    """A kubelet that only registers, or refuses; it requests the list only if wanted."""

    def __init__(self, folder: Path, *, lists: bool = True, socket: Path | None = None) -> None:
        self._folder, self.listing = folder, lists
        self.requests: list[api.RegisterRequest] = []
        self.refusals = 0
        self._server = grpc.server(ThreadPoolExecutor(4))
        add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{socket or folder / 'kubelet.sock'}")
        self._server.start()
        self._channels: list[grpc.Channel] = []
        self._streams: list[grpc.Call] = []
        self.at_s: list[float] = []
        self.ends_at_once = False

    def Register(self, request: api.RegisterRequest, context: grpc.ServicerContext) -> api.Empty:  # noqa: N802 - the name is kubelet's
        self.at_s.append(time.monotonic())
        self.requests.append(request)
        if self.refusals:
            self.refusals -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        if self.listing:
            self.follow(request.endpoint)
        return api.Empty()

    def end_streams(self) -> None:
        """Cancel all streams, as a kubelet that drops its client does."""
        while self._streams:
            self._streams.pop().cancel()  # type: ignore[no-untyped-call] # grpc's types

    def follow(self, endpoint: str) -> None:
        """Ask for the list and keep the stream: one that is dropped is cancelled."""
        stream = self.stub(endpoint).ListAndWatch(api.Empty())
        self._streams.append(stream)
        if self.ends_at_once:
            threading.Thread(target=_end_after_one, args=(stream,)).start()

    def stub(self, endpoint: str) -> DevicePluginStub:
        channel = grpc.insecure_channel(f"unix:{self._folder / endpoint}")
        self._channels.append(channel)
        return DevicePluginStub(channel)

    def close(self) -> None:
        for channel in self._channels:
            channel.close()
        self._server.stop(0).wait(LIMIT_S)


def _end_after_one(stream: Any) -> None:
    with suppress(grpc.RpcError):
        next(stream, None)  # the plugin may have ended it first
    stream.cancel()


class RunningLifecycle:
    """A life cycle in its thread."""

    def __init__(
        self,
        folder: Path,
        *,
        plugin: type[DevicePlugin] = DevicePlugin,
        clock: Clock | None = None,
    ) -> None:
        self.stop = threading.Event()
        self.inventory = Inventory()
        self.inventory.replace((card(slots=2),))
        self.failures: list[str] = []
        self.took_s: list[float] = []
        self.slot = AllocatorSlot(RealClock(), budget_s=0.05)
        self.lifecycle = Lifecycle(
            plugin_dir=folder,
            resource=GPU,
            make_plugin=lambda: plugin(self.inventory, self.slot),
            clock=clock or RealClock(),
            stop=self.stop,
            on_registered=self.took_s.append,
            on_failed=self.failures.append,
        )
        self._thread = threading.Thread(target=self.lifecycle.run)
        self._thread.start()

    def close(self) -> None:
        self.stop.set()
        self.inventory.wake()
        self.lifecycle.wake()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()


@pytest.fixture
def registry(short_folder: Path) -> Iterator[Registry]:
    made = Registry(short_folder)
    yield made
    made.close()


@pytest.fixture
def running(short_folder: Path, registry: Registry) -> Iterator[RunningLifecycle]:
    assert not registry.requests
    made = RunningLifecycle(short_folder)
    yield made
    made.close()


def test_register_says_version_resource_socket_and_options(
    running: RunningLifecycle, registry: Registry, short_folder: Path
) -> None:
    assert running.lifecycle.registered.wait(LIMIT_S)
    (request,) = registry.requests
    assert (request.version, request.resource_name) == ("v1beta1", GPU)
    assert (short_folder / request.endpoint).is_socket()
    assert request.options.get_preferred_allocation_available
    assert not request.options.pre_start_required
    assert len(running.took_s) == 1


def test_refused_registration_is_tried_again_with_another_socket(
    short_folder: Path, registry: Registry
) -> None:
    registry.refusals = 2
    running = RunningLifecycle(short_folder)
    try:
        assert running.lifecycle.registered.wait(LIMIT_S)
        assert len({made.endpoint for made in registry.requests}) == 3
        assert len(running.failures) == 2
        assert all("UNAVAILABLE: not now" in text for text in running.failures)
        assert len(list(short_folder.glob("hami-*.sock"))) == 1
    finally:
        running.close()


def test_restart_registers_anew_under_another_name(
    running: RunningLifecycle, registry: Registry
) -> None:
    assert running.lifecycle.registered.wait(LIMIT_S)
    running.lifecycle.restart()
    eventually(lambda: len(registry.requests) == 2)
    assert running.lifecycle.registered.wait(LIMIT_S)
    assert registry.requests[0].endpoint != registry.requests[1].endpoint


def test_restart_old_server_answers_until_the_new_one_was_asked_for_its_list(
    short_folder: Path,
) -> None:
    registry = Registry(short_folder, lists=False)
    running = RunningLifecycle(short_folder)
    try:
        eventually(lambda: len(registry.requests) == 1)
        registry.follow(registry.requests[0].endpoint)
        old = registry.stub(registry.requests[0].endpoint)
        assert running.lifecycle.registered.wait(LIMIT_S)
        running.lifecycle.restart()
        eventually(lambda: len(registry.requests) == 2)
        for _ in range(20):
            assert old.GetDevicePluginOptions(api.Empty(), timeout=LIMIT_S)
    finally:
        running.close()
        registry.close()


def test_kubelet_socket_replaced_in_one_step_is_noticed_and_registered_with(
    running: RunningLifecycle, short_folder: Path
) -> None:
    assert running.lifecycle.registered.wait(LIMIT_S)
    (short_folder / "new").mkdir()
    other = Registry(short_folder, socket=short_folder / "new" / "kubelet.sock")
    try:
        (short_folder / "new" / "kubelet.sock").replace(short_folder / "kubelet.sock")
        eventually(lambda: other.requests)
        assert running.lifecycle.registered.wait(LIMIT_S)
    finally:
        other.close()


def test_end_leaves_no_socket_behind(short_folder: Path, registry: Registry) -> None:
    running = RunningLifecycle(short_folder)
    assert running.lifecycle.registered.wait(LIMIT_S)
    running.close()
    assert registry.requests
    assert [path.name for path in short_folder.glob("*.sock")] == ["kubelet.sock"]
    assert not running.lifecycle.registered.is_set()


def test_end_while_kubelet_is_absent_is_quick_and_quiet(short_folder: Path) -> None:
    running = RunningLifecycle(short_folder)
    running.close()
    assert list(short_folder.iterdir()) == []


def test_stale_sockets_of_the_same_resource_only_are_removed(short_folder: Path) -> None:
    for name in ("hami-nvidia-com-gpu-1-1.sock", "hami-nvidia-com-gpu-1-2.sock"):
        (short_folder / name).touch()
    for name in ("kubelet.sock", "hami-other-com-gpu-1-1.sock", "nvidia.sock"):
        (short_folder / name).touch()
    assert remove_stale_sockets(short_folder, GPU) == 2
    assert len(list(short_folder.iterdir())) == 3


# -- kubelet's stream ------------------------------------------------------------------------------
@shows(
    "N10",
    fault="kubelet ends its ListAndWatch stream; both sockets stay as they are",
    happens="not ready, with the reason; registered again within a second",
)
def test_stream_that_kubelet_ends_is_noticed_and_registered_again(
    running: RunningLifecycle, registry: Registry
) -> None:
    assert running.lifecycle.registered.wait(LIMIT_S)
    registry.listing = False
    registry.end_streams()
    eventually(lambda: not running.lifecycle.registered.is_set())
    assert "kubelet has ended the ListAndWatch stream of" in running.lifecycle.problem
    registry.listing = True
    eventually(lambda: len(registry.requests) >= 2)
    assert running.lifecycle.registered.wait(LIMIT_S)
    assert running.lifecycle.problem == ""
    assert BACK_OFF_S[0] < 1.0


@shows(
    "N10",
    fault="kubelet accepts a registration and never opens the stream",
    happens="not ready, with the reason; registered again within a second, then less often",
)
def test_stream_that_kubelet_never_opens_is_asked_for_again(short_folder: Path) -> None:
    registry = Registry(short_folder, lists=False)
    running = RunningLifecycle(short_folder)
    try:
        eventually(lambda: len(registry.requests) == 2)
        assert LIST_TIMEOUTS_S[0] + BACK_OFF_S[0] < 1.0
        assert "kubelet never opened the ListAndWatch stream" in running.lifecycle.problem
        assert not running.lifecycle.registered.is_set()
        assert running.lifecycle._unheeded == 1
        registry.listing = True
        assert running.lifecycle.registered.wait(LIMIT_S)
    finally:
        running.close()
        registry.close()


def test_stream_that_opens_while_it_is_looked_for_is_no_stream_that_has_ended(
    short_folder: Path,
) -> None:
    registry = Registry(short_folder, lists=False)

    class OpenedMeanwhile(DevicePlugin):
        """kubelet opens the stream right after the first look."""

        def has_stream(self) -> bool:
            found = super().has_stream()
            if not self.listed.is_set() and registry.requests:
                registry.follow(registry.requests[-1].endpoint)
                assert self.listed.wait(LIMIT_S)
            return found

    running = RunningLifecycle(short_folder, plugin=OpenedMeanwhile)
    try:
        assert running.lifecycle.registered.wait(LIMIT_S)
        assert len(registry.requests) == 1
    finally:
        running.close()
        registry.close()


def test_stream_that_kubelet_opens_late_is_kept(short_folder: Path) -> None:
    registry, clock = Registry(short_folder, lists=False), FakeClock()
    running = RunningLifecycle(short_folder, clock=clock)
    try:
        eventually(lambda: running.lifecycle.registrations == 1)
        clock.advance(LIST_TIMEOUTS_S[0] + 0.1)
        eventually(lambda: "never opened the ListAndWatch" in running.lifecycle.problem)
        registry.follow(registry.requests[0].endpoint)
        assert running.lifecycle.registered.wait(LIMIT_S)
        assert running.lifecycle.problem == ""
        assert len(registry.requests) == 1
    finally:
        running.close()
        registry.close()


@shows(
    "N10",
    fault="kubelet ends every stream as soon as it has opened it",
    happens="registrations become rarer, and never a burst",
)
def test_streams_that_kubelet_keeps_ending_are_answered_more_and_more_slowly(
    running: RunningLifecycle, registry: Registry
) -> None:
    registry.ends_at_once = True
    registry.end_streams()
    eventually(lambda: len(registry.requests) == 5, 20.0)
    gaps_s = [late - early for early, late in pairwise(registry.at_s[1:])]
    assert gaps_s[-1] > gaps_s[0]
    assert gaps_s[-1] > 0.9


# -- the service -----------------------------------------------------------------------------------
class Answers:
    """An allocator that answers or raises as configured."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def allocate(self, device_ids: object, deadline: Deadline) -> list[ContainerResponse]:
        del device_ids, deadline
        if self.error is not None:
            raise self.error
        mount = Mount(container_path="/in", host_path="/out", is_read_only=True)
        return [ContainerResponse(envs=(("A", "1"),), mounts=(mount,), cdi_devices=("k=v",))]

    def renew(self) -> None:
        """Nothing is remembered."""

    def prefer(self, available: object, must: object, size: int, deadline: Deadline) -> list[str]:
        del available, must, deadline
        if self.error is not None:
            raise self.error
        return ["b", "c"][:size]


def served(running: RunningLifecycle, registry: Registry) -> DevicePluginStub:
    assert running.lifecycle.registered.wait(LIMIT_S)
    return registry.stub(registry.requests[-1].endpoint)


def request(*ids: str) -> api.AllocateRequest:
    return api.AllocateRequest(container_requests=[api.ContainerAllocateRequest(devices_ids=ids)])


def preference(size: int = 2) -> api.PreferredAllocationRequest:
    asked = api.ContainerPreferredAllocationRequest(
        available_deviceIDs=["a", "b", "c"], must_include_deviceIDs=["c"], allocation_size=size
    )
    return api.PreferredAllocationRequest(container_requests=[asked])


def test_allocate_answer_is_translated_whole(running: RunningLifecycle, registry: Registry) -> None:
    running.slot.put(Answers())
    (answer,) = (
        served(running, registry).Allocate(request("a"), timeout=LIMIT_S).container_responses
    )
    assert dict(answer.envs) == {"A": "1"}
    assert [(m.container_path, m.host_path, m.read_only) for m in answer.mounts] == [
        ("/in", "/out", True)
    ]
    assert [device.name for device in answer.cdi_devices] == ["k=v"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AllocationError("no"), grpc.StatusCode.FAILED_PRECONDITION),
        (NoPendingPod("no"), grpc.StatusCode.FAILED_PRECONDITION),
        (KubeError("no"), grpc.StatusCode.FAILED_PRECONDITION),
        (NodeUnfit("no"), grpc.StatusCode.UNAVAILABLE),
    ],
    ids=["refused", "unknown", "api", "the node's fault"],
)
def test_allocate_error_is_a_code_and_its_sentence(
    running: RunningLifecycle, registry: Registry, error: HamiError, code: grpc.StatusCode
) -> None:
    running.slot.put(Answers(error))
    with pytest.raises(grpc.RpcError) as caught:
        served(running, registry).Allocate(request("a"), timeout=LIMIT_S)
    assert (caught.value.code(), caught.value.details()) == (code, "no")


def test_allocate_before_the_daemon_is_ready_waits_then_refuses(
    running: RunningLifecycle, registry: Registry
) -> None:
    with pytest.raises(grpc.RpcError, match="has just started"):
        served(running, registry).Allocate(request("a"), timeout=LIMIT_S)


@pytest.mark.parametrize(
    "error", [NoPendingPod("who?"), RuntimeError("a bug")], ids=["unknown", "broken"]
)
def test_preference_without_an_answer_is_any_with_what_must_be(
    running: RunningLifecycle, registry: Registry, error: Exception
) -> None:
    running.slot.put(Answers(error))
    (answer,) = (
        served(running, registry)
        .GetPreferredAllocation(preference(), timeout=LIMIT_S)
        .container_responses
    )
    assert list(answer.deviceIDs) == ["c", "a"]


def test_preference_of_a_known_pod_is_the_allocators(
    running: RunningLifecycle, registry: Registry
) -> None:
    running.slot.put(Answers())
    (answer,) = (
        served(running, registry)
        .GetPreferredAllocation(preference(), timeout=LIMIT_S)
        .container_responses
    )
    assert list(answer.deviceIDs) == ["b", "c"]


def test_list_is_sent_at_once_and_after_every_change(
    running: RunningLifecycle, registry: Registry
) -> None:
    stream = served(running, registry).ListAndWatch(api.Empty())
    assert [device.health for device in next(stream).devices] == ["Healthy"] * 2
    running.inventory.replace((card(slots=2, healthy=False),))
    assert [device.health for device in next(stream).devices] == ["Unhealthy"] * 2
    stream.cancel()
