"""`hami-node demo`: daemon and extender as they ship, on simulated nodes, each step checked."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

from hami_node.demo import pods
from hami_node.demo.pods import NAMESPACE, Tenant, Want
from hami_node.demo.stage import (
    COMMAND,
    EXTENDER,
    GPU_NODE,
    LOG_LINES,
    Program,
    Stage,
    StoppedError,
)
from hami_node.demo.steps import Step, steps_of, who_holds_what
from hami_node.demo.view import View
from hami_node.simulate.kube_scheduler import (
    CallFailed,
    bind_arguments,
    filter_arguments,
    review_of,
)
from hami_node.vendors.demo import StepFailed

WATCH_S: Final = 0.5
"""How often `--keep` checks whether the programs still run."""
PROGRAM: Final = "hami-node"
MINE: Final = Tenant(name="mine", wants=(Want(name="main", memory_mib=3000, cores=5),))
"""A pod to filter and bind by hand."""
NEXT: Final = Tenant(name="next", wants=(Want(name="main", memory_mib=2000, cores=5),))
"""A pod that is not created: only reviewed."""

Command = tuple[str, str]
"""Purpose, "" for the same as before, and command."""


def run(
    stage: Stage,
    *,
    keep: bool,
    stream: TextIO | None = None,
    steps: Sequence[Step] | None = None,
) -> int:
    """Show and check every step; returns the process's exit code: 0 only if all steps passed.

    Nothing is left behind, whenever `stage.stop` is set; it is still set afterwards if it
    interrupted something: not where it only ended `keep`.

    Args:
        stage: not yet entered.
        keep: leave everything running afterwards, until Ctrl-C.
        stream: where the output goes; standard output by default.
        steps: the steps to show; all by default.
    """
    view = View(stream or sys.stdout)
    failed: tuple[str, ...] | None = None
    try:
        with stage:
            failed = _show(stage, view, steps_of(stage) if steps is None else steps)
            if keep:
                view.kept(commands(stage))
                failed += _watch(stage, view)
    except StoppedError:
        view.line("\nstopped; everything was shut down")
    return 0 if failed == () else 1


def _show(stage: Stage, view: View, steps: Sequence[Step]) -> tuple[str, ...]:
    """Show all steps, the table and the verdict; returns the titles of the failed steps."""
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
        elif not _passes(step, stage, view, (number, len(steps))):
            failed.append(step.title)
            is_aborted = step.is_needed
    view.cards(who_holds_what(stage))
    view.verdict(len(steps), failed, skipped, stage.clock.monotonic() - began_s)
    return tuple(failed)


def _passes(step: Step, stage: Stage, view: View, position: tuple[int, int]) -> bool:
    """Run a step and show its result."""
    clock, number = stage.clock, position[0]
    began_s = clock.monotonic()
    try:
        with view.running(*position, step.title):
            seen = tuple(step.act(stage))
    except Exception as e:  # noqa: BLE001 - whatever a broken program leads to: the step failed
        why = str(e) if isinstance(e, StepFailed) else f"{type(e).__name__}: {e}"
        view.step_failed(number, step.title, why, clock.monotonic() - began_s)
        for name in step.programs:
            if name in stage.programs:
                _show_log(view, stage.programs[name])
        return False
    view.step_passed(number, step.title, seen, clock.monotonic() - began_s)
    return True


def _show_log(view: View, program: Program) -> None:
    view.log_lines(program.title, program.log_lines()[-LOG_LINES:])


# -- keep ------------------------------------------------------------------------------------------
def _watch(stage: Stage, view: View) -> tuple[str, ...]:
    """Wait for Ctrl-C, the usual end; returns what failed if a program ends by itself.

    Raises:
        StoppedError: the demo is to end.
    """
    while not stage.stop.wait(WATCH_S):
        for program in stage.programs.values():
            if program.exit_code is not None:
                view.line(f"{program.title} ended with code {program.exit_code}")
                _show_log(view, program)
                return (f"{program.title} keeps running",)
    stage.stop.clear()
    raise StoppedError


def commands(stage: Stage) -> tuple[Command, ...]:
    """Commands to try, as this user can start them; none for a program that does not answer."""
    program = (PROGRAM,) if shutil.which(PROGRAM) else COMMAND
    if Path(sys.argv[0]).name == PROGRAM:
        program = (sys.argv[0],)
    hami_node, kubeconfig = shlex.join(program), shlex.quote(str(stage.kubeconfig))
    return (
        (
            "nodes, cards and the holders of slices",
            f"{hami_node} inspect --kubeconfig {kubeconfig}",
        ),
        ("the same in the browser", f"{hami_node} view --kubeconfig {kubeconfig}"),
        ("the same as JSON", f"{hami_node} inspect --kubeconfig {kubeconfig} -o json"),
        *_of_extender(stage),
        *_of_daemon(stage),
        ("the objects in the API server", f"curl {stage.api.url}/api/v1/nodes/{GPU_NODE}"),
        ("", f"curl {stage.api.url}/api/v1/namespaces/{NAMESPACE}/pods/{MINE.name}"),
        (
            "make a card fail: add `healthy: false` to its line",
            f"${{EDITOR:-vi}} {shlex.quote(str(stage.card_file(GPU_NODE)))}",
        ),
    )


def _of_daemon(stage: Stage) -> tuple[Command, ...]:
    try:
        url = stage.pages.url
    except StepFailed:
        return ()
    log = shlex.quote(str(stage.program(GPU_NODE).log_file))
    return (
        ("the daemon's metrics, health and effective settings", f"curl {url}/metrics"),
        ("", f"curl {url}/readyz"),
        ("", f"curl {url}/config"),
        ("the daemon's log", f"tail -f {log}"),
    )


def _of_extender(stage: Stage) -> tuple[Command, ...]:
    """Its calls, with bodies in files: a new pod for the webhook, a pod to filter and bind."""
    try:
        pods.create_tenant(stage, MINE)
    except (StepFailed, CallFailed):
        return ()  # it was not started, or has ended: a step has reported that
    pod = stage.api.read("pods", MINE.name, NAMESPACE)
    bodies = (
        (
            "webhook",
            "as the API server: have a new pod reviewed",
            review_of(NEXT.body(stage.shared.protocol)),
        ),
        (
            "filter",
            f"as kube-scheduler: filter the nodes for pod {MINE.name}",
            filter_arguments(pod, stage.kubelets),
        ),
        ("bind", "... and bind it to the node", bind_arguments(pod, GPU_NODE)),
    )
    url, log = stage.extender.url, stage.program(EXTENDER).log_file
    calls = []
    for call, purpose, body in bodies:
        file = log.with_name(f"{call}.json")
        file.write_text(json.dumps(body, indent=2), encoding="utf-8")
        calls.append((purpose, f"curl {url}/{call} --data-binary @{shlex.quote(str(file))}"))
    return (
        *calls,
        ("the extender's metrics and health", f"curl {url}/metrics"),
        ("", f"curl {url}/readyz"),
        ("the extender's log", f"tail -f {shlex.quote(str(log))}"),
    )
