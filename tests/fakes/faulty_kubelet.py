"""The simulated kubelet with the levers of a test: lists that fail, IDs that it forgets."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc

from hami_node.kubelet_api import deviceplugin_pb2 as api
from hami_node.kubelet_api import podresources_pb2 as held_api
from hami_node.model import Pod
from hami_node.simulate.kubelet import SimulatedKubelet, _Admitted, _Endpoint


class FaultyKubelet(SimulatedKubelet):
    """What the demo serves, and what goes wrong with it on command."""

    def __init__(
        self, plugin_dir: Path, pod_resources_socket: Path, *, lists_ended_pods: bool = False
    ) -> None:
        super().__init__(plugin_dir, pod_resources_socket, lists_ended_pods=lists_ended_pods)
        self.failing_lists = 0
        """How many of the next lists fail."""
        self.failing_code = grpc.StatusCode.UNAVAILABLE
        """With what; RESOURCE_EXHAUSTED is its limit of rate."""
        self.lists_hang = threading.Event()
        """While set, a list is answered only when the caller has given up."""
        self.hanging = False
        """Whether a list has hung."""
        self.refused_registrations = 0
        """How many of the next registrations are refused."""
        self.opens_streams = True
        """Whether registered plugins are asked for their list."""
        self.ends_streams = False
        """Whether each stream is ended as soon as it has brought a list."""
        self.requests: list[api.RegisterRequest] = []
        """All of them, the refused ones too."""
        self._chosen: list[str] | None = None

    def Register(  # noqa: N802 - the name is kubelet's
        self, request: api.RegisterRequest, context: grpc.ServicerContext
    ) -> api.Empty:
        """As kubelet, unless it is told to refuse."""
        self.requests.append(request)
        if self.refused_registrations > 0:
            self.refused_registrations -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        return super().Register(request, context)

    def _follow(self, resource: str, endpoint: _Endpoint) -> None:
        if self.opens_streams and not self.ends_streams:
            super()._follow(resource, endpoint)
            return
        if self.ends_streams:
            with suppress(grpc.RpcError, ValueError):  # the plugin may have ended it first
                next(self._lists(endpoint), None)
        with self._state:
            self._newest.pop(resource, None)
            self._following -= 1
        endpoint.channel.close()

    def end_stream(self, resource: str) -> None:
        """Cancel the stream of the plugin that serves the resource; the sockets stay."""
        with self._state:
            self._endpoints[resource].channel.close()

    def List(  # noqa: N802 - the name is kubelet's
        self, request: held_api.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> held_api.ListPodResourcesResponse:
        """As kubelet, unless it is told to fail."""
        while self.lists_hang.is_set() and context.is_active():
            self.hanging = True
            threading.Event().wait(0.02)
        if self.failing_lists > 0:
            self.failing_lists -= 1
            context.abort(self.failing_code, "not now")
        return super().List(request, context)

    def numa_nodes(self, resource: str) -> set[tuple[int, ...]]:
        """The NUMA nodes that the resource's device IDs were listed with."""
        with self._state:
            endpoint = self._endpoints.get(resource)
            return set(endpoint.numa.values()) if endpoint else set()

    def _serve(
        self, resource: str, count: int, reusable: list[str]
    ) -> tuple[list[str], api.ContainerAllocateResponse]:
        """As kubelet, unless it is told which IDs to take."""
        if self._chosen is not None:
            return self._chosen, self._allocate(resource, self._chosen)
        return super()._serve(resource, count, reusable)

    @contextmanager
    def choosing(self, device_ids: Sequence[str]) -> Iterator[None]:
        """Take these IDs, whatever is free, healthy or known."""
        self._chosen = list(device_ids)
        try:
            yield
        finally:
            self._chosen = None

    @contextmanager
    def listed_too(self, pod: Pod) -> Iterator[None]:
        """List this pod as well, without any IDs."""
        with self._state:
            self._pods[pod.namespace, pod.name] = _Admitted(pod=pod)
        try:
            yield
        finally:
            self.remove(pod.namespace, pod.name)

    def forget_ids(self, *pods: str) -> None:
        """The IDs of these pods of `default` are free; the pods stay listed.

        As when the checkpoint is lost, or (before 1.34) for pods that have ended.
        """
        with self._state:
            for name in pods:
                self._pods["default", name].held.clear()

    def hold(self, pod: Pod, resource: str, *device_ids: str, container: str = "main") -> None:
        """List these IDs for a pod, as another plugin gave them: no call is made to ours."""
        with self._state:
            entry = self._pods.setdefault((pod.namespace, pod.name), _Admitted(pod=pod))
            entry.held.setdefault(container, {})[resource] = device_ids
