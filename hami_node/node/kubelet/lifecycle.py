"""Stay registered with kubelet: serve a socket, register it, watch sockets and stream; then again.

Seen on real kubelets: at its start it empties the plugin folder, and a socket recreated under its
old name can vanish after registration. So every registration has a socket name of its own, and
the file is watched as long as it serves. kubelet counts our devices only while its ListAndWatch
stream is open, and ends it at times without a word: also when an older plugin of the resource stops
after a new one has registered. A slow plugin harms running pods: every wait here is short.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

from hami_node.errors import KubeletError
from hami_node.kubelet_api import deviceplugin_pb2 as api
from hami_node.kubelet_api.deviceplugin_pb2_grpc import (
    RegistrationStub,
    add_DevicePluginServicer_to_server,
)
from hami_node.logs import kv
from hami_node.node.kubelet.plugin import BUDGET_S, DevicePlugin
from hami_node.ports import Clock

log = logging.getLogger(__name__)

VERSION: Final = "v1beta1"
KUBELET_SOCKET: Final = "kubelet.sock"
CONNECT_RETRY_S: Final = 0.003
HASTE_S: Final = 1.0
"""How long connections to a new socket are tried in such haste."""
REGISTER_TIMEOUT_S: Final = 5.0
LIST_TIMEOUTS_S: Final = (0.8, 3.0, 10.0)
"""How long kubelet may take from registration to its first ListAndWatch; longer after it took too
long."""
STEADY_S: Final = 30.0
"""A stream that was open for so long ends a series of streams that kubelet ended."""
LIST_CHECK_S: Final = 0.02
CHECK_INTERVAL_S: Final = 1.0
"""How often the sockets are checked even if the folder watch reports nothing."""
BACK_OFF_S: Final = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
SWITCH_S: Final = 0.2
"""After its first list kubelet needs a moment to send its calls to the new server; and between two
calls for one pod."""
QUIET_LIMIT_S: Final = 2 * BUDGET_S
"""How long an old server is kept for a pod that is being admitted."""
RETIREMENT_S: Final = 1.0
"""When an old server stops, kubelet drops the newest one of that resource, within this time."""
DRAIN_S: Final = 5.0
"""How long a call in flight may take while the daemon stops."""
END_S: Final = 1.0
"""How long a server may take to stop once its stream has ended."""
THREADS: Final = 16


_SocketId = tuple[int, int]
"""(inode, change time): file systems reuse inode numbers at once."""


@dataclass(slots=True)
class _Serving:
    """A running server, its socket and kubelet's."""

    server: grpc.Server
    plugin: DevicePlugin
    path: Path
    kubelet: _SocketId


class _SocketHandler(FileSystemEventHandler):
    """Wakes the life cycle when a socket is created or removed."""

    def __init__(self, wake: Callable[[], None]) -> None:
        super().__init__()
        self._wake = wake

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Called in watchdog's thread."""
        if str(event.src_path).endswith(".sock"):
            self._wake()


