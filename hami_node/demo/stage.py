"""The stage of the demo: simulated nodes and an API server, with the real programs on them.

The programs, a daemon for each node and an extender, are the product as shipped, started by its
own command line. All files are in a temporary folder that is removed afterwards.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar

import hami_node
from hami_node.clock import SystemClock
from hami_node.config.sources import environment
from hami_node.errors import ConfigError, HamiError
from hami_node.model import Device, Node, Uuid
from hami_node.simulate.apiserver import ApiServer
from hami_node.simulate.kube_scheduler import HttpClient
from hami_node.simulate.kubelet import Admission, SimulatedKubelet
from hami_node.simulate.store import Json
from hami_node.vendors.demo import ForeignDevices, SharedCards, StepFailed
from hami_node.vendors.spec import AnyVendor
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
STOP_S: Final = 6.0
"""How long a program may take to shut down before it is killed."""
LOG_LINES: Final = 12
LONGEST_TMP: Final = 40
"""A Unix socket's path has at most 107 bytes: a longer temporary folder is not used."""
COMMAND: Final = (sys.executable, "-m", "hami_node")
_KEPT_ENV: Final = re.compile(r"(PATH|HOME|TMPDIR|LANG|LC_.*|LD_LIBRARY_PATH|PYTHON.*)")
"""What the programs get of the environment: nothing in it may change what the demo shows."""


class StoppedError(BaseException):
    """The demo is to end; everything is shut down on the way out. No step may catch it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A running program; `title` is its name for people: "the extender"."""

    title: str
    process: subprocess.Popen[bytes]
    log_file: Path
    started_s: float

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self.process.poll()

    def log_lines(self) -> list[str]:
        """All lines so far."""
        return self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()

    def logged(self, event: str) -> str | None:
        """The last line of an event; None before it happened."""
        return next(
            (line for line in reversed(self.log_lines()) if f" event={event} " in f"{line} "), None
        )

    def port_of(self, event: str) -> int:
        """The port that an event names. Raises StepFailed before it happened."""
        found = re.search(r" port=(\d+)", self.logged(event) or "")
        if found is None:
            raise StepFailed(f"{self.title} does not listen yet")
        return int(found[1])

    def stop(self) -> None:
        """Terminate it; kill it if it does not end."""
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_S)


