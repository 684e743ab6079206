"""Builds the daemon from its parts and runs it. Order matters: cards, kubelet, then the rest.

A plugin that registers late costs running pods their devices, so everything that is slow to
import (the Kubernetes client, prometheus) comes after the registration.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from hami_node import __version__
from hami_node.backends.nvml import NvmlBackend, NvmlSettings
from hami_node.backends.nvml_cards import Places
from hami_node.backends.nvml_health import XidPolicy
from hami_node.clock import SystemClock
from hami_node.config import ConfigSources, resolve
from hami_node.config_watch import ConfigWatch
from hami_node.errors import ConfigError
from hami_node.logs import configure, kv
from hami_node.metrics import Metrics
from hami_node.node.inventory import Inventory, refuse_oversize, shape
from hami_node.node.lifecycle import Lifecycle, remove_stale_sockets
from hami_node.node.plugin import AllocatorSlot, DevicePlugin
from hami_node.node.rules import sharing_of
from hami_node.node.scanner import Scanner
from hami_node.ports import Backend, Clock
from hami_node.settings import BackendKind, Settings, changed_fields

if TYPE_CHECKING:
    from hami_node.cluster_side import ClusterSide

log = logging.getLogger(__name__)

JOIN_S: Final = 8.0
FIXED_SETTINGS: Final = frozenset(
    {
        "node_name",
        "kubeconfig",
        "backend",
        "simulated_file",
        "plugin_dir",
        "pod_resources_socket",
        "sysfs_root",
        "resource_count",
        "metrics_address",
        "hook_path",
    }
)
"""Settings that a running daemon can't change; a new value is named in the log."""


