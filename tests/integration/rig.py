"""The daemon in this process between a simulated kubelet and a simulated API server."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hami_node.config.sources import ConfigSources
from hami_node.model import Device, Pod
from hami_node.node.daemon import Daemon
from hami_node.ports import Clock
from hami_node.simulate.kubelet import Admission
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.registry import VENDORS
from hami_node.vendors.spec import AnyVendor
from hami_node.wire import names
from hami_node.wire.objects import decode_pod
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.cards import cards_file, uuid
from tests.fakes.clock import PacedClock
from tests.fakes.faulty_kubelet import FaultyKubelet
from tests.fakes.limiter import lay_limiter, take_limiter
from tests.fakes.pods import NODE, Box, Generation, Part, Reserved, layout, pod_body, reservation
from tests.fakes.processes import started
from tests.fakes.settings import load
from tests.fakes.waiting import eventually, remove

GPU: Final = nvidia_names.RESOURCE_GPU
SLOTS: Final = 10
PACE: Final = 10.0
"""How much faster the daemon's intervals and back-off pass."""
LIMIT_S: Final = 60.0
"""For hopeless cases: at this pace the longest pauses of a watch or a registration are 3 s."""


class Site:
    """What no daemon's end ends: the API server with its node and pods, the limiter, the disk."""

    def __init__(self) -> None:
        # Short, for a unix socket's path has at most 107 characters.
        self.root = Path(tempfile.mkdtemp(prefix="hn-"))
        self.record, self.hook = self.root / "record", self.root / "hook"
        self.lay_limiter()
        self.api = FaultyApiServer().start()
        self.kubeconfig = self.api.write_kubeconfig(self.root / "kubeconfig")
        self.api.create("nodes", {"metadata": {"name": NODE}, "status": {"capacity": {}}})

    def close(self) -> None:
        """End everything and remove the folder."""
        self.api.stop()
        remove(self.root)

    def lay_limiter(self, version: str = "") -> None:
        """Put stand-ins of the limiter's files where the node has them."""
        lay_limiter(self.hook, version)

    def take_limiter(self) -> None:
        """Remove them."""
        take_limiter(self.hook)

    def lock(self, pod: str, at: str = "2099-01-01T00:00:00Z") -> None:
        """Take the node's lock for a pod; far in the future, so that it never expires."""
        self.api.annotate("nodes", NODE, {names.NODE_LOCK: f"{at},default,{pod}"})

    def pod(self, name: str) -> Pod:
        """The pod as the API server has it."""
        return decode_pod(self.api.read("pods", name, "default"))

    @property
    def notes(self) -> dict[str, str]:
        """The node's annotations."""
        node = self.api.read("nodes", NODE)
        return dict(node["metadata"].get("annotations") or {})

    @property
    def register_text(self) -> str:
        """What the node registered."""
        return self.notes.get(nvidia_names.NODE_REGISTER, "")

    @property
    def lock_text(self) -> str:
        """The node lock; empty when it is free."""
        return self.notes.get(names.NODE_LOCK, "")

    def bind_phase(self, name: str) -> str:
        """The pod's bind phase."""
        return self.pod(name).annotations.get(names.POD_BIND_PHASE, "")

    def waits(self, name: str) -> str:
        """What is left of the pod's reservation, without separators."""
        return self.pod(name).annotations.get(nvidia_names.POD_TO_ALLOCATE, "").replace(";", "")

    def events(self, reason: str) -> list[str]:
        """Messages of the Events with that reason."""
        return [note["message"] for note in self.api.list("events") if note["reason"] == reason]