class Stage:
    """Everything around the programs, and what earlier steps leave for later ones.

    A context manager that stops and removes all on exit.

    Attributes:
        shared: the simulated cards that pods share.
        foreign: simulated devices that other plugins serve, each on its own node.
        cards: the shared cards, as reported.
        home: the card that the first pod got, and that others share.
        served: what kubelet was answered for each pod that runs.
    """

    def __init__(
        self,
        vendors: Iterable[AnyVendor],
        *,
        command: Sequence[str] = COMMAND,
        limit_s: float = LIMIT_S,
        stop: threading.Event | None = None,
    ) -> None:
        """Prepare; entering starts kubelets and API server, `start_...` the programs.

        Args:
            vendors: provide the simulated devices; of several shared cards the first count.
            command: how `hami-node` is started.
            limit_s: how long to wait for what usually takes milliseconds.
            stop: ends every wait with `StoppedError`.

        Raises:
            HamiError: no vendor provides cards to share.
        """
        parts = [vendor.demo() for vendor in vendors if vendor.demo is not None]
        shared = next((part for part in parts if isinstance(part, SharedCards)), None)
        if shared is None:
            raise HamiError("no vendor brings cards that the demo could share")
        self.shared = shared
        self.foreign = tuple(part for part in parts if isinstance(part, ForeignDevices))
        self.clock = SystemClock()
        self.stop = stop or threading.Event()
        self._env = {key: text for key, text in environment().items() if _KEPT_ENV.fullmatch(key)}
        self._command, self._limit_s = command, limit_s
        self._exits = ExitStack()
        self.folder = Path()
        self.kubelets: dict[str, SimulatedKubelet] = {}
        self.programs: dict[str, Program] = {}
        self.api = ApiServer()
        self.cards: tuple[Device, ...] = ()
        self.home: Device | None = None
        self.served: dict[str, Admission] = {}

    def __enter__(self) -> Self:
        with ExitStack() as exits:
            self.folder = temporary_folder(tempfile.gettempdir())
            exits.callback(shutil.rmtree, self.folder, ignore_errors=True)
            exits.enter_context(self.api)
            self.kubeconfig = self.api.write_kubeconfig(self.folder / "kubeconfig")
            self._add_node(GPU_NODE, {}, {}, exits)
            for part in self.foreign:
                self._add_node(part.node, part.labels, part.quantities, exits)
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        running = tuple(self.programs.values())
        for item in running:
            item.process.terminate()  # all at once; they are awaited below
        for item in running:
            item.stop()
        self._exits.close()

    def _add_node(
        self, name: str, labels: Mapping[str, str], offered: Mapping[str, str], exits: ExitStack
    ) -> None:
        folder = self.folder / name
        hook = folder / "hook"
        for file, content in self.shared.limiter_files(hook).items():
            (hook / file).parent.mkdir(parents=True, exist_ok=True)
            (hook / file).write_bytes(content)
            (hook / file).chmod(0o644)  # whatever the umask: all users in a container read it
        self._write_config(folder)
        (folder / "config.json").write_text('{"nodeconfig": []}\n')
        kubelet = SimulatedKubelet(folder / "dp", folder / "pr" / "kubelet.sock")
        kubelet.start()
        exits.callback(kubelet.stop)
        status = {
            "capacity": dict(offered),
            "allocatable": dict(offered),
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        metadata = {"name": name, "labels": dict(labels)}
        self.api.create("nodes", {"metadata": metadata, "status": status})
        self.kubelets[name] = kubelet
        self._write_cards(name, self.shared.cards if name == GPU_NODE else ())

    def _write_config(self, folder: Path) -> None:
        (folder / CONFIG).write_text(self.shared.config(SPLIT), encoding="utf-8")

    # -- the programs ------------------------------------------------------------------------------
    def start_daemon(self, node: str) -> None:
        """Start the node's daemon as a separate process."""
        folder = self.folder / node
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
        title = f"the daemon of {node}"
        self._start(node, title, "run", flags, folder / "daemon.log", NODE_NAME=node)

    def start_extender(self) -> None:
        """Start the extender as a separate process, on a free port."""
        folder = self.folder / EXTENDER
        folder.mkdir()
        self._write_config(folder)
        flags = {
            "--http-bind": "127.0.0.1:0",
            "--metrics-address": "off",  # /metrics is served together with /filter too
            "--config-file": folder / CONFIG,
        }
        self._start(EXTENDER, "the extender", "extender", flags, folder / "extender.log")

    def _start(
        self,
        name: str,
        title: str,
        command: str,
        flags: Mapping[str, object],
        log_file: Path,
        **more: str,
    ) -> None:
        """Start a process of this same package, installed or not, in the folder of its log."""
        folders = (str(Path(hami_node.__file__).parent.parent), self._env.get("PYTHONPATH", ""))
        env = self._env | more | {"KUBECONFIG": str(self.kubeconfig), "PYTHONUNBUFFERED": "1"}
        env["PYTHONPATH"] = ":".join(filter(None, folders))
        started_s = self.clock.monotonic()
        with log_file.open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - our own command, no shell
                [*self._command, command, *(str(text) for flag in flags.items() for text in flag)],
                env=env,
                cwd=log_file.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the demo, which ends its programs
            )
        self.programs[name] = Program(
            title=title, process=process, log_file=log_file, started_s=started_s
        )

    def program(self, name: str) -> Program:
        """A daemon by its node's name, or the extender. Raises StepFailed before its start."""
        if name not in self.programs:
            raise StepFailed(f"{name} was not started")
        return self.programs[name]

    @property
    def extender(self) -> HttpClient:
        """A client of the extender. Raises StepFailed while it does not listen."""
        return HttpClient(port=self.program(EXTENDER).port_of("extender_served"))

    @property
    def pages(self) -> HttpClient:
        """A client of the GPU node's daemon. Raises StepFailed while it does not listen."""
        return HttpClient(port=self.program(GPU_NODE).port_of("metrics_served"))

    def until(
        self, program: str, what: str, look: Callable[[], T | None], every_s: float = POLL_S
    ) -> T:
        """Call `look` until it returns something (not None and not False), and return that.

        Args:
            program: the program that has to cause it: a node's name, or EXTENDER.
            what: what is awaited, in words.
            look: what to call.
            every_s: how often.

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

    def since(self, began_s: float) -> str:
        """The time since then, in words."""
        return f"{(self.clock.monotonic() - began_s) * 1e3:.0f} ms"

    # -- the cluster -------------------------------------------------------------------------------
    @property
    def kubelet(self) -> SimulatedKubelet:
        """That of the node with the cards that pods share."""
        return self.kubelets[GPU_NODE]

    @property
    def resource(self) -> str:
        """The extended resource that counts shared cards."""
        return self.shared.protocol.counted[0]

    @property
    def id_count(self) -> int:
        """How many device IDs the shared cards have in kubelet."""
        return SPLIT * len(self.shared.cards)

    def read_node(self, name: str) -> Node:
        """The node object as stored by the API server."""
        return decode_node(self.api.read("nodes", name))

    def registered(self) -> tuple[Device, ...] | None:
        """The shared cards that the node object names; None without any."""
        return self.shared.protocol.registered_on(self.read_node(GPU_NODE)) or None

    def card(self, uuid: Uuid) -> Device:
        """The reported card of that UUID. Raises StepFailed when none has it."""
        found = next((card for card in self.cards if card.uuid == uuid), None)
        if found is None:
            raise StepFailed(f"no card of {GPU_NODE} has the UUID {uuid}")
        return found

    @property
    def shared_card(self) -> Device:
        """The card that the first pod got. Raises StepFailed if there is none."""
        if self.home is None:
            raise StepFailed("no pod got a card that others could share")
        return self.home

    def report_allocatable(self) -> None:
        """Update the GPU node's capacity and allocatable, as its kubelet does."""
        kubelet, resource = self.kubelet, self.resource

        def change(body: Json) -> None:
            body["status"]["capacity"][resource] = str(len(kubelet.devices(resource)))
            body["status"]["allocatable"][resource] = str(kubelet.allocatable(resource))

        self.api.edit("nodes", GPU_NODE, change)

    def break_card(self, index: int | None, reason: str = "") -> None:
        """Make a shared card fail, or (None) make all cards healthy."""
        self._write_cards(GPU_NODE, self.shared.cards, index, reason)

    def card_file(self, node: str) -> Path:
        """The file with the node's simulated cards."""
        return self.folder / node / "cards.yaml"

    def _write_cards(
        self,
        node: str,
        cards: Sequence[tuple[str, int]],
        broken: int | None = None,
        reason: str = "",
    ) -> None:
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
