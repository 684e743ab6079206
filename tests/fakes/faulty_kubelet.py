"""The simulated kubelet with the levers of a test: lists that fail, IDs that it forgets."""

from __future__ import annotations

import threading
from pathlib import Path

import grpc

from hami_node.kubelet_api import podresources_pb2 as held_api
from hami_node.simulate.kubelet import SimulatedKubelet


class FaultyKubelet(SimulatedKubelet):
    """What the demo serves, and what goes wrong with it on command."""

    def __init__(
        self, plugin_dir: Path, pod_resources_socket: Path, *, lists_ended_pods: bool = False
    ) -> None:
        super().__init__(plugin_dir, pod_resources_socket, lists_ended_pods=lists_ended_pods)
        self.failing_lists = 0
        """How many of the next lists fail."""
        self.lists_hang = threading.Event()
        """While set, a list is answered only when the caller has given up."""

    def List(  # noqa: N802 - the name is kubelet's
        self, request: held_api.ListPodResourcesRequest, context: grpc.ServicerContext
    ) -> held_api.ListPodResourcesResponse:
        """As kubelet, unless it is told to fail."""
        while self.lists_hang.is_set() and context.is_active():
            threading.Event().wait(0.02)
        if self.failing_lists > 0:
            self.failing_lists -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        return super().List(request, context)

    def forget_ids(self, *pods: str) -> None:
        """The IDs of these pods of `default` are free; the pods stay listed.

        As when the checkpoint is lost, or (before 1.34) for pods that have ended.
        """
        with self._state:
            for name in pods:
                self._pods["default", name].held.clear()
