"""What kubelet itself says through its pod-resources socket; works without the API server."""

from __future__ import annotations

from collections import Counter
from typing import Final

import grpc

from hami_node.kubelet_api import podresources_pb2, podresources_pb2_grpc
from hami_node.wire import names
from tests.e2e.machine import KUBELET_DIR

_SOCKET: Final = f"unix://{KUBELET_DIR}/pod-resources/kubelet.sock"


def healthy_slices() -> Counter[str]:
    """How many slices of each card kubelet may hand out, by the card's UUID."""
    with grpc.insecure_channel(_SOCKET) as channel:
        stub = podresources_pb2_grpc.PodResourcesListerStub(channel)
        answer = stub.GetAllocatableResources(
            podresources_pb2.AllocatableResourcesRequest(), timeout=5
        )
    ids = [
        one
        for device in answer.devices
        if device.resource_name == names.RESOURCE_GPU
        for one in device.device_ids
    ]
    return Counter(one.rpartition("-")[0] for one in ids)


def held_slices() -> dict[str, tuple[str, ...]]:
    """The device IDs of every container that holds some, by `pod/container`."""
    with grpc.insecure_channel(_SOCKET) as channel:
        stub = podresources_pb2_grpc.PodResourcesListerStub(channel)
        answer = stub.List(podresources_pb2.ListPodResourcesRequest(), timeout=5)
    return {
        f"{pod.name}/{container.name}": tuple(
            one
            for device in container.devices
            if device.resource_name == names.RESOURCE_GPU
            for one in device.device_ids
        )
        for pod in answer.pod_resources
        for container in pod.containers
        if container.devices
    }