class Lifecycle:
    """Keeps one resource registered until stopped. `run` is the thread's body."""

    def __init__(
        self,
        *,
        plugin_dir: Path,
        resource: str,
        make_plugin: Callable[[], DevicePlugin],
        clock: Clock,
        stop: threading.Event,
    ) -> None:
        """Nothing starts yet.

        Args:
            plugin_dir: kubelet's device-plugins folder.
            resource: the extended resource's name.
            make_plugin: a fresh servicer for each registration.
            clock: measures registrations.
            stop: ends `run`.
        """
        self._dir, self._resource, self._make_plugin = plugin_dir, resource, make_plugin
        self._clock, self._stop = clock, stop
        self._wake = threading.Event()
        self._is_restart_wanted = False
        self._check_s = CHECK_INTERVAL_S
        self._retiring: list[threading.Thread] = []
        self._unheeded = 0
        self._retirement = clock.deadline(0.0)
        self.registered = threading.Event()
        """Set while kubelet has accepted the current socket and keeps its stream open."""
        self.problem = ""
        """Why it is not registered, if that is known."""
        self.registrations = 0
        """How often kubelet has accepted a registration."""

    def remove_stale_sockets(self) -> None:
        """Remove those of a killed daemon; to be called before any resource is served."""
        for path in own_sockets(self._dir, self._resource):
            path.unlink(missing_ok=True)

    def restart(self) -> None:
        """Register again now (SIGHUP)."""
        self._is_restart_wanted = True
        self._wake.set()

    def wake(self) -> None:
        """Check the sockets now."""
        self._wake.set()

    def run(self) -> None:
        """Serve and register, repeatedly, until stopped; then leave no socket behind."""
        observer = self._watch_folder()
        self._check_s = CHECK_INTERVAL_S if observer is not None else LIST_CHECK_S
        serving: _Serving | None = None
        failures = 0
        try:
            while not self._stop.is_set():
                try:
                    serving = self._replace(serving)
                    failures = 0
                except (KubeletError, OSError) as e:
                    failures += 1
                    self.problem = str(e)
                    pause_s = BACK_OFF_S[min(failures, len(BACK_OFF_S)) - 1]
                    log.warning("register_failed", extra=kv(error=str(e), retry_s=pause_s))
                    self._pause(pause_s)
                    continue
                self._hold(serving)
        finally:
            self.registered.clear()
            if serving is not None:
                _retire(serving, DRAIN_S)
            for thread in self._retiring:
                thread.join(DRAIN_S)
            if observer is not None:
                observer.stop()
                observer.join(CHECK_INTERVAL_S)

    def _watch_folder(self) -> BaseObserver | None:
        """Watch the folder for changed sockets; without inotify they are polled instead."""
        observer = Observer()
        try:
            observer.schedule(_SocketHandler(self.wake), str(self._dir))
            observer.start()
        except OSError as e:
            hint = "raise fs.inotify.max_user_instances; the folder is polled until then"
            log.warning("folder_not_watched", extra=kv(folder=self._dir, error=str(e), hint=hint))
            return None
        return observer

    def _replace(self, old: _Serving | None) -> _Serving:
        """Serve on a new socket, register it, then stop the old server."""
        kubelet = self._wait_for_kubelet()
        began = self._clock.monotonic()
        self.registered.clear()
        self._is_restart_wanted = False
        new = self._serve(kubelet)
        try:
            self._register(new)
            if not new.path.exists():
                raise KubeletError(f"{new.path} vanished while kubelet registered it")
        except BaseException:
            _retire(new, 0)
            raise
        took_ms = round((self._clock.monotonic() - began) * 1e3, 1)
        self.registrations += 1
        fields = kv(resource=self._resource, socket=new.path.name, took_ms=took_ms)
        log.info("kubelet_registered", extra=fields)
        if old is not None:
            self._retiring = [thread for thread in self._retiring if thread.is_alive()]
            thread = threading.Thread(target=self._retire_after, args=(old, new), daemon=True)
            self._retiring.append(thread)
            thread.start()
        return new

    def _retire_after(self, old: _Serving, new: _Serving) -> None:
        """Let the old server answer until kubelet has switched to the new server."""
        limit = self._clock.deadline(LIST_TIMEOUTS_S[-1])
        while not new.plugin.listed.wait(LIST_CHECK_S) and limit.left_s():
            if self._stop.is_set():
                break
        self._await_quiet((old.plugin, new.plugin))
        if old.plugin.has_stream():
            self._retirement = self._clock.deadline(RETIREMENT_S)
        _retire(old, 0)

    def _await_quiet(self, plugins: Sequence[DevicePlugin]) -> None:
        """Wait until kubelet makes no calls: with the old stream it ends those to both servers.

        It makes several for one pod, with short pauses.
        """
        limit = self._clock.deadline(QUIET_LIMIT_S)
        while limit.left_s() and not self._stop.is_set():
            before = [plugin.calls for plugin in plugins]
            is_idle = all(plugin.wait_idle(LIST_CHECK_S) for plugin in plugins)
            self._stop.wait(SWITCH_S)
            if is_idle and before == [plugin.calls for plugin in plugins]:
                return

    def _wait_for_kubelet(self) -> _SocketId:
        """kubelet.sock's identity, once kubelet listens on it."""
        path = self._dir / KUBELET_SOCKET
        is_logged, tried, in_haste_until_s = False, None, 0.0
        while not self._stop.is_set():
            found = None
            try:
                found = _socket_id(path)
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                    probe.settimeout(REGISTER_TIMEOUT_S)
                    probe.connect(str(path))
                return found
            except OSError as e:
                if not is_logged:
                    log.info("kubelet_awaited", extra=kv(socket=path, error=e.strerror or str(e)))
                    is_logged = True
                    self.problem = f"kubelet does not answer on {path}: {e.strerror or e}"
                if found != tried:
                    tried, in_haste_until_s = found, self._clock.monotonic() + HASTE_S
                # bind() comes before listen(): a new socket may refuse for a moment
                is_hasty = found is not None and self._clock.monotonic() < in_haste_until_s
                self._pause(CONNECT_RETRY_S if is_hasty else self._check_s)
        raise KubeletError("stopped while waiting for kubelet")

    def _serve(self, kubelet: _SocketId) -> _Serving:
        path = self._dir / f"{_socket_prefix(self._resource)}{secrets.token_hex(4)}.sock"
        path.unlink(missing_ok=True)
        plugin = self._make_plugin()
        plugin.on_stream_end = self.wake
        server = grpc.server(ThreadPoolExecutor(THREADS, thread_name_prefix="plugin"))
        add_DevicePluginServicer_to_server(plugin, server)
        try:
            server.add_insecure_port(f"unix:{path}")
        except RuntimeError as e:
            raise KubeletError(f"can't serve on {path}: {e}") from e
        server.start()
        return _Serving(server=server, plugin=plugin, path=path, kubelet=kubelet)

    def _register(self, new: _Serving) -> None:
        request = api.RegisterRequest(
            version=VERSION,
            endpoint=new.path.name,
            resource_name=self._resource,
            options=new.plugin.options(),
        )
        try:
            with grpc.insecure_channel(f"unix:{self._dir / KUBELET_SOCKET}") as channel:
                RegistrationStub(channel).Register(request, timeout=REGISTER_TIMEOUT_S)
        except grpc.RpcError as e:
            detail = f"{e.code().name}: {e.details()}" if isinstance(e, grpc.Call) else str(e)
            raise KubeletError(f"kubelet refused to register {self._resource}: {detail}") from e

    def _hold(self, serving: _Serving) -> None:
        """Return when the registration has to be repeated."""
        began_s = self._clock.monotonic()
        limit_s = LIST_TIMEOUTS_S[min(self._unheeded, len(LIST_TIMEOUTS_S) - 1)]
        patience = self._clock.deadline(limit_s)
        while not self._stop.is_set():
            # in this order: a stream that opens between the two has not ended
            was_open, is_open = serving.plugin.listed.is_set(), serving.plugin.has_stream()
            why = self._lost(serving)
            if why:
                self._unheeded = 0
                self._lose(why)
                return
            if is_open:
                self.problem = ""
                self.registered.set()
                if self._clock.monotonic() - began_s > STEADY_S:
                    self._unheeded = 0
            elif was_open or not patience.left_s():
                verb = "has ended" if was_open else "never opened"
                self._lose(f"kubelet {verb} the ListAndWatch stream of {self._resource}")
                if self._retirement.left_s():
                    return
                self._unheeded += 1
                if not self._hold_back(serving):
                    return
            self._pause(self._check_s if is_open else LIST_CHECK_S)

    def _lose(self, why: str) -> None:
        self.problem = f"{why}; registering again"
        self.registered.clear()
        log.info("registration_lost", extra=kv(resource=self._resource, why=why))

    def _hold_back(self, serving: _Serving) -> bool:
        """Wait before registering again, unless something changed: kubelet may only be ending.

        Returns True if it has opened the stream meanwhile: it was only slow.
        """
        pause_s = BACK_OFF_S[min(self._unheeded, len(BACK_OFF_S)) - 1]
        until_s = self._clock.monotonic() + pause_s
        while (left_s := until_s - self._clock.monotonic()) > 0 and not self._stop.is_set():
            if self._lost(serving):
                return False
            if serving.plugin.has_stream():
                return True
            self._pause(min(left_s, self._check_s))
        return serving.plugin.has_stream()

    def _lost(self, serving: _Serving) -> str:
        if self._is_restart_wanted:
            return "a new registration was requested"
        try:
            serving.path.stat()
        except OSError:
            return "our socket was removed"
        try:
            found = _socket_id(self._dir / KUBELET_SOCKET)
        except OSError:
            return "kubelet's socket was removed"
        return "" if found == serving.kubelet else "kubelet created a new socket"

    def _pause(self, timeout_s: float) -> None:
        """Wait for a folder event, the end of a stream, a request, stop or the timeout."""
        self._clock.wait(self._wake, timeout_s)
        self._wake.clear()


def _socket_id(path: Path) -> _SocketId:
    found = path.stat()
    return found.st_ino, found.st_ctime_ns


def _retire(serving: _Serving, drain_s: float) -> None:
    """Stop a server and remove its socket; calls in flight may end within `drain_s`.

    They end first: kubelet cancels what is left of them when the stream ends.
    """
    serving.plugin.wait_idle(drain_s)
    serving.plugin.close()
    serving.server.stop(END_S).wait(2 * END_S)
    serving.path.unlink(missing_ok=True)


def own_sockets(plugin_dir: Path, resource: str) -> list[Path]:
    """The sockets of a resource that this product has made."""
    return list(plugin_dir.glob(f"{_socket_prefix(resource)}*.sock"))


def _socket_prefix(resource: str) -> str:
    return f"hami-{resource.replace('/', '-').replace('.', '-')}-"
