"""Builds the daemon from its parts and runs it. Order matters: cards, kubelet, then the rest.

If a plugin registers late, running pods lose their devices, so everything that is slow to import
(the Kubernetes client, prometheus) comes after the registration.
"""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from hami_node import __version__
from hami_node.config.settings import Settings, changed_fields, keep_fixed
from hami_node.config.sources import ConfigSources, resolve
from hami_node.config.watch import ConfigWatch
from hami_node.errors import ConfigError
from hami_node.logs import LineQueue, adjust, configure, kv
from hami_node.metrics.listener import listen
from hami_node.node.state import NodeState
from hami_node.ports import Clock
from hami_node.record.lock import RecordLock
from hami_node.signals import END_SIGNALS, SignalThread
from hami_node.vendors.spec import AnyVendor

if TYPE_CHECKING:
    from hami_node.node.cluster_services import ClusterServices

log = logging.getLogger(__name__)

FIRST_REGISTRATION_S: Final = 0.5
"""How long the rest of the start waits for kubelet to take the first registration."""
PATIENCE_S: Final = 0.2
"""How long the lock of the record may take before it is said that somebody holds it."""
TURN_CHECK_S: Final = 0.5

Listeners = tuple[socket.socket | None, socket.socket | None]
"""For the pages and for the probes; None where one is switched off."""


