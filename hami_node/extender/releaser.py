"""Gives cards back as soon as kube-scheduler has given a pod up after the filter."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from hami_node.errors import KubeError, NotLeading, PodTaken
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.extender.state.reservation_writer import ReservationWriter
from hami_node.logs import kv
from hami_node.model import Pod
from hami_node.ports import Clock, Fence
from hami_node.vendors.holding import has_grants

log = logging.getLogger(__name__)

LOOK_S: Final = 0.2
CLEARING_S: Final = 2.0
"""What is not removed from pods by then is left to the sweeper."""


class Releaser:
    """`run` is a thread's body."""

    def __init__(
        self,
        state: ClusterState,
        writer: ReservationWriter,
        clock: Clock,
        require_lead: Callable[[], Fence],
    ) -> None:
        """Release in `state`; the pods are written by whoever leads."""
        self._state, self._writer, self._clock = state, writer, clock
        self._require_lead = require_lead

    def run(self, stop: threading.Event) -> None:
        """Look until stopped."""
        while not stop.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """Release what is due; then remove it from the pods that carry it."""
        if released := self._state.take_given_up():
            with suppress(NotLeading):
                self._clear(released, self._require_lead())

    def _clear(self, pods: Iterable[Pod], fence: Fence) -> None:
        end_s = self._clock.monotonic() + CLEARING_S
        for pod in pods:
            if not has_grants(pod, self._state.rules.vendors):
                continue
            if self._clock.monotonic() > end_s or self._state.reservation_of(pod.uid):
                continue
            try:
                self._state.learned(self._writer.clear(pod, fence))
            except PodTaken as e:
                self._state.learned(e.pod)
            except KubeError as e:
                log.debug("release_not_cleared", extra=kv(pod=pod.key, error=str(e)))
