"""Bindings while they are under way, and after they have failed.

Of the cards in a Binding that carries its reservation nobody but this replica knows. So it ends
before another replica can lead: it is either stored, and the next leader's watch shows it, or it
never will be. One that was not answered may be stored until its time is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from hami_node.cluster.client import KubeClient
from hami_node.errors import KubeError, NotFound, PodTaken
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.extender.state.pod_book import reservation_marks
from hami_node.extender.state.reservation_writer import ReservationWriter
from hami_node.model import Pod
from hami_node.ports import Fence
from hami_node.vendors.holding import has_grants
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names


class Sending:
    """Thread-safe."""

    def __init__(
        self,
        left_s: Callable[[], float | None] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`left_s` says for how many seconds no other replica can lead; None for ever."""
        self._left_s, self._monotonic = left_s, monotonic
        self._changed = threading.Condition()
        self._count = 0
        self._unanswered_until_s = 0.0

    def bind(
        self,
        kube: KubeClient,
        pod: Pod,
        node: str,
        annotations: Mapping[str, str],
        *,
        is_carried: bool,
    ) -> None:
        """Send a Binding; only one that carries its reservation has to end in time.

        Raises:
            KubeError: as `kube.bind_pod` does.
        """
        if not is_carried:
            kube.bind_pod(pod, node, annotations)
            return
        with self._changed:
            self._count += 1
        began_s, within_s = self._monotonic(), self._left_s()
        try:
            kube.bind_pod(pod, node, annotations, within_s)
        except KubeError as e:
            if e.is_transient and e.status != 429 and within_s is not None:
                with self._changed:
                    until_s = max(self._unanswered_until_s, began_s + within_s)
                    self._unanswered_until_s = until_s
            raise
        finally:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()

    def wait(self, limit_s: float) -> bool:
        """Wait until none is under way, here or there; False if one still was after `limit_s`."""
        ends_s = self._monotonic() + limit_s
        with self._changed:
            while True:
                now_s = self._monotonic()
                rest_s = self._unanswered_until_s - now_s
                if not self._count and rest_s <= 0:
                    return True
                if now_s >= ends_s:
                    return False
                left_s = ends_s - now_s
                self._changed.wait(left_s if self._count else min(left_s, rest_s))


def why_over(before: Pod, now: Pod, vendors: Sequence[VendorProtocol]) -> str:
    """Why a failed binding is not retried; "" if only unrelated fields of the pod changed."""
    if now.uid != before.uid:
        return "was replaced by another pod"
    if now.node_name:
        return f"is now bound to node {now.node_name}"
    if now.is_being_deleted or now.is_over:
        return "is being deleted or has ended"
    if before.annotations.get(names.POD_BIND_PHASE) != now.annotations.get(names.POD_BIND_PHASE):
        return "was given up by its node's daemon"
    if reservation_marks(before, vendors) != reservation_marks(now, vendors):
        return "carries another reservation by now"
    return ""


def settle_late(state: ClusterState, writer: ReservationWriter, pod: Pod, fence: Fence) -> None:
    """Find out whether the pod was bound, or write it so that it can't be any more.

    The Binding names the pod's version: once the pod was written, the API server refuses it, and
    only then its cards are free.

    Raises:
        NotLeading: by the fence.
        KubeError: the API server refuses or can't be reached; the cards stay charged.
    """
    latest = state.latest(pod.uid) or pod
    write = writer.clear if has_grants(latest, state.rules.vendors) else writer.seal
    try:
        state.learned(write(latest, fence))
    except PodTaken as e:
        state.learned(e.pod)
        if e.pod.uid != pod.uid:
            state.pod_changed(pod, None)
    except NotFound:
        state.pod_changed(pod, None)
