"""The daemon's one loop: steps that look at what is there, and mend what differs.

Nothing is queued: what a step could not do it finds again at its next look. A step that raises is
tried again after a back-off of its own. One that hangs, on a disk, the driver or the API server, is
left to its thread until it returns, and the others go on without it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from hami_node.errors import HamiError
from hami_node.logs import kv
from hami_node.ports import Clock

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
LIMIT_S: Final = 0.5
"""How long the other steps wait for one."""
END_S: Final = 3.0
"""How long the end of each may take: the process is about to end."""
HANGS_S: Final = 3.0
"""When the log names one that does not return."""


@dataclass(slots=True)
class Step:
    """Something that is compared again and again. It never runs twice at once.

    Attributes:
        look: one pass; seconds until the next one, or None.
        end: what is done once after the last pass.
        every_s: seconds until the next look, where that does not say; None: after a change.
        follows_changes: look after every change of cards, pods, node and configuration.
        settle_s: how long after a change: what changes together is looked at once.
        longest_pause_s: how long it is left alone at most after it has failed.
    """

    name: str
    look: Callable[[], float | None]
    end: Callable[[], None] | None = None
    every_s: float | None = None
    follows_changes: bool = True
    settle_s: float = 0.0
    longest_pause_s: float = LONGEST_PAUSE_S

    # the loop's; times are on the clock that never jumps
    due_s: float = field(default=-math.inf, init=False)
    held_until_s: float = field(default=-math.inf, init=False)
    failures: int = field(default=0, init=False)
    began_s: float = field(default=0.0, init=False)
    thread: threading.Thread | None = field(default=None, init=False)
    is_running: bool = field(default=False, init=False)
    has_complained: bool = field(default=False, init=False)

    @property
    def next_s(self) -> float:
        """When it looks again."""
        return max(self.due_s, self.held_until_s)


class Loop:
    """Runs the steps in their order, one at a time as long as none of them hangs."""

    def __init__(self, steps: Sequence[Step], clock: Clock) -> None:
        """All steps are due at once."""
        self._clock = clock
        self._mutex, self._changed = threading.Lock(), threading.Event()
        self._steps = tuple(steps)
        self._fatal: BaseException | None = None

    def wake(self, *names: str) -> None:
        """Something changed: these steps look soon; without a name, all that follow changes."""
        now_s = self._clock.monotonic()
        with self._mutex:
            for step in self._steps:
                if step.name in names or (not names and step.follows_changes):
                    step.due_s = min(step.due_s, now_s + step.settle_s)
        self._changed.set()

    def close(self) -> None:
        """After stop is set: end the wait."""
        self._changed.set()

    def run(self, stop: threading.Event) -> None:
        """Look until stopped; then let each step end."""
        while not stop.is_set():
            wait_s = self._wait_s()
            if wait_s is None or wait_s > 0:
                self._clock.wait(self._changed, wait_s)
                self._changed.clear()
            for step in self._steps:
                if not stop.is_set() and self._is_due(step):
                    self._bounded(step, self._pass, LIMIT_S)
            self._complain()
        for step in self._steps:
            if step.end is not None:
                if step.thread is not None:
                    step.thread.join(END_S)
                if not step.is_running:
                    self._bounded(step, self._end, END_S)

    def _wait_s(self) -> float | None:
        """Seconds until a step is due; None where only a change makes one due."""
        with self._mutex:
            waiting = (each.next_s for each in self._steps if not each.is_running)
            next_s = min(waiting, default=math.inf)
        return None if next_s == math.inf else next_s - self._clock.monotonic()

    def _is_due(self, step: Step) -> bool:
        now_s = self._clock.monotonic()
        with self._mutex:
            is_due = not step.is_running and step.next_s <= now_s
            if is_due:
                step.due_s = math.inf
        return is_due

    def _bounded(self, step: Step, work: Callable[[Step], None], limit_s: float) -> None:
        """Let it work in a thread, which is left alone after the limit."""
        step.began_s, step.has_complained = self._clock.monotonic(), False

        def run() -> None:
            try:
                work(step)
            except BaseException as e:  # noqa: BLE001 - raised again in the loop's own thread
                self._fatal = e
            finally:
                step.is_running = False
                self._changed.set()

        thread = threading.Thread(target=run, name=step.name, daemon=True)
        step.thread, step.is_running = thread, True
        try:
            thread.start()
        except RuntimeError as e:  # the node has no thread left for us
            step.thread, step.is_running = None, False
            self._after(step, None, e)
        else:
            thread.join(limit_s)
        if self._fatal is not None:
            raise self._fatal

    def _complain(self) -> None:
        """Name the steps that do not return, once for each time."""
        now_s = self._clock.monotonic()
        for step in self._steps:
            is_hanging = step.is_running and now_s - step.began_s > HANGS_S
            if is_hanging and not step.has_complained:
                step.has_complained = True
                log.warning("step_hangs", extra=kv(step=step.name, for_s=now_s - step.began_s))

    def _pass(self, step: Step) -> None:
        try:
            self._after(step, step.look(), None)
        except Exception as e:  # noqa: BLE001 - any bug: the daemon serves on
            self._after(step, None, e)

    def _after(self, step: Step, next_s: float | None, error: Exception | None) -> None:
        """When the step looks again."""
        pause_s = 0.0
        if error is None:
            step.failures = 0
            next_s = step.every_s if next_s is None else next_s
        else:
            step.failures += 1
            longest_s, next_s = step.longest_pause_s, 0.0
            pause_s = min(FIRST_PAUSE_S * 2.0 ** min(step.failures, 16), longest_s)
            fields = kv(step=step.name, error=str(error), retry_s=pause_s)
            if isinstance(error, HamiError):
                log.warning("step_failed", extra=fields)
            else:
                log.error("step_broken", extra=fields, exc_info=error)
        with self._mutex:
            now_s = self._clock.monotonic()
            step.due_s = min(step.due_s, math.inf if next_s is None else now_s + next_s)
            step.held_until_s = now_s + pause_s

    def _end(self, step: Step) -> None:
        try:
            if step.end is not None:
                step.end()
        except HamiError as e:
            log.warning("step_failed", extra=kv(step=step.name, error=str(e)))
        except Exception:
            log.exception("step_broken", extra=kv(step=step.name))
