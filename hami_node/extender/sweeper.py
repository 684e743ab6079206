"""Enables decisions once everything is listed, then drops what no longer counts."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import Final

from hami_node.cluster.watching.views import WatchedCluster
from hami_node.errors import KubeError, NotFound, NotLeading, PodTaken
from hami_node.extender import memory
from hami_node.extender.late_binding import settle_late
from hami_node.extender.leading.readiness import Readiness
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.extender.state.handshakes import HandshakeKeeper
from hami_node.extender.state.reservation_writer import ReservationWriter
from hami_node.logs import kv
from hami_node.ports import Clock, Fence

log = logging.getLogger(__name__)

SWEEP_S: Final = 15.0
SYNC_CHECK_S: Final = 0.05
TERM_CHECK_S: Final = 0.25
GIVE_BACK_S: Final = 60.0
"""Between two times at which freed memory goes back to the system: it takes milliseconds."""
CLEARING_S: Final = 5.0
"""No leftover is cleared later in a sweep: a call that hangs takes many seconds."""


class Sweeper:
    """`run` is a thread's body."""

    def __init__(
        self,
        state: ClusterState,
        view: WatchedCluster,
        writer: ReservationWriter,
        handshakes: HandshakeKeeper,
        readiness: Readiness,
        *,
        clock: Clock,
        scheduler_name: str,
    ) -> None:
        """Sweep `state`; leftovers are removed from pods of `scheduler_name` only."""
        self._state, self._view, self._writer = state, view, writer
        self._handshakes, self._readiness = handshakes, readiness
        self._clock, self._scheduler_name = clock, scheduler_name
        self._tried: frozenset[str] = frozenset()
        self._gave_back_s = clock.monotonic()

    def run(self, stop: threading.Event) -> None:
        """Wait for the first lists and catch up with them; then sweep until stopped."""
        with memory.collecting_seldom():
            while not self._readiness.is_listed():
                if stop.wait(SYNC_CHECK_S):
                    return
            if self._readiness.leader is None:  # the process before this one had the only term
                self._state.begin_term(self._scheduler_name)
            self._state.catch_up()
            memory.settle()
        self._readiness.settled.set()
        nodes, pods = self._view.node_watch.size(), self._view.pod_watch.size()
        log.info("synced", extra=kv(nodes=nodes, pods=pods))
        while not stop.is_set():
            self.sweep()
            self._handshakes.look()
            self._give_back()
            self._rest(stop)

    def _give_back(self) -> None:
        now_s = self._clock.monotonic()
        if now_s - self._gave_back_s >= GIVE_BACK_S:
            self._gave_back_s = now_s
            memory.give_back()

    def _rest(self, stop: threading.Event) -> None:
        """Until the next sweep: soon after a term begins, for the cards of void reservations."""
        begun = self._readiness.begun
        for _ in range(round(SWEEP_S / TERM_CHECK_S)):
            if stop.wait(TERM_CHECK_S) or begun.is_set():
                begun.clear()
                return

    def sweep(self) -> None:
        """Drop what no longer counts, and remove it from the pods."""
        version = self._view.pod_watch.version()  # read first, so that the pods are not older
        present = {pod.uid for pod in self._view.pod_watch.cache.unsorted()}
        self._state.sweep(present, version)
        if self._readiness.is_leading():
            with suppress(NotLeading):
                self._clear_leftovers(self._readiness.require_lead())

    def _clear_leftovers(self, fence: Fence) -> None:
        end_s = self._clock.monotonic() + CLEARING_S
        pods = self._state.leftovers()
        # those that took all the time of the sweep before, to no avail, come last
        tried = self._tried & {pod.uid for pod in pods}
        self._tried = tried
        for pod in sorted(pods, key=lambda pod: pod.uid in tried):
            is_late = self._state.is_late(pod.uid)
            if not is_late and pod.scheduler_name != self._scheduler_name:
                continue  # its own scheduler may still bind it, and its plugin reads this
            if self._clock.monotonic() > end_s:
                return
            self._tried = self._tried | {pod.uid}
            try:
                if is_late:
                    settle_late(self._state, self._writer, pod, fence)
                    continue
                self._state.learned(self._writer.clear(pod, fence))
            except PodTaken as e:
                self._state.learned(e.pod)
                if e.pod.uid != pod.uid:
                    self._state.pod_changed(pod, None)
            except NotFound:
                self._state.pod_changed(pod, None)
            except KubeError as e:
                log.debug("leftover_not_cleared", extra=kv(pod=pod.key, error=str(e)))
