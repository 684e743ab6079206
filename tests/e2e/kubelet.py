"""What kubelet itself says through its pod-resources socket; works without the API server."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar

import grpc

from hami_node.kubelet_api import podresources_pb2, podresources_pb2_grpc
from hami_node.vendors.nvidia import names as nvidia_names
from tests.e2e.machine import KUBELET_DIR

T = TypeVar("T")

_OURS: Final = nvidia_names.RESOURCE_GPU
_SOCKET: Final = f"unix://{KUBELET_DIR}/pod-resources/kubelet.sock"


class KubeletAway(RuntimeError):
    """kubelet's pod-resources socket does not answer."""


def healthy_slices(resource: str = _OURS) -> Counter[str]:
    """How many slices of each card kubelet may hand out, by the card's UUID.

    Raises:
        KubeletAway: kubelet does not answer.
    """
    request = podresources_pb2.AllocatableResourcesRequest()
    answer = _ask(lambda stub: stub.GetAllocatableResources(request, timeout=30))
    ids = [one for d in answer.devices if d.resource_name == resource for one in d.device_ids]
    return Counter(one.rpartition("-")[0] for one in ids)


def held_slices() -> dict[str, tuple[str, ...]]:
    """The device IDs of every container that holds some, by `pod/container`.

    Raises:
        KubeletAway: kubelet does not answer.
    """
    request = podresources_pb2.ListPodResourcesRequest()
    answer = _ask(lambda stub: stub.List(request, timeout=30))
    return {
        f"{pod.name}/{container.name}": tuple(
            one for d in container.devices if d.resource_name == _OURS for one in d.device_ids
        )
        for pod in answer.pod_resources
        for container in pod.containers
        if container.devices
    }


def _ask(call: Callable[[podresources_pb2_grpc.PodResourcesListerStub], T]) -> T:
    """Make a call; kubelet allows 100 a second from all its clients together."""
    with grpc.insecure_channel(_SOCKET) as channel:
        stub = podresources_pb2_grpc.PodResourcesListerStub(channel)
        for _ in range(50):
            try:
                return call(stub)
            except grpc.RpcError as error:
                code = error.code() if isinstance(error, grpc.Call) else None
                if code is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise KubeletAway(f"pod-resources: {code}") from error
                time.sleep(0.05)
    raise KubeletAway("pod-resources: turned away for its rate, 50 times")