@dataclass(slots=True)
class _Threads:
    """The daemon's threads; one that dies ends the daemon, for a half-dead one lies."""

    stop: threading.Event
    running: list[threading.Thread]
    died: str = ""

    def start(self, name: str, body: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                body()
            except BaseException:
                log.exception("thread_died", extra=kv(thread=name))
                self.died = name
                self.stop.set()
                raise

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self.running.append(thread)
        thread.start()

    def join(self) -> None:
        clock = SystemClock()
        deadline = clock.monotonic() + JOIN_S
        for thread in self.running:
            thread.join(max(deadline - clock.monotonic(), 0.01))
        late = [thread.name for thread in self.running if thread.is_alive()]
        if late:
            log.warning("threads_left", extra=kv(threads=late))


class Daemon:
    """One node's daemon. `start`, then `wait`; `stop` from anywhere."""

    def __init__(
        self,
        settings: Settings,
        sources: ConfigSources,
        *,
        clock: Clock | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """Build everything that is quick to build.

        Raises:
            ConfigError: a setting is wrong.
        """
        self.settings = settings
        self._sources = sources
        self.clock: Clock = clock or SystemClock()
        self.stop = stop or threading.Event()
        self.threads = _Threads(self.stop, [])
        self.metrics = Metrics(settings.node_name, self.clock)
        self.metrics.count_config_loaded()
        self.inventory = Inventory()
        self.backend = make_backend(settings, self.clock)
        self.scanner = Scanner(
            backend=self.backend,
            inventory=self.inventory,
            sharing=sharing_of(settings),
            clock=self.clock,
        )
        self.allocator = AllocatorSlot()
        self.lifecycle = Lifecycle(
            plugin_dir=settings.plugin_dir,
            resource=settings.resource_count,
            make_plugin=self._make_plugin,
            clock=self.clock,
            stop=self.stop,
            on_registered=lambda _: self.metrics.count_registration(settings.resource_count),
            on_failed=lambda _: self.metrics.set_registered(settings.resource_count, False),
        )
        self.config_watch = ConfigWatch(sources.files(), self.reload)
        self.cluster: ClusterSide | None = None

    def _make_plugin(self) -> DevicePlugin:
        return DevicePlugin(
            self.inventory,
            self.allocator,
            prefers=self.settings.preferred_allocation,
            tells_numa=self.settings.numa_topology,
        )

    def start(self) -> None:
        """Find the cards, register, then load and start the rest.

        Raises:
            ConfigError: credentials, an address or the size of the device list are wrong.
        """
        settings = self.settings
        self.scanner.scan_once()
        refuse_oversize(self.inventory.cards)
        remove_stale_sockets(settings.plugin_dir, settings.resource_count)
        self.threads.start("lifecycle", self._live)
        self._start_cluster()
        self.threads.start("scanner", self._scan)

    def _live(self) -> None:
        """Register once there is a card to offer: an empty list would look like a broken node."""
        version = -1
        while not self.stop.is_set():
            version, cards = self.inventory.snapshot()
            if cards:
                self.lifecycle.run()
                return
            self.inventory.wait_newer_or(version, self.stop.is_set, 3600.0)

    def _scan(self) -> None:
        self.scanner.run(self.stop)

    def _start_cluster(self) -> None:
        # Imported here: the Kubernetes client and prometheus are slow, kubelet is not to wait.
        from hami_node.cluster_side import ClusterSide

        self.lifecycle.registered.wait(0.5)
        self.cluster = ClusterSide(self)
        self.cluster.start()

    def reload(self) -> None:
        """Read the configuration again; a wrong one keeps the settings in force."""
        found = resolve(self._sources)
        errors = [str(error) for error in found.errors]
        if not errors:
            try:
                refuse_oversize(shape(self.inventory.cards, sharing_of(found.settings)))
            except ConfigError as e:
                errors.append(str(e))
        if errors:
            self.metrics.count_config_failure()
            for error in errors:
                log.error("config_refused", extra=kv(error=error, kept="the settings in force"))
            return
        changed = changed_fields(self.settings, found.settings)
        fixed = sorted(set(changed) & FIXED_SETTINGS)
        if fixed:
            log.warning("config_needs_restart", extra=kv(settings=fixed))
        kept = {name: getattr(self.settings, name) for name in fixed}
        new = replace(found.settings, **kept)
        needs_registration = (
            new.preferred_allocation != self.settings.preferred_allocation
            or new.numa_topology != self.settings.numa_topology
        )
        self.settings = new
        if isinstance(self.backend, NvmlBackend):
            self.backend.apply(nvml_settings(new))
        self.scanner.share(sharing_of(new))
        self.metrics.count_config_loaded()
        log.info("config_applied", extra=kv(changed=changed))
        if self.cluster is not None:
            self.cluster.wake()
        if needs_registration:
            self.lifecycle.restart()

    def hang_up(self) -> None:
        """SIGHUP: read the configuration and register with kubelet again."""
        self.reload()
        self.lifecycle.restart()

    def wait(self) -> int:
        """Wait for the end; the process's exit code."""
        while not self.stop.wait(1.0):
            if self.scanner.needs_new_process:
                log.error("restart_needed", extra=kv(why=self.scanner.state.error))
                self.stop.set()
                self.threads.died = self.threads.died or "backend"
        self.inventory.wake()
        self.lifecycle.wake()
        self.backend.close()
        if self.cluster is not None:
            self.cluster.close()
        self.threads.join()
        if self.cluster is not None:
            self.cluster.finish()
        log.info("stopped", extra=kv(died=self.threads.died or None))
        return 1 if self.threads.died else 0


def make_backend(settings: Settings, clock: Clock) -> Backend:
    """The source of cards that the settings name.

    Raises:
        ConfigError: the simulated cards' file is missing or wrong.
    """
    if settings.backend is BackendKind.SIMULATED:
        from hami_node.backends.simulated import SimulatedBackend

        if settings.simulated_file is None:
            raise ConfigError(
                "settings", "simulated-file", None, "name the YAML file of the simulated cards"
            )
        return SimulatedBackend(settings.simulated_file, settings.node_name)
    return NvmlBackend(clock, nvml_settings(settings))


def nvml_settings(settings: Settings) -> NvmlSettings:
    """How the driver is asked."""
    return NvmlSettings(
        places=Places(
            sysfs_root=settings.sysfs_root,
            preconfigured_memory_mib=settings.preconfigured_memory_mib or None,
        ),
        xids=XidPolicy(ignored=frozenset(settings.xids_ignored)),
        interval_s=settings.scan_interval_s,
    )


def run_daemon(settings: Settings, sources: ConfigSources) -> int:
    """Run until SIGTERM or SIGINT; the process's exit code.

    Raises:
        ConfigError: a setting is wrong.
    """
    configure(settings.log_format, settings.log_level)
    if not settings.node_name:
        raise ConfigError("environment", "NODE_NAME", None, "set it to this node's name")
    if not settings.plugin_dir.is_dir():
        raise ConfigError(
            "settings", "plugin-dir", str(settings.plugin_dir), "mount kubelet's folder there"
        )
    log.info(
        "starting",
        extra=kv(version=__version__, node=settings.node_name, backend=settings.backend),
    )
    if settings.ignored:
        log.warning("settings_without_effect", extra=kv(names=settings.ignored))
    daemon = Daemon(settings, sources)
    if daemon.backend.is_simulated:
        log.warning("cards_are_simulated", extra=kv(file=settings.simulated_file))
    signal.signal(signal.SIGTERM, lambda *_: daemon.stop.set())
    signal.signal(signal.SIGINT, lambda *_: daemon.stop.set())
    signal.signal(signal.SIGHUP, lambda *_: _in_thread(daemon.hang_up))
    try:
        daemon.start()
    except BaseException:
        daemon.stop.set()
        raise
    return daemon.wait()


def _in_thread(call: Callable[[], None]) -> None:
    """A signal handler must not wait for locks."""
    threading.Thread(target=call, name="signal", daemon=True).start()
