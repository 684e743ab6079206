"""Bindings while they are under way, and after they have failed.

Of the cards in a Binding that carries its reservation nobody but this replica knows. So it ends
before another replica can lead: it is either stored, and the next leader's watch shows it, or it
never will be.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from hami_node.extender.state.counted_pod import reservation_marks
from hami_node.model import Pod
from hami_node.ports import ExtenderKube
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names


class Sending:
    """Thread-safe."""

    def __init__(self, left_s: Callable[[], float | None] = lambda: None) -> None:
        """`left_s` says for how many seconds no other replica can lead; None for ever."""
        self._left_s = left_s
        self._changed = threading.Condition()
        self._count = 0

    def bind(
        self,
        kube: ExtenderKube,
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
        try:
            kube.bind_pod(pod, node, annotations, self._left_s())
        finally:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()

    def wait(self, limit_s: float) -> bool:
        """Wait until none is under way; False if one still was after `limit_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._count, limit_s)


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
