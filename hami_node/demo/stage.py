"""The stage of the demo: simulated nodes and an API server, with the real programs on them.

The programs, a daemon for each node and an extender, are the product as shipped, started by its
own command line. All files are in a temporary folder that is removed afterwards.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from hami_node.demo.cast import Cast
from hami_node.demo.program import Program, program_env
from hami_node.errors import ConfigError
from hami_node.model import Node
from hami_node.ports import Clock
from hami_node.simulate.apiserver import ApiServer
from hami_node.simulate.kube_scheduler import ExtenderClient
from hami_node.simulate.kubelet import SimulatedKubelet
from hami_node.simulate.store import Json
from hami_node.vendors.demo import StepFailed
from hami_node.wire.objects import decode_node

T = TypeVar("T")

GPU_NODE: Final = "gpu-node"
"""The node with the cards that pods share."""
EXTENDER: Final = "extender"
"""The extender's name among the programs; a daemon has the name of its node."""
SPLIT: Final = 10
CONFIG: Final = "device-config.yaml"
LIMIT_S: Final = 10.0
"""How long the demo waits for what usually takes milliseconds; only a failed step takes so long."""
POLL_S: Final = 0.005
LONGEST_TMP: Final = 40
"""A Unix socket's path has at most 107 bytes: a longer temporary folder is not used."""
COMMAND: Final = (sys.executable, "-m", "hami_node")


class StoppedError(BaseException):
    """The demo is to end; everything is shut down on the way out. No step may catch it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedNode:
    """A node's folder and its kubelet."""

    name: str
    folder: Path
    kubelet: SimulatedKubelet