class Daemon(NodeState):
    """One node's daemon. `start`, then `wait`; `stop` is set from anywhere."""

    def __init__(
        self,
        settings: Settings,
        sources: ConfigSources,
        vendors: Sequence[AnyVendor],
        *,
        clock: Clock | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """Build everything that is quick to build.

        Raises:
            ConfigError: a setting is wrong.
        """
        super().__init__(settings, vendors, clock, stop)
        self._sources = sources
        self.config_watch = ConfigWatch(
            sources.files(), self.reload, self._register_again, clock=self.clock
        )
        self._applied = settings
        """The settings that the cards are offered by: those in force, once all have taken them."""
        self.cluster: ClusterServices | None = None

    def start(self, listeners: Listeners | None = None) -> None:
        """Find the cards, register, then load and start the rest.

        Args:
            listeners: the addresses of the settings if they are bound already.

        Raises:
            ConfigError: credentials, an address or the size of a device list are wrong.
        """
        # before kubelet counts on us: a taken port must not be found out after that
        listeners = listeners or _listeners(self.in_force)
        for owner in self.vendor_cards:
            owner.find_cards()
            before, self.in_force = self.in_force, owner.settled(self.in_force)
            if changed := changed_fields(before, self.in_force):
                log.info("settings_settled", extra=kv(by="the cards of this node", changed=changed))
            owner.offer()
        self._applied = self.in_force
        for resource in self.resources:
            resource.lifecycle.remove_stale_sockets()
        for resource in self.resources:
            self.threads.start(f"lifecycle {resource.name}", resource.live)
        # Imported here: the Kubernetes client and prometheus are slow, kubelet must not wait.
        from hami_node.node.cluster_services import ClusterServices

        for resource in self.resources:
            if resource.is_offering():
                resource.lifecycle.registered.wait(FIRST_REGISTRATION_S)
        self.cluster = ClusterServices(self, *listeners)
        self.cluster.start()
        for owner in self.vendor_cards:
            self.threads.start(f"scanner {owner.names}", owner.keep_scanning)

    def reload(self) -> None:
        """Read the configuration again; if it is invalid, the settings in force are kept.

        Only a look of `config_watch` calls this: a slower, older reload can't come last.
        """
        found = resolve(self._sources)
        errors = [str(error) for error in found.errors] or self._misfits(found.settings)
        if errors:
            self.reloads["refused"] += 1
            for error in errors:
                log.error("config_refused", extra=kv(error=error, kept="the settings in force"))
            return
        wanted, before = found.settings, self._applied
        for owner in self.vendor_cards:
            wanted = owner.settled(wanted)
        changed = changed_fields(before, wanted)
        self.in_force, kept = keep_fixed(before, wanted)
        now = self.in_force
        if kept:
            log.warning("config_needs_restart", extra=kv(settings=kept))
        if now.ignored != before.ignored:
            log.warning("settings_without_effect", extra=kv(names=now.ignored))
        adjust(now.log_format, now.log_level)
        try:
            for owner in self.vendor_cards:
                owner.apply(before)
        finally:
            if self.cluster is not None:
                self.wake()
        self._applied = now
        self.reloads["applied"] += 1
        log.info("config_applied", extra=kv(changed=changed))

    def _misfits(self, settings: Settings) -> list[str]:
        """Why the present cards can't be offered under these settings."""
        errors = []
        for resource in self.resources:
            try:
                resource.check(settings)
            except ConfigError as e:
                errors.append(str(e))
        return errors

    def hang_up(self) -> None:
        """SIGHUP: read the configuration and register with kubelet again, soon."""
        self.config_watch.request()
        if self.cluster is not None:
            self.wake("config")

    def _register_again(self) -> None:
        for resource in self.resources:
            resource.lifecycle.restart()

    def wait(self) -> int:
        """Wait for the end; the process's exit code."""
        while not self.clock.wait(self.stop, 1.0):
            for owner in self.vendor_cards:
                if why := owner.why_restart():
                    log.error("restart_needed", extra=kv(why=why))
                    self.stop.set()
                    self.threads.died = self.threads.died or "backend"
        for owner in self.vendor_cards:
            owner.close()
        if self.cluster is not None:
            self.cluster.close()
        self.threads.join()
        if self.cluster is not None:
            self.cluster.finish()
        log.info("stopped", extra=kv(died=self.threads.died or None))
        return 1 if self.threads.died else 0


def _listeners(settings: Settings) -> Listeners:
    """Listen on the addresses of the pages and of the probes."""
    pages, probes = settings.metrics_address, settings.probe_address
    return (
        None if pages == "off" else listen("metrics-address", pages),
        None if probes == "off" else listen("probe-address", probes),
    )


def _wait_turn(lock: RecordLock, listeners: Listeners, stop: threading.Event) -> None:
    """Say why this process serves nothing, until the lock is held or `stop` is set."""
    from hami_node.metrics.server import Probes, ProbeServer  # slow to import

    checks = Probes(ready={"record": lambda: lock.problem or "it takes over just now"})
    servers = []
    for listener in filter(None, listeners):
        listener.setblocking(False)  # for a moment the next server accepts from it, too
        servers.append(ProbeServer(listener.dup(), checks).start())
    told = ""
    while not stop.is_set() and not lock.wait(TURN_CHECK_S):
        problem = lock.problem
        if problem not in ("", told):
            told = problem
            log.warning("daemon_waits", extra=kv(problem=problem))
    for server in servers:
        threading.Thread(target=server.close, name="probe-close", daemon=True).start()


def _settings_now(before: Settings, sources: ConfigSources) -> Settings:
    """The settings after a wait in which files may have changed. Raises ConfigError."""
    found = resolve(sources)
    if found.errors:
        raise found.errors[0]
    return keep_fixed(before, found.settings)[0]


def run_daemon(settings: Settings, sources: ConfigSources, vendors: Sequence[AnyVendor]) -> int:
    """Run until SIGTERM or SIGINT; the process's exit code. One at a time serves the node.

    Raises:
        ConfigError: a setting is wrong.
    """
    signals = SignalThread(*END_SIGNALS, signal.SIGHUP)
    configure(settings.log_format, settings.log_level, LineQueue())
    if not settings.node_name:
        raise ConfigError("environment", "NODE_NAME", None, "set it to this node's name")
    if not settings.plugin_dir.is_dir():
        raise ConfigError(
            "settings", "plugin-dir", str(settings.plugin_dir), "mount kubelet's folder there"
        )
    stop, is_hung_up = threading.Event(), threading.Event()
    actions = {**dict.fromkeys(END_SIGNALS, stop.set), signal.SIGHUP: is_hung_up.set}
    signals.start(actions)
    listeners, lock = _listeners(settings), RecordLock(settings.record_dir)
    if not lock.take(PATIENCE_S):
        _wait_turn(lock, listeners, stop)
        if stop.is_set():
            return 0
        settings = _settings_now(settings, sources)
    daemon = Daemon(settings, sources, vendors, stop=stop)
    actions[signal.SIGHUP] = daemon.hang_up
    if is_hung_up.is_set():
        daemon.hang_up()
    backends = [owner.backend.name for owner in daemon.vendor_cards]
    log.info("starting", extra=kv(version=__version__, node=settings.node_name, backends=backends))
    if settings.ignored:
        log.warning("settings_without_effect", extra=kv(names=settings.ignored))
    if daemon.is_simulated:
        log.warning("cards_are_simulated", extra=kv(backends=backends))
    try:
        daemon.start(listeners)
    except BaseException:
        stop.set()
        raise
    return daemon.wait()
