from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from hami_node.kubelet_api import deviceplugin_pb2 as api
from hami_node.kubelet_api import podresources_pb2 as held_api
from hami_node.kubelet_api.deviceplugin_pb2_grpc import (
    DevicePluginServicer,
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)
from hami_node.kubelet_api.podresources_pb2_grpc import PodResourcesListerStub
from hami_node.model import ContainerKind
from hami_node.simulate.kubelet import SimulatedKubelet
from hami_node.wire.objects import decode_pod
from tests.fakes.pods import Box, pod_body
from tests.fakes.waiting import eventually

GPU = "nvidia.com/gpu"
LIMIT_S = 10.0


def listed(socket: Path) -> list[tuple[str, tuple[str, ...]]]:
    """kubelet's list: `pod/container` and its device IDs."""
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        answer = PodResourcesListerStub(channel).List(
            held_api.ListPodResourcesRequest(), timeout=LIMIT_S
        )
    return [
        (
            f"{pod.name}/{container.name}",
            tuple(name for held in container.devices for name in held.device_ids),
        )
        for pod in answer.pod_resources
        for container in pod.containers
    ]


class Plugin(DevicePluginServicer):
    """A plugin of four devices that serves everybody, or refuses from a call on."""

    def __init__(self, folder: Path, refuses_from: int = 99) -> None:
        self.calls: list[list[str]] = []
        self.preferences: list[api.ContainerPreferredAllocationRequest] = []
        self.seen: list[tuple[str, tuple[str, ...]]] = []
        self.list_socket: Path | None = None
        self._refuses_from = refuses_from
        self._over = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(8))
        add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{folder / 'plugin.sock'}")
        self._server.start()

    def GetDevicePluginOptions(  # noqa: N802 - the name is kubelet's
        self, request: api.Empty, context: grpc.ServicerContext
    ) -> api.DevicePluginOptions:
        return api.DevicePluginOptions(get_preferred_allocation_available=True)

    def ListAndWatch(  # noqa: N802 - the name is kubelet's
        self, request: api.Empty, context: grpc.ServicerContext
    ) -> Iterator[api.ListAndWatchResponse]:
        devices = [api.Device(ID=f"d{n}", health="Healthy") for n in range(4)]
        yield api.ListAndWatchResponse(devices=devices)
        self._over.wait()

    def GetPreferredAllocation(  # noqa: N802 - the name is kubelet's
        self, request: api.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> api.PreferredAllocationResponse:
        (preference,) = request.container_requests
        self.preferences.append(preference)
        ids = sorted(preference.available_deviceIDs, reverse=True)
        return api.PreferredAllocationResponse(
            container_responses=[api.ContainerPreferredAllocationResponse(deviceIDs=ids)]
        )

    def Allocate(  # noqa: N802 - the name is kubelet's
        self, request: api.AllocateRequest, context: grpc.ServicerContext
    ) -> api.AllocateResponse:
        self.calls.append(list(request.container_requests[0].devices_ids))
        if self.list_socket is not None:
            self.seen = listed(self.list_socket)
        if len(self.calls) >= self._refuses_from:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "too full")
        return api.AllocateResponse(container_responses=[api.ContainerAllocateResponse()])

    def close(self) -> None:
        self._over.set()
        self._server.stop(0).wait(LIMIT_S)


@pytest.fixture
def kubelet(short_folder: Path, request: pytest.FixtureRequest) -> Iterator[SimulatedKubelet]:
    ended = bool(getattr(request, "param", False))
    made = SimulatedKubelet(
        short_folder / "p", short_folder / "r" / "k.sock", lists_ended_pods=ended
    )
    made.start()
    yield made
    made.stop()


@pytest.fixture
def plugin(short_folder: Path, kubelet: SimulatedKubelet) -> Iterator[Plugin]:
    made = Plugin(short_folder / "p")
    register(short_folder)
    eventually(lambda: kubelet.allocatable(GPU) == 4, LIMIT_S)
    yield made
    made.close()


