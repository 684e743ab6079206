"""The lead is handed over: this replica goes on deciding until another one can take over at once.

It says in the Lease that it is about to leave, so that the others look often; then it gives cards
to no more pods, binds those that have some, and releases the Lease. Calls that arrive after that
are held until the other one stands in the EndpointSlice, and sent there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from hami_node.extender.http.held_calls import Advice
from hami_node.extender.leading.endpoint import LeaderEndpoint
from hami_node.extender.leading.readiness import Readiness
from hami_node.logs import kv
from hami_node.ports import Clock

log: Final = logging.getLogger(__name__)

BINDS_S: Final = 0.15
"""Binds follow their filter call within milliseconds, unless volumes have to be bound first."""
DRAIN_S: Final = 0.5
"""Decisions that take longer, such as a bind that waits for a lock, are made by the next leader."""
TAKE_OVER_S: Final = 3.0
"""If nobody has taken over after so long, there is nobody."""
QUIET_S: Final = 1.5
"""No call for so long: kube-proxy leads them all to the other replica."""
LINGER_S: Final = 5.0
LOOK_S: Final = 0.01


class HandOver:
    """Knows what becomes of calls while the lead changes, and changes it."""

    def __init__(self, readiness: Readiness, endpoint: LeaderEndpoint | None, clock: Clock) -> None:
        """Without an `endpoint` calls are not sent to another replica."""
        self._readiness, self._endpoint, self._clock = readiness, endpoint, clock
        self._sent_on_s = 0.0

    def advice(self) -> Advice:
        """What becomes of a call that was not decided."""
        readiness, endpoint = self._readiness, self._endpoint
        if readiness.is_taking_decisions():
            return Advice.AGAIN
        if readiness.is_beginning():
            return Advice.WAIT
        if endpoint is None or not endpoint.has_led_lately():
            return Advice.REFUSE
        if not endpoint.is_elsewhere():
            return Advice.WAIT
        self._sent_on_s = self._clock.monotonic()
        return Advice.ELSEWHERE

    def run(
        self, running: Callable[[], int], release: Callable[[], None], stop: threading.Event
    ) -> None:
        """Hand over if this replica leads, and stay until all calls reach the other one.

        Args:
            running: how many calls are worked on.
            release: begins to release the Lease.
            stop: ends all waits.
        """
        leader, endpoint = self._readiness.leader, self._endpoint
        if leader is None or endpoint is None or not self._readiness.is_leading():
            return
        log.info("leader_leaves", extra=kv(slice=endpoint.name()))
        stop.wait(leader.leave())
        self._readiness.close_to_new()
        stop.wait(BINDS_S)
        self._readiness.close()
        self._until(lambda: not running(), DRAIN_S, stop)
        release()
        if not self._until(endpoint.is_elsewhere, TAKE_OVER_S, stop):
            log.warning("nobody_takes_over", extra=kv(slice=endpoint.name()))
            return
        self._sent_on_s = self._clock.monotonic()
        self._until(lambda: self._clock.monotonic() - self._sent_on_s > QUIET_S, LINGER_S, stop)
        log.info("leader_left", extra=kv(slice=endpoint.name()))

    def _until(self, is_true: Callable[[], bool], limit_s: float, stop: threading.Event) -> bool:
        ends_s = self._clock.monotonic() + limit_s
        while not is_true():
            if self._clock.monotonic() > ends_s or stop.wait(LOOK_S):
                return False
        return True
