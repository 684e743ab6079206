"""Passes over the cards on a thread of their own, which is replaced when an NVML call hangs.

A call into a driver can't be cancelled. The thread that waits for it is abandoned, the queried card
is left out of later passes until that call returns, and a new thread continues with the others.
While a driver-wide call hangs nothing can continue: callers get an error, no thread is added. So
there are never more threads than cards, plus one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Generic, TypeVar

from hami_node.errors import BackendError, DriverUnavailable
from hami_node.logs import kv
from hami_node.ports import Clock
from hami_node.vendors.nvidia.nvml.calls import Abandoned, Call, NvmlCalls

log = logging.getLogger(__name__)

T = TypeVar("T")


class PassWorker(Generic[T]):
    """Runs `one_pass` every `interval_s` and on demand; keeps its last result."""

    def __init__(
        self,
        clock: Clock,
        one_pass: Callable[[NvmlCalls], T],
        on_stop: Callable[[NvmlCalls], None],
        *,
        interval_s: Callable[[], float],
        call_limit_s: float,
    ) -> None:
        """The first thread starts with the first request.

        Args:
            clock: measures how long calls take.
            one_pass: runs on the worker's thread; every NVML call goes through its argument.
            on_stop: runs last on the worker's thread, when no call hangs.
            interval_s: time between passes without a request; asked before each wait.
            call_limit_s: a call that takes longer counts as hung.
        """
        self._clock = clock
        self._one_pass = one_pass
        self._on_stop = on_stop
        self._interval_s = interval_s
        self._call_limit_s = call_limit_s
        self._state = threading.Condition()
        self._calls: NvmlCalls | None = None
        self._thread: threading.Thread | None = None
        self._hung: dict[int, Call] = {}
        self._requested = 0
        self._done = 0
        self._result: T | None = None
        self._error: BackendError | None = None
        self._error_at: TracebackType | None = None
        self._finished_s = clock.monotonic()
        self._is_stopped = False

    def request(self) -> int:
        """Request a pass that starts from now on; returns its ticket. Never waits."""
        with self._state:
            self._requested += 1
            if self._thread is None and not self._is_stopped:
                self._start()
            self._state.notify_all()
            return self._requested

    def wait(self, ticket: int, timeout_s: float) -> bool:
        """Wait until the pass of that ticket has ended. False on timeout."""
        return self.wait_until(lambda: self._done >= ticket, timeout_s)

    def last(self) -> T | None:
        """The result of the last pass, None before the first has ended.

        Raises:
            DriverUnavailable: a driver-wide call hangs.
            BaseException: whatever ended the last pass.
        """
        with self._state:
            call = self._calls.current if self._calls else None
            if call is not None and self._is_overdue(call) and call.card is None:
                raise DriverUnavailable(call.overdue_text(self._call_limit_s))
            if self._error is not None:
                raise self._error.with_traceback(self._error_at)  # or it would grow at each raise
            return self._result

    def hung(self) -> Mapping[int, Call]:
        """The calls that were abandoned and have not returned, by card index."""
        with self._state:
            return dict(self._hung)

    def current(self) -> Call | None:
        """The pending call."""
        with self._state:
            return self._calls.current if self._calls else None

    def age_s(self) -> float:
        """Seconds since a pass last ended, with or without an error."""
        with self._state:
            return self._clock.monotonic() - self._finished_s

    def stop(self, timeout_s: float) -> bool:
        """End the thread. False if a call hangs beyond the timeout: `on_stop` has not run then."""
        with self._state:
            self._is_stopped = True
            self._state.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        return thread is None or not thread.is_alive()

    def wait_until(self, is_over: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until that is true, checked after every pass. False on timeout."""
        deadline_s = self._clock.monotonic() + timeout_s
        with self._state:
            while not is_over():
                left_s = deadline_s - self._clock.monotonic()
                if left_s <= 0 or self._is_stopped:
                    return False
                self._replace_hung()
                self._state.wait(min(left_s, self._until_overdue_s()))
            return True

    def _until_overdue_s(self) -> float:
        """Seconds until the pending call has to be checked, or whether there is one."""
        call = self._calls.current if self._calls else None
        half_s = self._call_limit_s / 2
        if call is None or self._is_overdue(call):
            return half_s
        return min(call.since_s + self._call_limit_s - self._clock.monotonic() + 0.001, half_s)

    def _is_overdue(self, call: Call) -> bool:
        return self._clock.monotonic() - call.since_s >= self._call_limit_s

    def _replace_hung(self) -> None:
        """Abandon a thread whose card hangs. Called with the lock held."""
        calls = self._calls
        call = calls.current if calls else None
        if calls is None or call is None or call.card is None or not self._is_overdue(call):
            return
        if calls.abandon(call):
            self._hung[call.card] = call
            log.error("nvml_call_hangs", extra=kv(function=call.function, card=call.card))
            self._requested += 1
            self._start()

    def _start(self) -> None:
        calls = self._calls = NvmlCalls(self._clock)
        self._thread = threading.Thread(
            target=self._run, args=(calls,), name="nvml-pass", daemon=True
        )
        self._thread.start()

    def _run(self, calls: NvmlCalls) -> None:
        try:
            while (ticket := self._next_ticket()) is not None:
                result: T | None = None
                error: BackendError | None = None
                try:
                    result = self._one_pass(calls)
                except BackendError as e:
                    error = e
                except Exception as e:
                    error = DriverUnavailable(f"a pass over the cards failed: {type(e).__name__}")
                    error.__cause__ = e
                    log.debug("nvml_pass_failed", exc_info=True)
                self._finish(ticket, result, error)
            if not self.hung():
                self._on_stop(calls)
        except Abandoned:
            self._forget_hung(calls)

    def _next_ticket(self) -> int | None:
        with self._state:
            self._state.wait_for(
                lambda: self._is_stopped or self._requested > self._done, self._interval_s()
            )
            return None if self._is_stopped else self._requested

    def _finish(self, ticket: int, result: T | None, error: BackendError | None) -> None:
        with self._state:
            self._done, self._error = ticket, error
            self._error_at = error.__traceback__ if error else None
            if error is None:
                self._result = result
            self._finished_s = self._clock.monotonic()
            self._state.notify_all()

    def _forget_hung(self, calls: NvmlCalls) -> None:
        """The abandoned call has returned after all: its card may be queried again."""
        with self._state:
            call = calls.abandoned_call
            if call is not None and call.card is not None and self._hung.get(call.card) is call:
                del self._hung[call.card]
                log.info("nvml_call_returned", extra=kv(function=call.function, card=call.card))
                self._requested += 1
            self._state.notify_all()
