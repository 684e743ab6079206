"""The stage of the demo: two simulated nodes, their daemons as processes, and an API server.

The daemons are the product as it ships, started by its own command line. Everything lies in one
temporary folder that is gone afterwards.
"""

from __future__ import annotations

import http.client
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

import hami_node
from hami_node.config import CONFIG_FILE_ENV, ENV_PREFIX, IGNORED_ENV, NODE_CONFIG_FILE_ENV
from hami_node.errors import ConfigError
from hami_node.model import Node
from hami_node.node.response import LIBRARY, LOCK_FOLDER, PRELOAD
from hami_node.ports import Clock
from hami_node.settings import names_of
from hami_node.simulate.apiserver import ApiServer
from hami_node.simulate.kubelet import SimulatedKubelet
from hami_node.simulate.store import Json
from hami_node.wire import names
from hami_node.wire.objects import decode_node

T = TypeVar("T")

GPU_NODE: Final = "gpu-node"
NEURON_NODE: Final = "neuron-node"
SPLIT: Final = 10
CARDS: Final = (
    ("NVIDIA A100-SXM4-40GB", 40960),
    ("NVIDIA A100-SXM4-40GB", 40960),
    ("NVIDIA L40S", 46068),
    ("NVIDIA L40S", 46068),
)
"""(model, MiB) of the simulated GPUs, by index."""
NEURON_TYPE: Final = "trn1.32xlarge"
NEURON_DEVICES: Final = 16
NEURON_CORES: Final = 32

LIMIT_S: Final = 10.0
"""How long the demo waits for something that takes milliseconds; only a broken step takes it."""
POLL_S: Final = 0.005
STOP_S: Final = 3.0
"""How long a daemon may take to sign off before it is killed."""
LOG_LINES: Final = 12
LONGEST_TMP: Final = 40
"""A Unix socket's path has at most 107 bytes: a longer temporary folder is not used."""
DAEMON: Final = (sys.executable, "-m", "hami_node")

_SILENT_PROXIES: Final = frozenset({"http_proxy", "https_proxy", "all_proxy"})


class StepFailed(Exception):
    """A step of the demo was not true; the text says what was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonProcess:
    """A running daemon and its log."""

    process: subprocess.Popen[bytes]
    log_file: Path
    started_s: float

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self.process.poll()

    def log(self) -> str:
        """All that it has logged."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def logged(self, event: str) -> str | None:
        """The last line of an event; None before it happened."""
        lines = [line for line in self.log().splitlines() if f" event={event} " in f"{line} "]
        return lines[-1] if lines else None

    def last_lines(self) -> tuple[str, ...]:
        """The end of the log, for people."""
        return tuple(self.log().splitlines()[-LOG_LINES:])

    def metrics_port(self) -> int | None:
        """Where it serves /metrics; None before it does."""
        found = re.search(r" port=(\d+)", self.logged("metrics_served") or "")
        return int(found[1]) if found else None

    def metrics(self, card: str) -> dict[str, float]:
        """Series without labels of their own and those of one card, by name; {} if unreachable."""
        port = self.metrics_port()
        if port is None:
            return {}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=STOP_S)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        except OSError:
            return {}
        finally:
            connection.close()
        found = re.findall(r"^(\w+)\{([^}]*)\} (\S+)$", text, re.MULTILINE)
        return {
            name: float(value)
            for name, labels, value in found
            if labels.count("=") == 1 or f'uuid="{card}"' in labels
        }

    def stop(self) -> None:
        """Ask it to end; kill it when it does not."""
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_S)


@dataclass(slots=True)
class SimulatedNode:
    """A node's folder, its kubelet, and its daemon once that runs."""

    name: str
    folder: Path
    kubelet: SimulatedKubelet
    process: DaemonProcess | None = None

    @property
    def daemon(self) -> DaemonProcess:
        """The daemon. Raises StepFailed before it was started."""
        if self.process is None:
            raise StepFailed(f"the daemon of {self.name} was not started")
        return self.process


