"""`hami-node demo`: daemon and extender as they ship, on simulated nodes, each step checked."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

from hami_node.clock import SystemClock
from hami_node.config.sources import environment
from hami_node.demo.cards import who_holds_what
from hami_node.demo.cast import Cast
from hami_node.demo.keep import commands
from hami_node.demo.stage import COMMAND, LIMIT_S, Stage, StoppedError
from hami_node.demo.steps import steps_of
from hami_node.demo.tour import Step, Tour
from hami_node.demo.view import View
from hami_node.vendors.demo import StepFailed

WATCH_S: Final = 0.5
"""How often `--keep` checks whether the programs still run."""
PROGRAM: Final = "hami-node"


def run(
    cast: Cast,
    *,
    keep: bool,
    command: Sequence[str] = COMMAND,
    stream: TextIO | None = None,
    steps: Sequence[Step] | None = None,
    limit_s: float = LIMIT_S,
    stop: threading.Event | None = None,
) -> int:
    """Show and check every step; returns the process's exit code: 0 only if all steps passed.

    Nothing is left behind, whenever `stop` is set; it is still set afterwards if it interrupted
    something: not where it only ended `keep`.

    Args:
        cast: the devices that the vendors provide.
        keep: leave everything running afterwards, until Ctrl-C.
        command: how `hami-node` is started.
        stream: where the output goes; standard output by default.
        steps: the steps to show; all by default.
        limit_s: how long a step waits for what usually takes milliseconds.
        stop: ends the demo.
    """
    view = View(stream or sys.stdout)
    failed: tuple[str, ...] | None = None
    is_stopped = stop or threading.Event()
    try:
        stage = Stage(SystemClock(), environment(), cast, command, limit_s, is_stopped)
        with stage:
            failed = _show(stage, view, steps_of(cast) if steps is None else steps)
            if keep:
                view.kept(commands(stage, _program()))
                failed += _watch(stage, view)
    except StoppedError:
        view.line("\nstopped; everything was shut down")
    return 0 if failed == () else 1


def _show(stage: Stage, view: View, steps: Sequence[Step]) -> tuple[str, ...]:
    """Show all steps, the table and the verdict; returns the titles of the failed steps."""
    tour = Tour(stage)
    began_s = stage.clock.monotonic()
    view.begin()
    failed: list[str] = []
    skipped = 0
    is_aborted = False
    for number, step in enumerate(steps, start=1):
        stage.check_stop()
        if is_aborted:
            view.step_skipped(number, step.title)
            skipped += 1
        elif not _passes(step, tour, view, (number, len(steps))):
            failed.append(step.title)
            is_aborted = step.is_needed
    view.cards(who_holds_what(stage))
    view.verdict(len(steps), failed, skipped, stage.clock.monotonic() - began_s)
    return tuple(failed)


def _passes(step: Step, tour: Tour, view: View, position: tuple[int, int]) -> bool:
    """Run a step and show its result."""
    clock, number = tour.stage.clock, position[0]
    began_s = clock.monotonic()
    try:
        with view.running(*position, step.title):
            seen = step.act(tour)
    except Exception as e:  # noqa: BLE001 - whatever a broken program leads to: the step failed
        why = str(e) if isinstance(e, StepFailed) else f"{type(e).__name__}: {e}"
        view.step_failed(number, step.title, why, clock.monotonic() - began_s)
        for name in step.programs:
            if name in tour.stage.programs:
                program = tour.stage.programs[name]
                view.log_lines(program.title, program.last_lines())
        return False
    view.step_passed(number, step.title, seen, clock.monotonic() - began_s)
    return True


# -- keep ------------------------------------------------------------------------------------------
def _program() -> tuple[str, ...]:
    """The command with which this user can start hami-node."""
    if Path(sys.argv[0]).name == PROGRAM:
        return (sys.argv[0],)
    return (PROGRAM,) if shutil.which(PROGRAM) else COMMAND


def _watch(stage: Stage, view: View) -> tuple[str, ...]:
    """Wait for Ctrl-C, the usual end; returns what failed if a program ends by itself.

    Raises:
        StoppedError: the demo is to end.
    """
    while not stage.stop.wait(WATCH_S):
        for program in stage.programs.values():
            code = program.exit_code
            if code is not None:
                view.line(f"{program.title} ended with code {code}")
                view.log_lines(program.title, program.last_lines())
                return (f"{program.title} keeps running",)
    stage.stop.clear()
    raise StoppedError