def register(folder: Path) -> None:
    with grpc.insecure_channel(f"unix:{folder / 'p' / 'kubelet.sock'}") as channel:
        RegistrationStub(channel).Register(
            api.RegisterRequest(
                version="v1beta1",
                endpoint="plugin.sock",
                resource_name=GPU,
                options=api.DevicePluginOptions(get_preferred_allocation_available=True),
            ),
            timeout=LIMIT_S,
        )


BOXES = [
    Box(name="i", cards=2, kind=ContainerKind.INIT),
    Box(name="s", cards=1, kind=ContainerKind.SIDECAR),
    Box(name="none", cards=0),
    Box(name="a", cards=1),
]


def test_admit_containers_are_served_in_order_and_reuse_init_ids(
    kubelet: SimulatedKubelet, plugin: Plugin
) -> None:
    answer = kubelet.admit(decode_pod(pod_body("p", BOXES)), GPU)
    assert answer.is_admitted
    assert list(answer.device_ids) == ["i", "s", "a"]
    must = [list(preference.must_include_deviceIDs) for preference in plugin.preferences]
    assert must[0] == []
    assert must[1] == plugin.calls[0][:1], "the sidecar gets an ID of the init container"
    assert set(must[2]) < set(plugin.calls[0])


def test_list_shows_the_pod_under_admission_without_plain_init_containers(
    kubelet: SimulatedKubelet, plugin: Plugin, short_folder: Path
) -> None:
    plugin.list_socket = short_folder / "r" / "k.sock"
    answer = kubelet.admit(decode_pod(pod_body("p", BOXES)), GPU)
    assert plugin.seen == [("p/s", answer.device_ids["s"]), ("p/none", ()), ("p/a", ())]


@pytest.mark.parametrize("kubelet", [False, True], indirect=True, ids=["1.34", "before"])
def test_refused_pod_is_listed_only_by_old_kubelets_and_holds_nothing(
    kubelet: SimulatedKubelet, short_folder: Path, request: pytest.FixtureRequest
) -> None:
    plugin = Plugin(short_folder / "p", refuses_from=1)
    try:
        register(short_folder)
        eventually(lambda: kubelet.allocatable(GPU) == 4, LIMIT_S)
        answer = kubelet.admit(decode_pod(pod_body("p", [Box()])), GPU)
        assert answer.refusal == (
            "Allocate failed due to rpc error: code = FailedPrecondition desc = too full"
        )
        is_old = request.node.callspec.params["kubelet"]
        assert listed(short_folder / "r" / "k.sock") == ([("p/main", ())] if is_old else [])
    finally:
        plugin.close()


def test_admit_without_free_devices_does_not_ask_the_plugin(
    kubelet: SimulatedKubelet, plugin: Plugin
) -> None:
    assert kubelet.admit(decode_pod(pod_body("a", [Box(cards=3)])), GPU).is_admitted
    refusal = kubelet.admit(decode_pod(pod_body("b", [Box(cards=2)])), GPU).refusal
    assert refusal == f"Requested: 2, Available: 1 of {GPU}"
    assert len(plugin.calls) == 1
    kubelet.remove("default", "a")
    assert kubelet.admit(decode_pod(pod_body("c", [Box(cards=2)])), GPU).is_admitted


def test_restart_empties_the_folder_and_forgets_plugins_but_not_who_holds_what(
    kubelet: SimulatedKubelet, plugin: Plugin, short_folder: Path
) -> None:
    held = kubelet.admit(decode_pod(pod_body("p", [Box()])), GPU).device_ids["main"]
    kubelet.restart()
    assert kubelet.devices(GPU) == {}
    assert not (short_folder / "p" / "plugin.sock").exists()
    assert listed(short_folder / "r" / "k.sock") == [("p/main", held)]
