"""Passes over the cards on a thread of their own, which is replaced when an NVML call hangs.

A call into a driver can't be cancelled. The thread that waits for it is abandoned, the queried card
is left out of later passes until that call returns, and a new thread continues with the others.
While a driver-wide call hangs nothing can continue: callers get an error, no thread is added. So
there are never more threads than cards, plus one.

Between passes the same thread does jobs, each about one card: what changes a card never meets a
pass that reads it, and what has become of a job that hangs is asked of the card, once it answers.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Generic, TypeVar

from hami_node.clock import Deadline
from hami_node.errors import BackendError, DriverUnavailable
from hami_node.logs import kv
from hami_node.ports import Clock
from hami_node.vendors.nvidia.nvml.calls import Abandoned, Call, NvmlCalls

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")


class JobUnanswered(BackendError):
    """A job has no outcome in time. Only a look at its card tells what became of it."""


class _Job:
    """Work about one card, and its outcome; the worker's lock guards the outcome."""

    def __init__(self, card: int, work: Callable[[NvmlCalls], Any], deadline: Deadline) -> None:
        self.card, self.work, self.deadline = card, work, deadline
        self.has_begun = self.is_over = False
        self.result: Any = None
        self.error: Exception | None = None

    def end(self, result: Any = None, error: Exception | None = None) -> None:  # noqa: ANN401
        """The first outcome counts: who was told that it hangs must not find a result later."""
        if not self.is_over:
            self.is_over, self.result, self.error = True, result, error


class PassWorker(Generic[T]):
    """Runs `one_pass` every `interval_s` and on demand, keeps its last result; does jobs."""

    def __init__(
        self,
        clock: Clock,
        one_pass: Callable[[NvmlCalls], T],
        on_stop: Callable[[NvmlCalls], None],
        *,
        interval_s: Callable[[], float],
        call_limit_s: float,
        sees_all_processes: bool = True,
    ) -> None:
        """The first thread starts with the first request.

        Args:
            clock: measures how long calls take.
            one_pass: runs on the worker's thread; every NVML call goes through its argument.
            on_stop: runs last on the worker's thread, when no call hangs.
            interval_s: time between passes without a request; asked before each wait.
            call_limit_s: a call that takes longer counts as hung.
            sees_all_processes: see `NvmlCalls`.
        """
        self._clock, self._sees_all_processes = clock, sees_all_processes
        self._one_pass = one_pass
        self._on_stop = on_stop
        self._interval_s = interval_s
        self._call_limit_s = call_limit_s
        self._state = threading.Condition()
        self._calls: NvmlCalls | None = None
        self._thread: threading.Thread | None = None
        self._hung: dict[int, Call] = {}
        self._jobs: deque[_Job] = deque()
        self._job: _Job | None = None
        self._requested = 0
        self._done = 0
        self._result: T | None = None
        self._error: BackendError | None = None
        self._error_at: TracebackType | None = None
        self._begun_s = self._finished_s = clock.monotonic()
        self._is_stopped = False

    def request(self) -> int:
        """Request a pass that starts from now on; returns its ticket. Never waits."""
        with self._state:
            self._requested += 1
            self._wake()
            return self._requested

    def do(self, card: int, work: Callable[[NvmlCalls], R], deadline: Deadline) -> R:
        """Do work about one card between two passes; jobs are done in the order in which they come.

        Every call that the work makes has to name the card. A job that was not begun by its
        deadline is dropped; one that was begun goes on, and nobody hears of its outcome.

        Args:
            card: its index; while a call of it hangs, no job of it is begun.
            work: runs on the worker's thread.
            deadline: when an answer is due, whatever the driver does.

        Raises:
            JobUnanswered: there is no outcome: the card hangs, or the time was too short.
            Exception: whatever ended the work.
        """
        job = _Job(card, work, deadline)
        with self._state:
            self._jobs.append(job)
            self._wake()
        self.wait_until(lambda: job.is_over or card in self._hung, deadline.left_s())
        with self._state:
            if not job.is_over:
                job.end(error=self._unanswered(job))
            if not job.has_begun and job in self._jobs:
                self._jobs.remove(job)
        if job.error is not None:
            raise job.error
        result: R = job.result
        return result

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
        """Wait until that is true, checked after every pass and job. False on timeout."""
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
            if self._job is not None:
                self._job.end(error=JobUnanswered(call.overdue_text(self._call_limit_s)))
                self._job = None
            self._start()

    def _unanswered(self, job: _Job) -> JobUnanswered:
        """Why there is no outcome. Called with the lock held."""
        hung = self._hung.get(job.card)
        if hung is not None:
            return JobUnanswered(hung.overdue_text(self._call_limit_s))
        if self._is_stopped:
            return JobUnanswered("the daemon ends")
        call = self._calls.current if self._calls else None
        where = f"NVML call {call.function} has not answered" if call else "NVML is busy"
        return JobUnanswered(where if job.has_begun else f"{where}; nothing was begun")

    def _wake(self) -> None:
        """Called with the lock held."""
        if self._thread is None and not self._is_stopped:
            self._start()
        self._state.notify_all()

    def _start(self) -> None:
        calls = self._calls = NvmlCalls(self._clock, sees_all_processes=self._sees_all_processes)
        self._thread = threading.Thread(
            target=self._run, args=(calls,), name="nvml-pass", daemon=True
        )
        self._thread.start()

    def _run(self, calls: NvmlCalls) -> None:
        try:
            while (step := self._next_step()) is not None:
                if isinstance(step, _Job):
                    self._do_job(calls, step)
                else:
                    self._pass_over_cards(calls, step)
            if not self.hung():
                self._on_stop(calls)
        except Abandoned:
            self._forget_hung(calls)

    def _do_job(self, calls: NvmlCalls, job: _Job) -> None:
        result: Any = None
        error: Exception | None = None
        try:
            result = job.work(calls)
        except Exception as e:  # noqa: BLE001  its caller decides what it means
            error = e
        with self._state:
            job.end(result, error)
            self._job = None
            self._state.notify_all()

    def _pass_over_cards(self, calls: NvmlCalls, ticket: int) -> None:
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

    def _next_step(self) -> _Job | int | None:
        """The job or the ticket of the pass that comes next; None at the end.

        Jobs first, but however many come, the passes go on: the cards' health depends on them.
        """
        with self._state:
            while not self._is_stopped:
                now_s, interval_s = self._clock.monotonic(), self._interval_s()
                is_starved = now_s - self._begun_s >= interval_s + self._call_limit_s
                job = None if is_starved else self._next_job()
                if job is not None:
                    return job
                left_s = self._finished_s + interval_s - now_s
                if left_s <= 0 or self._requested > self._done:
                    self._begun_s = now_s
                    return self._requested
                self._state.wait(left_s)
            return None

    def _next_job(self) -> _Job | None:
        """Take the next job that may be begun. Called with the lock held."""
        while self._jobs:
            job = self._jobs.popleft()
            if job.card in self._hung or job.deadline.left_s() <= 0:
                job.end(error=self._unanswered(job))
                self._state.notify_all()
            elif not job.is_over:
                job.has_begun, self._job = True, job
                return job
        return None

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
