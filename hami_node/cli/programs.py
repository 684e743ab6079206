"""What the commands call, loaded when called: `run` must register quickly."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from hami_node.cluster.access import Access
from hami_node.errors import ConfigError, HamiError, KubeError

if TYPE_CHECKING:
    from hami_node.cluster.client import KubeClient
    from hami_node.config.settings import Settings
    from hami_node.config.sources import ConfigSources
    from hami_node.ports import Clock

TOLD_S: Final = 2.0
"""After so long people are told what is waited for."""
SILENT_S: Final = 12.0
"""An API server that has said nothing by then is given up."""
_NOWHERE: Final = (
    "there is no kubeconfig: $KUBECONFIG is not set, ~/.kube/config does not exist, and this is "
    "no pod with a service account; name one with --kubeconfig"
)


def _run_daemon(settings: Settings, sources: ConfigSources) -> int:
    from hami_node.node.daemon import run_daemon
    from hami_node.vendors.registry import VENDORS

    return run_daemon(settings, sources, VENDORS)


def _run_extender(settings: Settings, sources: ConfigSources) -> int:
    from hami_node.extender.service import run_extender
    from hami_node.vendors.registry import VENDORS

    return run_extender(settings, sources, VENDORS)


def _run_demo(keep: bool) -> int:
    from hami_node.cli.commands import ExitCode
    from hami_node.cli.extras import EXTENDER, need
    from hami_node.signals import END_SIGNALS, SignalThread

    ends = (*END_SIGNALS, signal.SIGHUP)
    signals = SignalThread(*ends)  # before the slow imports: an interruption is never lost
    need(EXTENDER)  # it starts one, as a program of its own
    from hami_node.demo.demo import run
    from hami_node.demo.stage import Stage
    from hami_node.vendors.registry import VENDORS

    stop, taken = threading.Event(), list[int]()

    def end(number: int) -> None:
        taken.append(number)
        stop.set()

    signals.start({number: partial(end, number) for number in ends})
    code = run(Stage(VENDORS, stop=stop), keep=keep)
    return ExitCode.SIGNALLED + taken[-1] if stop.is_set() else code


def _clock() -> Clock:
    from hami_node.clock import SystemClock

    return SystemClock()


def _now() -> float:
    return _clock().now()


def _env() -> Mapping[str, str]:
    from hami_node.config.sources import environment

    return environment()


def answering(access: Access, clock: Clock, component: str) -> KubeClient:
    """A client of an API server that answers; what it answers, the command's own requests tell.

    Raises:
        KubeError: it says nothing.
        HamiError: there are no credentials, or they are of no use.
    """
    from hami_node.cluster.client import connect

    try:
        kube = connect(access, component=component, clock=clock)
    except ConfigError as error:
        raise error if access.kubeconfigs or access.context else HamiError(_NOWHERE) from error
    await_answer(kube, clock, partial(click.echo, err=True))
    return kube


def _connect(access: Access) -> KubeClient:
    return answering(access, _clock(), "command").with_retries()


def await_answer(
    kube: KubeClient, clock: Clock, say: Callable[[str], object], told_s: float = TOLD_S
) -> None:
    """Wait until the API server says anything at all, and say so where that takes long.

    Raises:
        KubeError: it says nothing.
    """
    from hami_node.clock import Deadline

    is_told = threading.Event()

    def tell() -> None:
        is_told.set()
        say(f"no answer from the API server yet: waiting for up to {SILENT_S:.0f} s")

    timer = threading.Timer(told_s, tell)
    timer.daemon = True
    timer.start()
    try:
        kube.within(Deadline.after(SILENT_S, clock.monotonic)).request("GET", "/version")
    except KubeError:
        if is_told.is_set():
            raise
    finally:
        timer.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """What the commands call; tests pass their own as click's `obj`."""

    run_daemon: Callable[[Settings, ConfigSources], int] = _run_daemon
    run_extender: Callable[[Settings, ConfigSources], int] = _run_extender
    run_demo: Callable[[bool], int] = _run_demo
    connect: Callable[[Access], KubeClient] = _connect
    clock: Callable[[], Clock] = _clock
    now: Callable[[], float] = _now
    env: Callable[[], Mapping[str, str]] = _env
