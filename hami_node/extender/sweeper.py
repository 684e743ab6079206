"""What a replica does without being asked, in a thread each: sweep, give back, wake.

The sweeper enables decisions once everything is listed, then drops what no longer counts. The
releaser gives cards back as soon as kube-scheduler has given a pod up after the filter. The waker
lets kube-scheduler take up the pods that wait, once a closed node is open or cards are free: it
asks again about a pod that an extender refused only when something has changed in the cluster. Of
what changes on a node, every version from 1.28 on heeds labels; annotations only from 1.30 on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from hami_node.cluster.client import KubeClient
from hami_node.cluster.watching.views import WatchedCluster
from hami_node.errors import KubeError, NotFound, NotLeading, PodTaken
from hami_node.extender import memory
from hami_node.extender.binding.sending import settle_late
from hami_node.extender.leading.readiness import Readiness
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.extender.state.handshakes import HandshakeKeeper
from hami_node.extender.state.reservation_writer import ReservationWriter
from hami_node.logs import kv
from hami_node.model import Pod
from hami_node.ports import Clock, Fence
from hami_node.vendors.holding import has_grants
from hami_node.wire import names

log = logging.getLogger(__name__)


LOOK_S: Final = 0.2
RELEASE_S: Final = 2.0
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
        end_s = self._clock.monotonic() + RELEASE_S
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


AT_ONCE: Final = 2
"""Nodes written after each look, so ten a second at most: kube-scheduler takes up every pod that
waits after each."""
RETRY_S: Final = 1.0


class Waker:
    """`run` is a thread's body."""

    def __init__(
        self, state: ClusterState, kube: KubeClient, clock: Clock, is_leading: Callable[[], bool]
    ) -> None:
        """Write nodes of `state` that pods have missed, while leading."""
        self._state, self._kube, self._clock = state, kube, clock
        self._is_leading = is_leading

    def run(self, stop: threading.Event) -> None:
        """Look until stopped."""
        rest_s = LOOK_S
        while not stop.wait(rest_s):
            rest_s = LOOK_S if self.look() else RETRY_S

    def look(self) -> bool:
        """Write what is due; False where that failed, and is due again."""
        if not self._is_leading():
            return True
        is_done = True
        for node in self._state.take_opened(AT_ONCE):
            stamp = str(round(self._clock.now() * 1000))
            try:
                self._kube.label_node(node, {names.OPENED_NODE: stamp})
            except NotFound:
                continue
            except KubeError as e:
                log.warning("node_not_opened", extra=kv(node=node, error=str(e)))
                self._state.not_opened(node)
                is_done = False
        return is_done


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
