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
from hami_node.clock import SystemClock
from hami_node.config.settings import Settings, changed_fields, keep_fixed
from hami_node.config.sources import ConfigSources, resolve
from hami_node.config.watch import ConfigWatch
from hami_node.errors import ConfigError
from hami_node.logs import LineQueue, adjust, configure, kv
from hami_node.metrics.deferred import DeferredMetrics
from hami_node.metrics.listener import listen
from hami_node.node.vendor_cards import VendorCards
from hami_node.ports import Clock
from hami_node.signals import END_SIGNALS, SignalThread
from hami_node.threads import GuardedThreads
from hami_node.vendors.spec import AnyVendor

if TYPE_CHECKING:
    from hami_node.node.cluster_services import ClusterServices
    from hami_node.node.resource import NodeResource

log = logging.getLogger(__name__)

FIRST_REGISTRATION_S: Final = 0.5
"""How long the rest of the start waits for kubelet to take the first registration."""


class Daemon:
    """One node's daemon. `start`, then `wait`; `stop` from anywhere."""

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
        self.settings, self.vendors = settings, tuple(vendors)
        self._sources = sources
        self.clock: Clock = clock or SystemClock()
        self.stop = stop or threading.Event()
        self.threads = GuardedThreads(self.stop)
        self.metrics = DeferredMetrics()
        self.metrics.note(lambda metrics: metrics.count_config_loaded())
        self.vendor_cards = tuple(
            VendorCards(
                vendor,
                vendor.served,
                lambda: self.settings,
                clock=self.clock,
                stop=self.stop,
                metrics=self.metrics,
            )
            for vendor in self.vendors
            if vendor.served is not None
        )
        self.config_watch = ConfigWatch(sources.files(), self.reload, self._register_again)
        self.cluster: ClusterServices | None = None

    @property
    def resources(self) -> tuple[NodeResource, ...]:
        """The resources of all vendors, once their cards were found."""
        return tuple(each for owner in self.vendor_cards for each in owner.resources)

    @property
    def is_simulated(self) -> bool:
        """True where some cards are not real."""
        return any(owner.backend.is_simulated for owner in self.vendor_cards)

    def start(self) -> None:
        """Bind the addresses, find the cards, register, then load and start the rest.

        Raises:
            ConfigError: credentials, an address or the size of a device list are wrong.
        """
        # before kubelet counts on us: a taken port must not be found out after that
        listeners = _listeners(self.settings)
        for owner in self.vendor_cards:
            owner.find_cards()
            self._settle(owner)
            owner.offer()
        for resource in self.resources:
            resource.remove_stale_sockets()
        for resource in self.resources:
            self.threads.start(f"lifecycle {resource.name}", resource.live)
        self._start_cluster(*listeners)
        for owner in self.vendor_cards:
            self.threads.start(f"scanner {owner.names}", owner.scan)

    def _settle(self, owner: VendorCards) -> None:
        settled = owner.settled(self.settings)
        changed = changed_fields(self.settings, settled)
        if changed:
            log.info("settings_settled", extra=kv(by="the cards of this node", changed=changed))
        self.settings = settled

    def _start_cluster(
        self, listener: socket.socket | None, probe_listener: socket.socket | None
    ) -> None:
        # Imported here: the Kubernetes client and prometheus are slow, kubelet must not wait.
        from hami_node.node.cluster_services import ClusterServices
        from hami_node.node.parts import NodeParts

        for resource in self.resources:
            if resource.is_offering():
                resource.lifecycle.registered.wait(FIRST_REGISTRATION_S)
        self.cluster = ClusterServices(
            NodeParts(
                settings=lambda: self.settings,
                vendors=self.vendors,
                vendor_cards=self.vendor_cards,
                clock=self.clock,
                stop=self.stop,
                threads=self.threads,
                metrics=self.metrics,
                config_watch=self.config_watch,
                listener=listener,
                probe_listener=probe_listener,
            )
        )
        self.cluster.start()

    def reload(self) -> None:
        """Read the configuration again; if it is invalid, the settings in force are kept.

        Only the thread of `config_watch` calls this: a slower, older reload can't come last.
        """
        found = resolve(self._sources)
        errors = [str(error) for error in found.errors] or self._misfits(found.settings)
        if errors:
            self.metrics.note(lambda metrics: metrics.count_config_failure())
            for error in errors:
                log.error("config_refused", extra=kv(error=error, kept="the settings in force"))
            return
        wanted, before = found.settings, self.settings
        for owner in self.vendor_cards:
            wanted = owner.settled(wanted)
        changed = changed_fields(before, wanted)
        self.settings, kept = keep_fixed(before, wanted)
        if kept:
            log.warning("config_needs_restart", extra=kv(settings=kept))
        if self.settings.ignored != before.ignored:
            log.warning("settings_without_effect", extra=kv(names=self.settings.ignored))
        adjust(self.settings.log_format, self.settings.log_level)
        for owner in self.vendor_cards:
            owner.apply(before)
        self.metrics.note(lambda metrics: metrics.count_config_loaded())
        log.info("config_applied", extra=kv(changed=changed))
        if self.cluster is not None:
            self.cluster.wake()

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

    def _register_again(self) -> None:
        for resource in self.resources:
            resource.lifecycle.restart()

    def wait(self) -> int:
        """Wait for the end; the process's exit code."""
        while not self.stop.wait(1.0):
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


def _listeners(settings: Settings) -> tuple[socket.socket | None, socket.socket | None]:
    """Listen on the addresses of the pages and of the probes; None where one is switched off."""
    pages, probes = settings.metrics_address, settings.probe_address
    return (
        None if pages == "off" else listen("metrics-address", pages),
        None if probes == "off" else listen("probe-address", probes),
    )


def run_daemon(settings: Settings, sources: ConfigSources, vendors: Sequence[AnyVendor]) -> int:
    """Run until SIGTERM or SIGINT; the process's exit code.

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
    daemon = Daemon(settings, sources, vendors)
    actions = dict.fromkeys(END_SIGNALS, daemon.stop.set)
    signals.start({**actions, signal.SIGHUP: daemon.hang_up})
    backends = [owner.backend.name for owner in daemon.vendor_cards]
    log.info("starting", extra=kv(version=__version__, node=settings.node_name, backends=backends))
    if settings.ignored:
        log.warning("settings_without_effect", extra=kv(names=settings.ignored))
    if daemon.is_simulated:
        log.warning("cards_are_simulated", extra=kv(backends=backends))
    try:
        daemon.start()
    except BaseException:
        daemon.stop.set()
        raise
    return daemon.wait()
