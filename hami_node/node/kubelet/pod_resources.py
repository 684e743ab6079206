"""kubelet's own record of which container holds which device IDs: its pod-resources socket."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

import grpc

from hami_node.clock import Deadline
from hami_node.errors import KubeletError
from hami_node.kubelet_api import podresources_pb2 as api
from hami_node.kubelet_api.podresources_pb2_grpc import PodResourcesListerStub
from hami_node.ports import HeldContainer

TIMEOUT_S: Final = 2.0
RATE_WAIT_S: Final = 0.02
"""kubelet allows 100 calls a second of all clients together, after a burst of 10."""
RATE_TRIES: Final = 100
MOVED_HINT: Final = (
    "it moves with kubelet's --root-dir, the folder of device plugins does not: name "
    "ROOT/pod-resources/kubelet.sock by --pod-resources-socket and mount that folder (k0s: "
    "/var/lib/k0s/kubelet, MicroK8s: /var/snap/microk8s/common/var/lib/kubelet; "
    "daemonset/overlays/kubelet-root)"
)
_RATE_LIMITED: Final = grpc.StatusCode.RESOURCE_EXHAUSTED


class KubeletPodResources:
    """ports.PodResources over kubelet's socket; a restarted kubelet gets a new channel."""

    def __init__(self, socket: Path, stop: threading.Event, timeout_s: float = TIMEOUT_S) -> None:
        self._socket = socket
        self._stop = stop
        self._timeout_s = timeout_s
        self._one_at_a_time = threading.Lock()  # held over the call: a channel is not shared
        self._channel: grpc.Channel | None = None
        self._lister: PodResourcesListerStub
        self._inode: int | None = None
        self._answered: int | None = None

    def list(self, deadline: Deadline | None = None) -> tuple[HeldContainer, ...]:
        """Every container that kubelet lists, in its order.

        Args:
            deadline: when the caller's time is over; the usual limit applies as well.

        Raises:
            KubeletError: the socket can't be read.
        """
        if not self._one_at_a_time.acquire(timeout=-1 if deadline is None else deadline.left_s()):
            raise KubeletError(f"pod-resources socket {self._socket}: other calls take too long")
        try:
            answer = self._answer(deadline)
            self._answered = self._inode
        except FileNotFoundError as e:
            self._drop()
            raise KubeletError(f"{self._socket} is not there: {MOVED_HINT}") from e
        except (grpc.RpcError, OSError) as e:
            self._drop()
            code = e.code().name if isinstance(e, grpc.Call) else str(e)
            raise KubeletError(f"pod-resources socket {self._socket}: {code}") from e
        finally:
            self._one_at_a_time.release()
        return tuple(
            HeldContainer(
                namespace=pod.namespace,
                pod=pod.name,
                container=container.name,
                device_ids=_ids_by_resource(container),
            )
            for pod in answer.pod_resources
            for container in pod.containers
        )

    def is_readable(self) -> bool:
        """True if this socket has answered; called often, so it lists only once per socket."""
        try:
            if self._answered != self._socket.stat().st_ino:
                self.list()
        except (KubeletError, OSError):
            return False
        return True

    def close(self) -> None:
        """Drop the channel; the next call opens another."""
        with self._one_at_a_time:
            self._drop()

    def _drop(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._channel = None
        self._answered = None

    def _answer(self, deadline: Deadline | None) -> api.ListPodResourcesResponse:
        """One list; a call that kubelet refuses only for its rate is retried."""
        for tries_left in reversed(range(RATE_TRIES)):
            limit_s = self._timeout_s
            if deadline is not None:
                limit_s = min(limit_s, deadline.left_s())
            try:
                answer: api.ListPodResourcesResponse = self._stub().List(
                    api.ListPodResourcesRequest(), timeout=limit_s
                )
            except grpc.RpcError as e:
                is_rate = isinstance(e, grpc.Call) and e.code() is _RATE_LIMITED
                if not is_rate or not tries_left or self._stop.wait(RATE_WAIT_S):
                    raise
            else:
                return answer
        raise AssertionError("the last try returns or raises")

    def _stub(self) -> PodResourcesListerStub:
        inode = self._socket.stat().st_ino
        if self._channel is None or inode != self._inode:
            self._drop()
            self._inode = inode
            # kubelet's list can exceed gRPC's default of 4 MiB on a node with many pods
            self._channel = grpc.insecure_channel(
                f"unix:{self._socket}",
                options=[("grpc.max_receive_message_length", 64 * 1024 * 1024)],
            )
            self._lister = PodResourcesListerStub(self._channel)
        return self._lister


def _ids_by_resource(container: api.ContainerResources) -> dict[str, tuple[str, ...]]:
    held: dict[str, tuple[str, ...]] = {}
    for devices in container.devices:
        held[devices.resource_name] = held.get(devices.resource_name, ()) + tuple(
            devices.device_ids
        )
    return held
