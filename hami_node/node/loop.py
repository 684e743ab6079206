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
HANGS_S: Final = 3.0
"""When the log names one that does not return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Something that is compared again and again. It never runs twice at once.

    Attributes:
        look: one pass; seconds until the next one, None: not before something changes.
        end: what is done once after the last pass.
        follows_changes: look after every change of cards, pods, node and configuration.
        settle_s: how long after a change: what changes together is looked at once.
        longest_pause_s: how long it is left alone at most after it has failed.
    """

    name: str
    look: Callable[[], float | None]
    end: Callable[[], None] | None = None
    follows_changes: bool = False
    settle_s: float = 0.0
    longest_pause_s: float = LONGEST_PAUSE_S


@dataclass(slots=True)
class _Progress:
    """Of one step. `due_s` and `held_until_s` are on the clock that never jumps."""

    due_s: float = -math.inf
    held_until_s: float = -math.inf
    failures: int = 0
    began_s: float = 0.0
    has_complained: bool = False
    done: threading.Event = field(default_factory=threading.Event)


class Loop:
    """Runs the steps in their order, in one thread as long as none of them hangs."""

    def __init__(self, steps: Sequence[Step], clock: Clock) -> None:
        """All steps are due at once."""
        self._steps = {step.name: step for step in steps}
        self._clock = clock
        self._mutex, self._changed = threading.Lock(), threading.Event()
        self._progress = {name: _Progress() for name in self._steps}
        for progress in self._progress.values():
            progress.done.set()
        self._fatal: BaseException | None = None

    def wake(self, *names: str) -> None:
        """Something changed: these steps look soon; without a name, all that follow changes."""
        now_s = self._clock.monotonic()
        with self._mutex:
            for name in names or [
                step.name for step in self._steps.values() if step.follows_changes
            ]:
                progress = self._progress[name]
                progress.due_s = min(progress.due_s, now_s + self._steps[name].settle_s)
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
            for step in self._steps.values():
                if self._is_due(step) and not stop.is_set():
                    self._bounded(step, self._pass)
            self._complain()
        for step in self._steps.values():
            if step.end is not None and self._progress[step.name].done.wait(LIMIT_S):
                self._bounded(step, self._end)

    def _wait_s(self) -> float | None:
        """Seconds until a step is due; None where only a change makes one due."""
        with self._mutex:
            due_s = min(
                (
                    max(it.due_s, it.held_until_s)
                    for it in self._progress.values()
                    if it.done.is_set()
                ),
                default=math.inf,
            )
        return None if math.isinf(due_s) and due_s > 0 else due_s - self._clock.monotonic()

    def _is_due(self, step: Step) -> bool:
        now_s = self._clock.monotonic()
        with self._mutex:
            progress = self._progress[step.name]
            is_due = progress.done.is_set() and max(progress.due_s, progress.held_until_s) <= now_s
            if is_due:
                progress.due_s = math.inf
        return is_due

    def _bounded(self, step: Step, work: Callable[[Step], None]) -> None:
        progress = self._progress[step.name]
        progress.began_s, progress.has_complained = self._clock.monotonic(), False
        done = progress.done
        done.clear()

        def run() -> None:
            try:
                work(step)
            except BaseException as e:  # noqa: BLE001 - raised again in the loop's own thread
                self._fatal = e
            finally:
                done.set()
                self._changed.set()

        try:
            threading.Thread(target=run, name=step.name, daemon=True).start()
        except RuntimeError as e:  # the node has no thread left for us
            done.set()
            self._after(step, 0.0, e)
        done.wait(LIMIT_S)
        if self._fatal is not None:
            raise self._fatal

    def _complain(self) -> None:
        """Name the steps that do not return, once for each time."""
        now_s = self._clock.monotonic()
        for name, progress in self._progress.items():
            is_hanging = not progress.done.is_set() and now_s - progress.began_s > HANGS_S
            if is_hanging and not progress.has_complained:
                progress.has_complained = True
                log.warning("step_hangs", extra=kv(step=name, for_s=now_s - progress.began_s))

    def _pass(self, step: Step) -> None:
        try:
            self._after(step, step.look(), None)
        except Exception as e:  # noqa: BLE001 - any bug: the daemon serves on
            self._after(step, 0.0, e)

    def _after(self, step: Step, next_s: float | None, error: Exception | None) -> None:
        """When the step looks again."""
        progress, pause_s = self._progress[step.name], 0.0
        if error is None:
            progress.failures = 0
        else:
            progress.failures += 1
            longest_s = step.longest_pause_s
            pause_s = min(FIRST_PAUSE_S * 2.0 ** min(progress.failures, 16), longest_s)
            fields = kv(step=step.name, error=str(error), retry_s=pause_s)
            if isinstance(error, HamiError):
                log.warning("step_failed", extra=fields)
            else:
                log.error("step_broken", extra=fields, exc_info=error)
        next_s = math.inf if next_s is None else next_s
        with self._mutex:
            now_s = self._clock.monotonic()
            progress.due_s = min(progress.due_s, now_s + next_s)
            progress.held_until_s = now_s + pause_s

    def _end(self, step: Step) -> None:
        try:
            if step.end is not None:
                step.end()
        except Exception:
            log.exception("step_broken", extra=kv(step=step.name))