class Stage:
    """Everything around the programs. A context manager that stops and removes all on exit."""

    def __init__(
        self,
        clock: Clock,
        env: Mapping[str, str],
        cast: Cast,
        command: Sequence[str] = COMMAND,
        limit_s: float = LIMIT_S,
        stop: threading.Event | None = None,
    ) -> None:
        """Prepare; entering starts kubelets and API server, `start_...` the programs.

        Args:
            clock: measures time.
            env: the environment for the programs; what would change their settings is removed.
            cast: the devices that the vendors provide.
            command: how `hami-node` is started.
            limit_s: how long to wait for what usually takes milliseconds.
            stop: ends every wait with `StoppedError`.
        """
        self.clock = clock
        self.cast = cast
        self.stop = stop or threading.Event()
        self._env = env
        self._command = command
        self._limit_s = limit_s
        self._exits = ExitStack()
        self.folder = Path()
        self.nodes: dict[str, SimulatedNode] = {}
        self.programs: dict[str, Program] = {}
        self.api = ApiServer()

    def __enter__(self) -> Self:
        with ExitStack() as exits:
            self.folder = temporary_folder(tempfile.gettempdir())
            exits.callback(shutil.rmtree, self.folder, ignore_errors=True)
            exits.enter_context(self.api)
            self.kubeconfig = self.api.write_kubeconfig(self.folder / "kubeconfig")
            self._add_node(GPU_NODE, {}, {}, exits)
            for part in self.cast.foreign:
                self._add_node(part.node, part.labels, part.quantities, exits)
            self._exits = exits.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace
        running = tuple(self.programs.values())
        for item in running:
            item.process.terminate()  # all at once; they are awaited below
        for item in running:
            item.stop()
        self._exits.close()

    @property
    def gpu(self) -> SimulatedNode:
        """The node with the cards that pods share."""
        return self.nodes[GPU_NODE]

    @property
    def resource(self) -> str:
        """The extended resource that counts shared cards."""
        return self.cast.shared.protocol.counted[0]

    def _add_node(
        self,
        name: str,
        labels: Mapping[str, str],
        quantities: Mapping[str, str],
        exits: ExitStack,
    ) -> None:
        folder = self.folder / name
        hook = folder / "hook"
        for file, content in self.cast.shared.limiter_files(hook).items():
            (hook / file).parent.mkdir(parents=True, exist_ok=True)
            (hook / file).write_bytes(content)
            (hook / file).chmod(0o644)  # whatever the umask: all users in a container read it
        self._write_config(folder)
        (folder / "config.json").write_text('{"nodeconfig": []}\n')
        kubelet = SimulatedKubelet(folder / "dp", folder / "pr" / "kubelet.sock")
        kubelet.start()
        exits.callback(kubelet.stop)
        self.api.create(
            "nodes",
            {
                "metadata": {"name": name, "labels": dict(labels)},
                "status": {
                    "capacity": dict(quantities),
                    "allocatable": dict(quantities),
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            },
        )
        self.nodes[name] = SimulatedNode(name=name, folder=folder, kubelet=kubelet)
        self._write_cards(self.nodes[name], "")

    def _write_config(self, folder: Path) -> None:
        (folder / CONFIG).write_text(self.cast.shared.config(SPLIT), encoding="utf-8")

    # -- the programs ------------------------------------------------------------------------------
    def start_daemon(self, node: SimulatedNode) -> None:
        """Start the node's daemon as a separate process."""
        folder = node.folder
        flags = {
            "--config-file": folder / CONFIG,
            "--node-config-file": folder / "config.json",
            "--backend": "simulated",
            "--simulated-file": self.card_file(node),
            "--plugin-dir": folder / "dp",
            "--pod-resources-socket": folder / "pr" / "kubelet.sock",
            "--hook-path": folder / "hook",
            "--record-dir": folder / "record",
            "--metrics-address": "127.0.0.1:0",
        }
        given = [str(text) for flag in flags.items() for text in flag]
        title = f"the daemon of {node.name}"
        self._start(node.name, title, ["run", *given], folder / "daemon.log", NODE_NAME=node.name)

    def start_extender(self) -> None:
        """Start the extender as a separate process, on a free port."""
        folder = self.folder / EXTENDER
        folder.mkdir()
        self._write_config(folder)
        flags = {
            "--http-bind": "127.0.0.1:0",
            "--metrics-address": "off",  # /metrics is served together with /filter too
            "--config-file": str(folder / CONFIG),
        }
        given = [text for flag in flags.items() for text in flag]
        self._start(EXTENDER, "the extender", ["extender", *given], folder / "extender.log")

    def _start(
        self, name: str, title: str, arguments: Sequence[str], log_file: Path, **more: str
    ) -> None:
        env = program_env(self._env, self.cast.blocks) | {
            "KUBECONFIG": str(self.kubeconfig),
            **more,
        }
        command = [*self._command, *arguments]
        self.programs[name] = Program.start(title, command, env, log_file, self.clock.monotonic())

    def program(self, name: str) -> Program:
        """A daemon by its node's name, or the extender. Raises StepFailed before its start."""
        if name not in self.programs:
            raise StepFailed(f"{name} was not started")
        return self.programs[name]

    @property
    def daemon(self) -> Program:
        """The daemon of the node with shared cards. Raises StepFailed before its start."""
        return self.program(GPU_NODE)

    @property
    def extender(self) -> ExtenderClient:
        """A client of the extender. Raises StepFailed while it does not listen."""
        port = self.program(EXTENDER).port_of("extender_served")
        if port is None:
            raise StepFailed("the extender does not listen yet")
        return ExtenderClient(port=port)

    def until(
        self, program: str, what: str, look: Callable[[], T | None], every_s: float = POLL_S
    ) -> T:
        """Call `look` until it returns something, and return that.

        Args:
            program: the program that has to cause it: a node's name, or EXTENDER.
            what: what is awaited, in words.
            look: returns None or False until then.
            every_s: how often to call it.

        Raises:
            StepFailed: the program has ended, or it takes too long.
            StoppedError: the demo is to end.
        """
        deadline = self.clock.monotonic() + self._limit_s
        awaited = self.program(program)
        while True:
            self.check_stop()
            code = awaited.exit_code
            seen = look()
            if seen is not None and seen is not False:
                return seen
            if code is not None:
                raise StepFailed(f"expected: {what}; but {awaited.title} ended with code {code}")
            if self.clock.monotonic() > deadline:
                raise StepFailed(f"expected: {what}; not met within {self._limit_s:g} s")
            self.stop.wait(every_s)

    def check_stop(self) -> None:
        """Raise StoppedError once the demo is to end."""
        if self.stop.is_set():
            raise StoppedError

    # -- the cluster -------------------------------------------------------------------------------
    def read_node(self, node: SimulatedNode) -> Node:
        """The node object as stored by the API server."""
        return decode_node(self.api.read("nodes", node.name))

    def report_allocatable(self, node: SimulatedNode) -> None:
        """Update the node's capacity and allocatable, as its kubelet does."""
        kubelet, resource = node.kubelet, self.resource
        total, healthy = len(kubelet.devices(resource)), kubelet.allocatable(resource)

        def change(body: Json) -> None:
            body["status"]["capacity"][resource] = str(total)
            body["status"]["allocatable"][resource] = str(healthy)

        self.api.edit("nodes", node.name, change)

    # -- the cards ---------------------------------------------------------------------------------
    @staticmethod
    def card_file(node: SimulatedNode) -> Path:
        """The file with the node's simulated cards."""
        return node.folder / "cards.yaml"

    def break_card(self, index: int | None, reason: str = "") -> None:
        """Make a shared card fail, or (None) make all cards healthy."""
        self._write_cards(self.gpu, reason, index)

    def _write_cards(self, node: SimulatedNode, reason: str, broken: int | None = None) -> None:
        cards = self.cast.shared.cards if node.name == GPU_NODE else ()
        lines = ["cards:"] if cards else ["cards: []"]
        for index, (model, memory_mib) in enumerate(cards):
            fault = f", healthy: false, reason: {reason}" if index == broken else ""
            lines.append(f"  - {{model: {model}, memory_mib: {memory_mib}{fault}}}")
        path = self.card_file(node)
        fresh = path.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n", encoding="utf-8")
        fresh.replace(path)


def temporary_folder(usual: str) -> Path:
    """Make the demo's folder, in the usual folder unless that path is too long for sockets.

    Raises:
        ConfigError: it can't be created.
    """
    parent = usual if len(usual) <= LONGEST_TMP else "/tmp"  # noqa: S108 - sockets need short paths
    try:
        return Path(tempfile.mkdtemp(prefix="hami-demo-", dir=parent))
    except OSError as e:
        hint = f"name a short, writable folder ({e.strerror})"
        raise ConfigError("environment", "TMPDIR", parent, hint) from e
