"""Settles a Binding that was not answered: it may still arrive."""

from __future__ import annotations

from hami_node.errors import NotFound, PodTaken
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.extender.state.reservation_writer import ReservationWriter
from hami_node.model import Pod
from hami_node.ports import Fence
from hami_node.vendors.holding import has_grants


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
