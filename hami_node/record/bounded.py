"""Work on a disk that may hang: the caller waits for a bounded time only."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from hami_node.clock import Deadline, SystemClock
from hami_node.errors import RecordError

T = TypeVar("T")


@dataclass(slots=True)
class _Job:
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None


class BoundedWork:
    """Does one thing at a time, each in a thread of its own. Not thread-safe: its owner locks."""

    def __init__(self, timeout_s: float, disk: str = "the disk of this node's record") -> None:
        """Wait for so long at most; `disk` is what is waited for, for people."""
        self._timeout_s, self._disk = timeout_s, disk
        self._last = _Job()
        self._last.done.set()

    def do(self, work: Callable[[], T], deadline: Deadline | None = None) -> T:
        """Do it, and return or raise as it does, by the deadline if that is sooner than usual.

        Raises:
            RecordError: it has not ended in time, or what was begun before has not; in the first
                case it may still happen.
        """
        limit = Deadline.after(self._timeout_s, SystemClock().monotonic)
        if deadline is not None:
            limit = limit.at_most(deadline.left_s())
        waited_s = limit.left_s()
        if not self._last.done.wait(waited_s):
            raise self._too_late(waited_s)
        found: list[T] = []
        job = self._last = _Job()
        threading.Thread(
            target=_run, args=(lambda: found.append(work()), job), name="disk", daemon=True
        ).start()
        if not job.done.wait(limit.left_s()):
            raise self._too_late(waited_s)
        if job.error is not None:
            raise job.error
        return found[0]

    @property
    def is_busy(self) -> bool:
        """True while something that was begun has not ended."""
        return not self._last.done.is_set()

    def _too_late(self, waited_s: float) -> RecordError:
        return RecordError(
            f"{self._disk} has not answered for {waited_s:.1f} s: check the disk of this node"
        )


def _run(work: Callable[[], None], job: _Job) -> None:
    try:
        work()
    except BaseException as e:  # noqa: BLE001 - raised again in the thread that waits
        job.error = e
    finally:
        job.done.set()
