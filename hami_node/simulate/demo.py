"""`hami-node demo`: daemon and extender as they ship, on simulated nodes, each step checked."""

from __future__ import annotations

import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn, TextIO

from hami_node.clock import SystemClock
from hami_node.config import environment
from hami_node.simulate.demo_cards import who_holds_what
from hami_node.simulate.demo_keep import commands
from hami_node.simulate.demo_stage import COMMAND, LIMIT_S, Stage, StepFailed
from hami_node.simulate.demo_steps import STEPS
from hami_node.simulate.demo_tour import Step, Tour
from hami_node.simulate.demo_view import View

WATCH_S: Final = 0.5
"""How often `--keep` looks whether the programs still run."""
PROGRAM: Final = "hami-node"
ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _InterruptedError(BaseException):
    """A signal asks to end; everything is taken down on the way out."""


def run(
    *,
    keep: bool,
    command: Sequence[str] = COMMAND,
    stream: TextIO | None = None,
    steps: Sequence[Step] = STEPS,
    limit_s: float = LIMIT_S,
) -> int:
    """Show and check every step; the process's exit code: 0 only if all were true.

    Args:
        keep: leave everything running afterwards, until Ctrl-C.
        command: how `hami-node` is started.
        stream: where the view goes; standard output by default.
        steps: what is shown.
        limit_s: how long a step waits for what takes milliseconds.
    """
    view = View(stream or sys.stdout)
    failed: tuple[str, ...] | None = None
    try:
        with _orderly_end(), Stage(SystemClock(), environment(), command, limit_s) as stage:
            failed = _show(stage, view, steps)
            if keep:
                view.kept(commands(stage, _program()))
                failed += _watch(stage, view)
    except _InterruptedError:
        view.say("\nstopped; everything was taken down")
    return 0 if failed == () else 1


def _show(stage: Stage, view: View, steps: Sequence[Step]) -> tuple[str, ...]:
    """All steps, the table and the verdict; the titles of the steps that were not true."""
    tour = Tour(stage)
    began_s = stage.clock.monotonic()
    view.begin()
    false: list[str] = []
    skipped = 0
    is_pointless = False
    for number, step in enumerate(steps, start=1):
        if is_pointless:
            view.step_skipped(number, step.title)
            skipped += 1
        elif not _is_true(step, tour, view, (number, len(steps))):
            false.append(step.title)
            is_pointless = step.is_needed
    view.cards(who_holds_what(tour))
    view.verdict(len(steps), false, skipped, stage.clock.monotonic() - began_s)
    return tuple(false)


def _is_true(step: Step, tour: Tour, view: View, place: tuple[int, int]) -> bool:
    """Do one step and show what was seen."""
    clock, number = tour.stage.clock, place[0]
    began_s = clock.monotonic()
    try:
        with view.running(*place, step.title):
            seen = step.act(tour)
    except Exception as e:  # noqa: BLE001 - whatever a broken program leads to: it is not true
        why = str(e) if isinstance(e, StepFailed) else f"{type(e).__name__}: {e}"
        view.step_false(number, step.title, why, clock.monotonic() - began_s)
        for name in step.programs:
            if name in tour.stage.programs:
                program = tour.stage.programs[name]
                view.log_lines(program.title, program.last_lines())
        return False
    view.step_true(number, step.title, seen, clock.monotonic() - began_s)
    return True


@contextmanager
def _orderly_end() -> Iterator[None]:
    """Turn the first signal to end into an exception; more of them don't disturb the cleaning."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> NoReturn:
        del number, frame
        for one in ENDS:
            signal.signal(one, signal.SIG_IGN)
        raise _InterruptedError

    before = {one: signal.signal(one, end) for one in ENDS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


# -- keep ------------------------------------------------------------------------------------------
def _program() -> tuple[str, ...]:
    """How this user can start hami-node again."""
    if Path(sys.argv[0]).name == PROGRAM:
        return (sys.argv[0],)
    return (PROGRAM,) if shutil.which(PROGRAM) else COMMAND


def _watch(stage: Stage, view: View) -> tuple[str, ...]:
    """Wait for Ctrl-C; what went wrong if a program ends by itself."""
    while not stage.stop.wait(WATCH_S):
        for program in stage.programs.values():
            code = program.exit_code
            if code is not None:
                view.say(f"{program.title} ended with code {code}")
                view.log_lines(program.title, program.last_lines())
                return (f"{program.title} runs on",)
    return ()