class Stage:
    """Everything around the daemons. A context manager: leaving it ends and removes all."""

    def __init__(
        self,
        clock: Clock,
        env: Mapping[str, str],
        command: Sequence[str] = DAEMON,
        limit_s: float = LIMIT_S,
    ) -> None:
        """Prepare; entering starts kubelets and API server, `start_daemon` the daemons.

        Args:
            clock: measures.
            env: the environment to run daemons in, without what would change their settings.
            command: how `hami-node` is started.
            limit_s: how long to wait for what takes milliseconds.
        """
        self.clock = clock
        self.stop = threading.Event()
        self._env = env
        self._command = command
        self._limit_s = limit_s
        self._exits = ExitStack()
        self.folder = Path()
        self.nodes: dict[str, SimulatedNode] = {}
        self.api = ApiServer()

    def __enter__(self) -> Self:
        with ExitStack() as exits:
            self.folder = temporary_folder(tempfile.gettempdir())
            exits.callback(shutil.rmtree, self.folder, ignore_errors=True)
            if not LOCK_FOLDER.exists():
                exits.callback(_remove_if_empty, LOCK_FOLDER)
            exits.enter_context(self.api)
            self.kubeconfig = self.api.write_kubeconfig(self.folder / "kubeconfig")
            for name, status in ((GPU_NODE, {}), (NEURON_NODE, _neuron_quantities())):
                self.nodes[name] = self._add_node(name, status, exits)
            self._exits = exits.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace
        self.stop.set()
        running = [node.process for node in self.nodes.values() if node.process is not None]
        for one in running:
            one.process.terminate()  # side by side; waited for one by one below
        for one in running:
            one.stop()
        self._exits.close()

    @property
    def gpu(self) -> SimulatedNode:
        """The node with GPUs."""
        return self.nodes[GPU_NODE]

    @property
    def neuron(self) -> SimulatedNode:
        """The node with Neuron devices."""
        return self.nodes[NEURON_NODE]

    def _add_node(
        self, name: str, quantities: Mapping[str, str], exits: ExitStack
    ) -> SimulatedNode:
        folder = self.folder / name
        hook = folder / "hook" / "vgpu"
        hook.mkdir(parents=True)
        for file in (LIBRARY, PRELOAD):
            (hook / file).write_text("stand-in of the simulated node\n", encoding="utf-8")
        (folder / "device-config.yaml").write_text(f"nvidia: {{deviceSplitCount: {SPLIT}}}\n")
        (folder / "config.json").write_text('{"nodeconfig": []}\n')
        kubelet = SimulatedKubelet(folder / "dp", folder / "pr" / "kubelet.sock")
        kubelet.start()
        exits.callback(kubelet.stop)
        labels = {names.INSTANCE_TYPE: NEURON_TYPE} if quantities else {}
        self.api.create(
            "nodes",
            {
                "metadata": {"name": name, "labels": labels},
                "status": {
                    "capacity": dict(quantities),
                    "allocatable": dict(quantities),
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            },
        )
        node = SimulatedNode(name=name, folder=folder, kubelet=kubelet)
        self._write_cards(node, "")
        return node

    # -- the daemons -------------------------------------------------------------------------------
    def start_daemon(self, node: SimulatedNode) -> None:
        """Start the node's daemon as a process of its own."""
        at = node.folder
        flags = {
            "--config-file": at / "device-config.yaml",
            "--node-config-file": at / "config.json",
            "--backend": "simulated",
            "--simulated-file": self.card_file(node),
            "--plugin-dir": at / "dp",
            "--pod-resources-socket": at / "pr" / "kubelet.sock",
            "--hook-path": at / "hook",
            "--metrics-address": "127.0.0.1:0",
        }
        given = [str(part) for flag in flags.items() for part in flag]
        env = daemon_env(self._env) | {"NODE_NAME": node.name, "KUBECONFIG": str(self.kubeconfig)}
        log_file = at / "daemon.log"
        with log_file.open("wb") as log:
            node.process = DaemonProcess(
                process=subprocess.Popen(  # noqa: S603 - our own command, no shell
                    [*self._command, "run", *given],
                    env=env,
                    cwd=at,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is for the demo, which ends its daemons
                ),
                log_file=log_file,
                started_s=self.clock.monotonic(),
            )

    def until(self, node: SimulatedNode, what: str, look: Callable[[], T | None]) -> T:
        """Look again and again until there is something to see, and return that.

        Raises:
            StepFailed: the node's daemon has ended, or it takes too long.
        """
        deadline = self.clock.monotonic() + self._limit_s
        while True:
            code = node.daemon.exit_code
            seen = look()
            if seen is not None and seen is not False:
                return seen
            if code is not None:
                raise StepFailed(
                    f"expected: {what}; but the daemon of {node.name} ended with code {code}"
                )
            if self.clock.monotonic() > deadline:
                raise StepFailed(f"expected: {what}; not so within {self._limit_s:g} s")
            self.stop.wait(POLL_S)

    # -- the cluster -------------------------------------------------------------------------------
    def read_node(self, node: SimulatedNode) -> Node:
        """The node object as the API server holds it."""
        return decode_node(self.api.read("nodes", node.name))

    def tell_allocatable(self, node: SimulatedNode) -> None:
        """Write into the node's status what its kubelet offers, as a kubelet does."""
        kubelet = node.kubelet
        total = len(kubelet.devices(names.RESOURCE_GPU))
        healthy = kubelet.allocatable(names.RESOURCE_GPU)

        def change(body: Json) -> None:
            body["status"]["capacity"][names.RESOURCE_GPU] = str(total)
            body["status"]["allocatable"][names.RESOURCE_GPU] = str(healthy)

        self.api.edit("nodes", node.name, change)

    # -- the cards ---------------------------------------------------------------------------------
    @staticmethod
    def card_file(node: SimulatedNode) -> Path:
        """The file that says which cards the node has."""
        return node.folder / "cards.yaml"

    def break_card(self, index: int | None, reason: str = "") -> None:
        """Let one GPU fail, or (None) all be well."""
        self._write_cards(self.gpu, reason, index)

    def _write_cards(self, node: SimulatedNode, reason: str, broken: int | None = None) -> None:
        lines = ["cards:"] if node.name == GPU_NODE else ["cards: []"]
        for index, (model, memory_mib) in enumerate(CARDS if node.name == GPU_NODE else ()):
            fault = f", healthy: false, reason: {reason}" if index == broken else ""
            lines.append(f"  - {{model: {model}, memory_mib: {memory_mib}{fault}}}")
        path = self.card_file(node)
        fresh = path.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n", encoding="utf-8")
        fresh.replace(path)


def daemon_env(base: Mapping[str, str]) -> dict[str, str]:
    """The environment without settings of the product and without proxies, which change the demo.

    The package is found where this one was, installed or not.
    """
    known = {variable for one in names_of().values() for variable in one.env}
    known |= {CONFIG_FILE_ENV, NODE_CONFIG_FILE_ENV, *IGNORED_ENV}
    kept = {
        name: value
        for name, value in base.items()
        if name not in known
        and not name.startswith(ENV_PREFIX)
        and name.lower() not in _SILENT_PROXIES
    }
    places = [str(Path(hami_node.__file__).parent.parent), kept.get("PYTHONPATH", "")]
    return kept | {"PYTHONPATH": ":".join(filter(None, places)), "PYTHONUNBUFFERED": "1"}


def temporary_folder(usual: str) -> Path:
    """Make the demo's folder, below the usual place unless that path is too long for sockets.

    Raises:
        ConfigError: it can't be made.
    """
    parent = usual if len(usual) <= LONGEST_TMP else "/tmp"  # noqa: S108 - sockets need short paths
    try:
        return Path(tempfile.mkdtemp(prefix="hami-demo-", dir=parent))
    except OSError as e:
        cure = f"name a short, writable folder ({e.strerror})"
        raise ConfigError("environment", "TMPDIR", parent, cure) from e


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return  # somebody else's by now


def _neuron_quantities() -> dict[str, str]:
    return {
        names.RESOURCE_NEURON: str(NEURON_DEVICES),
        names.RESOURCE_NEURON_CORE: str(NEURON_CORES),
    }
