"""A simulated kubelet: real gRPC, with the calls and lists of a real kubelet, but no containers.

It registers plugins, keeps their ListAndWatch streams, admits pods container by container with
GetPreferredAllocation and Allocate, and serves the pod-resources list, which also shows the pod
that is being admitted. Behaviour as in kubelet 1.34; with `lists_ended_pods` as before 1.34.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from hami_node.kubelet_api import deviceplugin_pb2 as api
from hami_node.kubelet_api import podresources_pb2 as held_api
from hami_node.kubelet_api.deviceplugin_pb2_grpc import (
    DevicePluginStub,
    RegistrationServicer,
    add_RegistrationServicer_to_server,
)
from hami_node.kubelet_api.podresources_pb2_grpc import (
    PodResourcesListerServicer,
    add_PodResourcesListerServicer_to_server,
)
from hami_node.model import Container, ContainerKind, Pod

log = logging.getLogger(__name__)

DIAL_TIMEOUT_S = 5.0
CALL_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The result for a pod: the response for each container with devices, or the refusal."""

    responses: Mapping[str, api.ContainerAllocateResponse]
    device_ids: Mapping[str, tuple[str, ...]]
    refusal: str = ""

    @property
    def is_admitted(self) -> bool:
        """True if every container was served."""
        return not self.refusal


@dataclass(slots=True)
class _Endpoint:
    """A registered plugin: its stub, and health and NUMA nodes of its device IDs."""

    name: str
    channel: grpc.Channel
    stub: DevicePluginStub
    prefers: bool = False
    health: dict[str, str] = field(default_factory=dict)
    numa: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class _Admitted:
    """A pod in the list, with the device IDs of each container served so far."""

    pod: Pod
    held: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    is_refused: bool = False


