"""The stage of the demo: two simulated nodes and an API server, with the real programs on them.

The programs, two daemons and an extender, are the product as it ships, started by its own command
line. Everything lies in one temporary folder that is gone afterwards.
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

from hami_node.errors import ConfigError
from hami_node.model import Node
from hami_node.node.response import LIBRARY, LOCK_FOLDER, PRELOAD
from hami_node.ports import Clock
from hami_node.simulate.apiserver import ApiServer
from hami_node.simulate.demo_program import Program, program_env
from hami_node.simulate.kube_scheduler import Extender
from hami_node.simulate.kubelet import SimulatedKubelet
from hami_node.simulate.store import Json
from hami_node.wire import names
from hami_node.wire.objects import decode_node

T = TypeVar("T")

GPU_NODE: Final = "gpu-node"
NEURON_NODE: Final = "neuron-node"
EXTENDER: Final = "extender"
"""The extender's name among the programs; a daemon has its node's."""
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

CONFIG: Final = "device-config.yaml"
LIMIT_S: Final = 10.0
"""How long the demo waits for something that takes milliseconds; only a broken step takes it."""
POLL_S: Final = 0.005
LONGEST_TMP: Final = 40
"""A Unix socket's path has at most 107 bytes: a longer temporary folder is not used."""
COMMAND: Final = (sys.executable, "-m", "hami_node")


class StepFailed(Exception):
    """A step of the demo was not true; the text says what was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedNode:
    """A node's folder and its kubelet."""

    name: str
    folder: Path
    kubelet: SimulatedKubelet


class Stage:
    """Everything around the programs. A context manager: leaving it ends and removes all."""

    def __init__(
        self,
        clock: Clock,
        env: Mapping[str, str],
        command: Sequence[str] = COMMAND,
        limit_s: float = LIMIT_S,
    ) -> None:
        """Prepare; entering starts kubelets and API server, `start_...` the programs.

        Args:
            clock: measures.
            env: the environment to run programs in, without what would change their settings.
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
        self.programs: dict[str, Program] = {}
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
        running = tuple(self.programs.values())
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
        _write_config(folder)
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

    # -- the programs ------------------------------------------------------------------------------
    def start_daemon(self, node: SimulatedNode) -> None:
        """Start the node's daemon as a process of its own."""
        at = node.folder
        flags = {
            "--config-file": at / CONFIG,
            "--node-config-file": at / "config.json",
            "--backend": "simulated",
            "--simulated-file": self.card_file(node),
            "--plugin-dir": at / "dp",
            "--pod-resources-socket": at / "pr" / "kubelet.sock",
            "--hook-path": at / "hook",
            "--metrics-address": "127.0.0.1:0",
        }
        given = [str(part) for flag in flags.items() for part in flag]
        title = f"the daemon of {node.name}"
        self._start(node.name, title, ["run", *given], at / "daemon.log", NODE_NAME=node.name)

    def start_extender(self) -> None:
        """Start the extender as a process of its own, on a free port."""
        at = self.folder / EXTENDER
        at.mkdir()
        _write_config(at)
        flags = {
            "--http-bind": "127.0.0.1:0",
            "--metrics-address": "off",  # /metrics is served beside /filter too
            "--config-file": str(at / CONFIG),
        }
        given = [part for flag in flags.items() for part in flag]
        self._start(EXTENDER, "the extender", ["extender", *given], at / "extender.log")

    def _start(
        self, name: str, title: str, arguments: Sequence[str], log_file: Path, **more: str
    ) -> None:
        env = program_env(self._env) | {"KUBECONFIG": str(self.kubeconfig), **more}
        command = [*self._command, *arguments]
        self.programs[name] = Program.start(title, command, env, log_file, self.clock.monotonic())

    def program(self, name: str) -> Program:
        """A daemon by its node's name, or the extender. Raises StepFailed before its start."""
        if name not in self.programs:
            raise StepFailed(f"{name} was not started")
        return self.programs[name]

    @property
    def daemon(self) -> Program:
        """The daemon of the GPU node. Raises StepFailed before its start."""
        return self.program(GPU_NODE)

    @property
    def extender(self) -> Extender:
        """Where the extender listens. Raises StepFailed while it does not."""
        port = self.program(EXTENDER).port_of("extender_served")
        if port is None:
            raise StepFailed("the extender does not listen yet")
        return Extender(port=port)

    def until(
        self, program: str, what: str, look: Callable[[], T | None], every_s: float = POLL_S
    ) -> T:
        """Look again and again until there is something to see, and return that.

        Args:
            program: who has to bring it about: a node's name, or EXTENDER.
            what: what is waited for, in words.
            look: None or False while there is nothing to see.
            every_s: how often to look.

        Raises:
            StepFailed: the program has ended, or it takes too long.
        """
        deadline = self.clock.monotonic() + self._limit_s
        one = self.program(program)
        while True:
            code = one.exit_code
            seen = look()
            if seen is not None and seen is not False:
                return seen
            if code is not None:
                raise StepFailed(f"expected: {what}; but {one.title} ended with code {code}")
            if self.clock.monotonic() > deadline:
                raise StepFailed(f"expected: {what}; not so within {self._limit_s:g} s")
            self.stop.wait(every_s)

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


def _write_config(folder: Path) -> None:
    (folder / CONFIG).write_text(f"nvidia: {{deviceSplitCount: {SPLIT}}}\n", encoding="utf-8")


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