class Rig(Site):
    """All the parts of one node. `start` and `stop` are the daemon's; the rest stays."""

    def __init__(
        self,
        *,
        cards: int = 4,
        lists_ended_pods: bool = False,
        vendors: Sequence[AnyVendor] = VENDORS,
    ) -> None:
        super().__init__()
        self.vendors = tuple(vendors)
        self.resource = GPU
        self.cards_path = self.root / "cards.yaml"
        self.config_path = self.root / "device-config.yaml"
        self.plugins = self.root / "plugins"
        self.socket = self.root / "pr" / "kubelet.sock"
        self.card_count = cards
        self.closed_count = 0
        """How many of them can't be used when the daemon starts."""
        self.write_cards()
        self.kubelet = FaultyKubelet(self.plugins, self.socket, lists_ended_pods=lists_ended_pods)
        self.kubelet.start()
        self.daemon: Daemon | None = None
        self.clock: Clock = PacedClock(PACE)

    # -- the machine -------------------------------------------------------------------------------
    def write_cards(self, **faults: Any) -> None:
        """Replace the cards' file in one step."""
        new = self.root / "cards.new"
        new.write_text(cards_file(self.card_count, **faults), encoding="utf-8")
        new.replace(self.cards_path)

    def flags(self) -> dict[str, object]:
        """Of `hami-node run` as a process of its own on this node."""
        return {
            "node-name": NODE,
            "kubeconfig": self.kubeconfig,
            "backend": "simulated",
            "simulated-file": self.cards_path,
            "plugin-dir": self.plugins,
            "pod-resources-socket": self.socket,
            "hook-path": self.hook,
            "record-dir": self.record,
            "metrics-address": "off",
        }

    # -- the daemon --------------------------------------------------------------------------------
    def start(self, **flags: str) -> Daemon:
        """Start the daemon and wait until it has registered and reported."""
        daemon = self._start(**flags)
        self.wait_registered()
        eventually(lambda: self.register_text, LIMIT_S)
        return daemon

    def _start(self, **flags: str) -> Daemon:
        sources = self._sources(flags)
        daemon = Daemon(load(sources), sources, self.vendors, clock=self.clock)
        self.daemon = daemon
        daemon.start()
        return daemon

    def _sources(self, flags: Mapping[str, str]) -> ConfigSources:
        given = {name.replace("-", "_"): str(value) for name, value in self.flags().items()}
        return ConfigSources(
            blocks=tuple(vendor.settings for vendor in self.vendors),
            flags=given | dict(flags),
            config_file=self.config_path if self.config_path.exists() else None,
        )

    def stop(self) -> int:
        """Stop the daemon; its exit code. Every thread has to end."""
        daemon, self.daemon = self.daemon, None
        assert daemon is not None
        daemon.stop.set()
        code = daemon.wait()
        left = [thread.name for thread in daemon.threads.running if thread.is_alive()]
        assert not left, f"threads that did not end: {left}"
        return code

    def restart(self, **flags: str) -> Daemon:
        """As an upgrade does."""
        self.stop()
        return self.start(**flags)

    def close(self) -> None:
        """End everything and remove the folder."""
        if self.daemon is not None:
            self.stop()
        self.kubelet.stop()
        super().close()

    def wait_registered(self, count: int | None = None) -> None:
        """Wait until kubelet counts so many healthy slots; by default those of all open cards."""
        wanted = (self.card_count - self.closed_count) * SLOTS if count is None else count
        eventually(
            lambda: self.kubelet.allocatable(self.resource) == wanted and self.is_steady(), LIMIT_S
        )

    def is_steady(self) -> bool:
        """True while no registration is under way, which might cut the next call short."""
        made = self.daemon.resources if self.daemon is not None else ()
        cycles = [resource.lifecycle for resource in made if resource.lifecycle.registrations]
        return self.kubelet.is_settled() and all(cycle.registered.is_set() for cycle in cycles)

    @property
    def cards(self) -> tuple[Device, ...]:
        """The offered cards."""
        assert self.daemon is not None
        return self.daemon.resources[0].inventory.cards

    def metric(self, name: str, **labels: str) -> float | None:
        """The value of a series, or None; `labels` name the ones that must match."""
        cluster = self.daemon.cluster if self.daemon is not None else None
        assert cluster is not None
        for family in cluster.node.metrics.registry.collect():
            for sample in family.samples:
                is_named = sample.name == f"hami_node_{name}"
                if is_named and labels.items() <= sample.labels.items():
                    return sample.value
        return None

    def granted(self, card: int) -> float:
        """Bytes of a card that containers hold, by the metric."""
        return self.metric("card_memory_granted_bytes", uuid=uuid(card)) or 0.0

    # -- the cluster -------------------------------------------------------------------------------
    def place(
        self,
        name: str,
        boxes: Sequence[Box],
        reserved: Reserved,
        generation: Generation = Generation.V2_10,
        *,
        is_locked: bool = False,
        annotations: Mapping[str, str] | None = None,
    ) -> Pod:
        """Create a pod, reserve, lock if wanted, bind; the daemon has seen it afterwards."""
        text = layout(boxes, reserved, generation)
        notes = reservation(text) | dict(annotations or {})
        return self.bind(name, boxes, notes, is_locked=is_locked)

    def place_one(
        self, name: str, card: int = 0, memory_mib: int = 1000, *, is_locked: bool = False
    ) -> Pod:
        """A pod with one container, which holds so much of a card."""
        part = Part(uuid=uuid(card), memory_mib=memory_mib)
        return self.place(name, [Box(memory_mib=memory_mib)], {"main": [part]}, is_locked=is_locked)

    def bind(
        self,
        name: str,
        boxes: Sequence[Box],
        annotations: Mapping[str, str],
        *,
        is_locked: bool = False,
    ) -> Pod:
        """Create a pod with these annotations and bind it."""
        self.api.create("pods", pod_body(name, boxes, annotations, node=""))
        if is_locked:
            self.lock(name)
        self.api.edit("pods", name, lambda body: body["spec"].update(nodeName=NODE), "default")
        self.wait_seen(name)
        return self.pod(name)

    def wait_seen(self, name: str) -> None:
        """Wait until the daemon's watch shows the pod as it is now."""
        if self.daemon is None or self.daemon.cluster is None:
            return
        view = self.daemon.view
        wanted = self.pod(name).version

        def is_seen() -> bool:
            shown = view.pod("default", name)
            return shown is not None and shown.version >= wanted

        eventually(is_seen, LIMIT_S)

    def wait_node_seen(self) -> None:
        """Wait until the daemon's watch shows the node's annotations as they are now."""
        cluster = self.daemon.cluster if self.daemon is not None else None
        assert cluster is not None
        eventually(lambda: (node := cluster.node.view.node()) and node.annotations == self.notes)

    def admit(self, name: str) -> Admission:
        """Let kubelet admit the pod; a refused one is Failed, as kubelet leaves it."""
        answer = self.kubelet.admit(self.pod(name), self.resource)
        self.wait_followed_up(name)
        phase = "Running" if answer.is_admitted else "Failed"
        self.set_phase(name, phase)
        return answer

    def serve_one(self, name: str, card: int = 0, memory_mib: int = 1000) -> Admission:
        """As `place_one`, and kubelet admits it."""
        self.place_one(name, card, memory_mib)
        answer = self.admit(name)
        assert answer.is_admitted, answer.refusal
        return answer

    def wait_followed_up(self, name: str) -> None:
        """Wait until a refused pod has its phase, and the lock of one that is done is free."""
        cluster = self.daemon.cluster if self.daemon is not None else None
        if cluster is None:
            return
        if cluster.node.refused.get(self.pod(name).uid):
            eventually(lambda: self.bind_phase(name) == names.PHASE_FAILED, LIMIT_S)
        if self.bind_phase(name) in (names.PHASE_FAILED, names.PHASE_SUCCESS):
            eventually(lambda: not self.lock_text.endswith(f",default,{name}"), LIMIT_S)

    def set_phase(self, name: str, phase: str) -> None:
        """As kubelet reports it."""
        self.api.edit("pods", name, lambda body: body["status"].update(phase=phase), "default")
        self.wait_seen(name)

    def end(self, name: str) -> None:
        """The pod has run to its end."""
        self.kubelet.remove("default", name)
        self.set_phase(name, "Succeeded")


def inside(answer: Admission, container: str = "main") -> dict[str, str]:
    """The environment that a container got."""
    return dict(answer.responses[container].envs)


def launch(rig: Rig) -> subprocess.Popen[bytes]:
    """`hami-node run` as a process of its own, registered and reported."""
    process = started(rig.root / "log", "run", rig.flags())
    rig.wait_registered()
    eventually(lambda: names.NODE_IDENTITY in rig.notes, LIMIT_S)
    return process