class SimulatedKubelet(RegistrationServicer, PodResourcesListerServicer):
    """A node's kubelet, on two sockets. Thread-safe; admits pods one by one, as kubelet does."""

    def __init__(
        self, plugin_dir: Path, pod_resources_socket: Path, *, lists_ended_pods: bool = False
    ) -> None:
        """Prepare; `start` opens the sockets."""
        self._dir = plugin_dir
        self._pod_resources_socket = pod_resources_socket
        self._lists_ended_pods = lists_ended_pods
        self._servers: list[grpc.Server] = []
        self._state = threading.Condition()
        self._admission = threading.Lock()
        self._endpoints: dict[str, _Endpoint] = {}
        self._dialled: list[grpc.Channel] = []
        self._newest: dict[str, _Endpoint] = {}
        self._following = 0
        self._pods: dict[tuple[str, str], _Admitted] = {}
        self.registrations: list[tuple[float, str]] = []
        """(monotonic time, endpoint) of every Register call."""
        self.dropped: list[str] = []
        """Endpoints that were disconnected because another one's stream had ended."""

    # -- start and stop ----------------------------------------------------------------------------
    def start(self) -> None:
        """Remove all sockets from the plugin folder, as kubelet does, and listen."""
        self._dir.mkdir(parents=True, exist_ok=True)
        self._pod_resources_socket.parent.mkdir(parents=True, exist_ok=True)
        for stale in self._dir.glob("*.sock"):
            stale.unlink(missing_ok=True)
        self._pod_resources_socket.unlink(missing_ok=True)
        lister, registry = _server(), _server()
        add_PodResourcesListerServicer_to_server(self, lister)
        add_RegistrationServicer_to_server(self, registry)
        lister.add_insecure_port(f"unix:{self._pod_resources_socket}")
        registry.add_insecure_port(f"unix:{self._dir / 'kubelet.sock'}")
        lister.start()
        registry.start()
        self._servers += [lister, registry]

    def stop(self) -> None:
        """Close both sockets and all plugin streams; allocations are kept (the checkpoint)."""
        for server in self._servers:
            server.stop(0).wait(CALL_TIMEOUT_S)
        self._servers.clear()
        with self._state:
            dialled, self._dialled = self._dialled, []
            self._endpoints, self._newest = {}, {}
            self._state.notify_all()
        for channel in dialled:
            channel.close()
        (self._dir / "kubelet.sock").unlink(missing_ok=True)

    def restart(self) -> None:
        """Stop and start at once; plugins have to register again."""
        self.stop()
        self.start()

    # -- state for tests and the demo --------------------------------------------------------------
    def devices(self, resource: str) -> dict[str, str]:
        """Health by device ID of a resource; {} while no plugin is registered for it."""
        with self._state:
            endpoint = self._endpoints.get(resource)
            return dict(endpoint.health) if endpoint else {}

    def allocatable(self, resource: str) -> int:
        """How many healthy device IDs the resource has."""
        return sum(health == "Healthy" for health in self.devices(resource).values())

    def is_settled(self) -> bool:
        """True while each resource is served by its newest plugin, and no other is connected.

        Otherwise a stream may soon end, and all calls with it.
        """
        with self._state:
            newest = self._newest.items()
            are_listed = all(self._endpoints.get(resource) is plugin for resource, plugin in newest)
            return are_listed and self._following == len(newest)

    def remove(self, namespace: str, name: str) -> None:
        """Remove a pod that ended: its device IDs are free again."""
        with self._state:
            self._pods.pop((namespace, name), None)

    # -- admission ---------------------------------------------------------------------------------
    def admit(self, pod: Pod, *resources: str) -> Admission:
        """Serve the pod's containers in order; the first refusal fails the pod for good."""
        with self._admission:
            entry = _Admitted(pod=pod)
            with self._state:
                self._pods[pod.namespace, pod.name] = entry
            responses: dict[str, api.ContainerAllocateResponse] = {}
            ids: dict[str, tuple[str, ...]] = {}
            reusable: dict[str, list[str]] = {}
            wanted = [
                (container, resource, count)
                for container in pod.containers
                for resource in resources
                if (count := int(container.limits.get(resource, "0")))
            ]
            for container, resource, count in wanted:
                free = reusable.get(resource, [])
                try:
                    chosen, response = self._serve(resource, count, free)
                except _RefusedError as e:
                    self._refuse(entry)
                    return Admission(responses=responses, device_ids=ids, refusal=str(e))
                name = container.name
                responses.setdefault(name, api.ContainerAllocateResponse()).MergeFrom(response)
                ids[name] = (*ids.get(name, ()), *chosen)
                with self._state:
                    entry.held.setdefault(name, {})[resource] = tuple(chosen)
                reusable[resource] = _reusable(container, chosen, free)
            return Admission(responses=responses, device_ids=ids)

    def call_again(
        self, resource: str, device_ids: tuple[str, ...]
    ) -> api.ContainerAllocateResponse:
        """Repeat an Allocate with the same IDs, as for a container that was already served."""
        with self._admission:
            return self._allocate(resource, list(device_ids))

    def _serve(
        self, resource: str, count: int, reusable: list[str]
    ) -> tuple[list[str], api.ContainerAllocateResponse]:
        with self._state:
            endpoint = self._endpoints.get(resource)
            health = dict(endpoint.health) if endpoint else {}
            taken = {
                name
                for entry in self._pods.values()
                if not entry.is_refused
                for held in entry.held.values()
                for name in held.get(resource, ())
            }
        if endpoint is None:
            raise _RefusedError("no plugin is registered")
        free = [name for name, state in health.items() if state == "Healthy" and name not in taken]
        available = sorted(set(free) | set(reusable))
        if len(available) < count:
            raise _RefusedError(f"Requested: {count}, Available: {len(available)} of {resource}")
        must = reusable[:count]
        chosen = (must + [name for name in available if name not in must])[:count]
        if endpoint.prefers:
            chosen = self._preferred(endpoint, available, must, count)
        return chosen, self._allocate(resource, chosen)

    def _preferred(
        self, endpoint: _Endpoint, available: list[str], must: list[str], count: int
    ) -> list[str]:
        request = api.PreferredAllocationRequest(
            container_requests=[
                api.ContainerPreferredAllocationRequest(
                    available_deviceIDs=available,
                    must_include_deviceIDs=must,
                    allocation_size=count,
                )
            ]
        )
        try:
            answer = endpoint.stub.GetPreferredAllocation(request, timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as e:
            raise _RefusedError(
                f"GetPreferredAllocation failed due to rpc error: {_status_text(e)}"
            ) from e
        chosen = [name for name in answer.container_responses[0].deviceIDs if name in available]
        rest = [name for name in available if name not in chosen]
        return (chosen + rest)[:count]

    def _allocate(self, resource: str, chosen: list[str]) -> api.ContainerAllocateResponse:
        with self._state:
            endpoint = self._endpoints.get(resource)
        if endpoint is None:
            raise _RefusedError("no plugin is registered")
        request = api.AllocateRequest(
            container_requests=[api.ContainerAllocateRequest(devices_ids=chosen)]
        )
        try:
            answer = endpoint.stub.Allocate(request, timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as e:
            raise _RefusedError(f"Allocate failed due to rpc error: {_status_text(e)}") from e
        served: api.ContainerAllocateResponse = answer.container_responses[0]
        return served

    def _refuse(self, entry: _Admitted) -> None:
        with self._state:
            entry.is_refused = True
            if not self._lists_ended_pods:
                self._pods.pop((entry.pod.namespace, entry.pod.name), None)

    # -- gRPC --------------------------------------------------------------------------------------
    def Register(  # noqa: N802 - the name is kubelet's
        self, request: api.RegisterRequest, context: grpc.ServicerContext
    ) -> api.Empty:
        """Dial the plugin's socket and follow its ListAndWatch stream."""
        if request.version != "v1beta1":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"version {request.version}")
        channel = grpc.insecure_channel(f"unix:{self._dir / request.endpoint}")
        endpoint = _Endpoint(
            name=request.endpoint,
            channel=channel,
            stub=DevicePluginStub(channel),
            prefers=request.options.get_preferred_allocation_available,
        )
        with self._state:
            self._dialled.append(channel)
            self._newest[request.resource_name] = endpoint
            self._following += 1
            self.registrations.append((time.monotonic(), request.endpoint))
        threading.Thread(
            target=self._follow, args=(request.resource_name, endpoint), daemon=True
        ).start()
        return api.Empty()

    def _follow(self, resource: str, endpoint: _Endpoint) -> None:
        try:
            for answer in self._lists(endpoint):
                with self._state:
                    if endpoint.channel not in self._dialled:
                        break  # a list that arrived after kubelet was stopped
                    endpoint.health = {device.ID: device.health for device in answer.devices}
                    endpoint.numa = {
                        device.ID: tuple(node.ID for node in device.topology.nodes)
                        for device in answer.devices
                    }
                    self._endpoints[resource] = endpoint
                    self._state.notify_all()
        except (grpc.RpcError, ValueError) as e:
            log.debug("plugin stream of %s ended: %s", endpoint.name, e)
        with self._state:
            # as the real one: whichever client's stream ends, the newest one is disconnected
            newest = self._newest.pop(resource, endpoint)
            if newest is not endpoint:
                self.dropped.append(newest.name)
            current = self._endpoints.get(resource)
            if current in (endpoint, newest):
                current.health = dict.fromkeys(current.health, "Unhealthy")
                self._state.notify_all()
            self._following -= 1
        endpoint.channel.close()
        newest.channel.close()

    @staticmethod
    def _lists(endpoint: _Endpoint) -> Iterator[api.ListAndWatchResponse]:
        endpoint.stub.GetDevicePluginOptions(
            api.Empty(), timeout=DIAL_TIMEOUT_S, wait_for_ready=True
        )
        yield from endpoint.stub.ListAndWatch(api.Empty())

    def List(  # noqa: N802 - the name is kubelet's
        self, request: held_api.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> held_api.ListPodResourcesResponse:
        """App containers and sidecars of every admitted pod, but no plain init containers."""
        del request, context
        with self._state:
            return held_api.ListPodResourcesResponse(
                pod_resources=[_listed(entry) for entry in self._pods.values()]
            )


def _server() -> grpc.Server:
    return grpc.server(ThreadPoolExecutor(8, thread_name_prefix="kubelet"))


def _status_text(error: grpc.RpcError) -> str:
    code = error.code().name.title().replace("_", "")
    return f"code = {code} desc = {error.details()}"


class _RefusedError(Exception):
    """kubelet refuses the pod; the text is its message."""


def _reusable(container: Container, chosen: list[str], before: list[str]) -> list[str]:
    """kubelet gives an init container's IDs to the containers after it."""
    if container.kind is ContainerKind.INIT:
        return before + [name for name in chosen if name not in before]
    return [name for name in before if name not in chosen]


def _listed(entry: _Admitted) -> held_api.PodResources:
    return held_api.PodResources(
        name=entry.pod.name,
        namespace=entry.pod.namespace,
        containers=[
            held_api.ContainerResources(
                name=container.name,
                devices=[
                    held_api.ContainerDevices(resource_name=resource, device_ids=ids)
                    for resource, ids in entry.held.get(container.name, {}).items()
                ],
            )
            for container in entry.pod.containers
            if container.kind is not ContainerKind.INIT
        ],
    )
