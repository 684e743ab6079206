"""The extender's life cycle: starts and stops its parts, and restarts when the settings change."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Sequence
from typing import Final

from hami_node import __version__
from hami_node.clock import SystemClock
from hami_node.config.settings import Settings, changed_fields, settings_of
from hami_node.config.sources import ConfigSources, resolve
from hami_node.config.watch import ConfigWatch
from hami_node.extender.parts import Parts
from hami_node.logs import LineQueue, configure, kv
from hami_node.metrics.extender import ExtenderMetrics
from hami_node.ports import Clock
from hami_node.setting_types import Role
from hami_node.signals import END_SIGNALS, SignalThread
from hami_node.threads import GuardedThreads
from hami_node.vendors.spec import AnyVendor

log = logging.getLogger(__name__)


def restart_program() -> None:
    """Execute the same command again.

    A process that ends is restarted by kubelet, but with a growing delay: two edits within minutes
    would leave the cluster without a scheduler. Signals are blocked, which the new program
    inherits: one that arrives in between waits until that program takes it.
    """
    logging.shutdown()
    command = [sys.executable, *sys.orig_argv[1:]]
    os.execv(sys.executable, command)  # noqa: S606 - our own command line, and no shell


GRACE_S: Final = 20.0
"""How long running requests may take at shutdown; a bind waits no longer for a lock."""
RESTART_AFTER_S: Final = 15.0
"""The leader restarts later than the other replicas, which get the same configuration with it."""
LOOK_S: Final = 0.25
DRAIN_S: Final = 0.5
"""How long a leader that ends lets running decisions hold up the next one."""
DRAIN_LOOK_S: Final = 0.01
SWITCH_S: Final = 0.001
"""So long may a thread keep the interpreter that others wait for: a sweep, say, a decision. A
decision changes threads several times, and would wait for Python's 5 ms each time."""


class Extender:
    """One replica. `start`, then `wait`; `stop` and `leave` from anywhere."""

    def __init__(
        self,
        settings: Settings,
        sources: ConfigSources,
        vendors: Sequence[AnyVendor],
        *,
        clock: Clock | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """Build the parts for these vendors' cards; no request is made, nothing is served yet.

        Raises:
            ConfigError: no usable credentials, or a setting is wrong.
        """
        self.settings, self._sources = settings, sources
        self.stop = stop or threading.Event()
        self.is_outdated = False
        self._metrics = ExtenderMetrics()
        self._end_of_lead = threading.Event()
        clock = clock or SystemClock()
        self._leaving = threading.Lock()
        self._threads = GuardedThreads(self.stop)
        self.parts = Parts(
            settings,
            vendors,
            clock=clock,
            stop=self.stop,
            metrics=self._metrics,
            died=self._died,
        )
        self._config = ConfigWatch(sources.files(), self._configuration_changed, clock=clock)

    def start(self) -> None:
        """Listen and start the watches; ready once nodes, pods and quotas have been listed.

        Raises:
            ConfigError: an address or the certificate can't be used.
        """
        parts, threads, stop = self.parts, self._threads, self.stop
        for page_server in parts.page_servers():
            page_server.start()
        for server in parts.servers():
            server.start()
        parts.view.start(stop)
        threads.start("quotas", lambda: parts.quotas.run(stop))
        threads.start("events", lambda: parts.events.run(stop))
        threads.start("config", lambda: self._config.run(stop))
        threads.start("sweeper", lambda: parts.sweeper.run(stop))
        threads.start("releaser", lambda: parts.releaser.run(stop))
        threads.start("waker", lambda: parts.waker.run(stop))
        threads.start("resizer", lambda: parts.resizer.run(stop))
        leader = parts.readiness.leader
        if leader is not None:
            threads.start("leader", lambda: leader.run(self._end_of_lead))
            threads.start("catching-up", lambda: parts.readiness.catching_up.run(stop))
        endpoint = parts.endpoint
        if endpoint is not None:
            threads.start("endpoint", lambda: endpoint.run(stop))

    def wait(self) -> int:
        """Wait for the end; the process's exit code."""
        self.stop.wait()
        return self._end()

    def leave(self) -> None:
        """Stop; where this replica leads, the next one begins about a second later."""
        with self._leaving:
            try:
                readiness = self.parts.readiness
                if readiness.leader and readiness.is_leading() and not self.stop.is_set():
                    self._end_lead()
            finally:
                self.stop.set()

    def _end_lead(self) -> None:
        """Release the Lease once the decisions are made that run, and decide nothing more.

        What takes longer, such as a bind that waits for a lock, is asked of the next leader.
        """
        parts = self.parts
        log.info("leader_leaves")
        parts.readiness.close()
        for _ in range(round(DRAIN_S / DRAIN_LOOK_S)):
            if not parts.server.running() or self.stop.wait(DRAIN_LOOK_S):
                break
        self._end_of_lead.set()

    def _end(self) -> int:
        """Finish running requests, release the Lease, end the threads."""
        parts = self.parts
        for server in parts.servers():
            server.close(GRACE_S)
        self._end_of_lead.set()  # not before: running requests were decided as the leader
        parts.events.wake()
        parts.resizer.wake()
        self._config.wake()
        parts.quotas.interrupt()
        parts.view.close()
        self._threads.join()
        for page_server in parts.page_servers():
            page_server.close()
        parts.kube.close()
        parts.lease_kube.close()
        log.info("stopped", extra=kv(died=self._threads.died or None))
        return 1 if self._threads.died else 0

    def _died(self) -> str:
        return f"{self._threads.died} died" if self._threads.died else ""

    def _configuration_changed(self) -> None:
        """Restart if settings of the extender changed; keep them if the new ones are invalid."""
        found = resolve(self._sources)
        for error in found.errors:
            log.error("config_refused", extra=kv(error=str(error), kept="the settings in force"))
        ours = frozenset(settings_of(Role.EXTENDER, self._sources.blocks))
        changed = [name for name in changed_fields(self.settings, found.settings) if name in ours]
        if changed and not found.errors:
            log.warning("config_changed", extra=kv(changed=changed, then="restarts"))
            self.is_outdated = True
            self._let_others_restart()
            self.leave()

    def _let_others_restart(self) -> None:
        """So that one replica answers the webhook at any time."""
        if self.parts.endpoint is None:
            return
        for _ in range(round(RESTART_AFTER_S / LOOK_S)):
            if not self.parts.readiness.is_leading() or self.stop.wait(LOOK_S):
                return


def run_extender(settings: Settings, sources: ConfigSources, vendors: Sequence[AnyVendor]) -> int:
    """Run until SIGTERM or SIGINT; the process's exit code. A changed configuration restarts it.

    Raises:
        ConfigError: a setting is wrong.
    """
    signals = SignalThread(*END_SIGNALS)
    configure(settings.log_format, settings.log_level, LineQueue())
    sys.setswitchinterval(SWITCH_S)
    log.info("starting", extra=kv(version=__version__, scheduler=settings.scheduler_name))
    if settings.ignored:
        log.warning("settings_without_effect", extra=kv(names=settings.ignored))
    extender = Extender(settings, sources, vendors)
    ended = threading.Event()

    def end() -> None:
        ended.set()
        extender.leave()

    signals.start(dict.fromkeys(END_SIGNALS, end))
    try:
        extender.start()
    except BaseException:
        extender.stop.set()
        raise
    code = extender.wait()
    signals.close()
    if code == 0 and extender.is_outdated and not ended.is_set():
        restart_program()
    return code
