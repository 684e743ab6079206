"""The daemon's own process on a node of divided cards, and what the hardware has in truth."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from hami_node.wire.objects import decode_pod
from tests.bench.daemon_rig import NODE, RESOURCE, DaemonRig, running_daemon
from tests.fakes.waiting import eventually
from tests.faults.mig_program import on_record
from tests.faults.process import LIMIT_S
from tests.nvml_stub.control import UUIDS, Stub, card
from tests.nvml_stub.mig import Instance, profiles_of

SERVED: Final = 0
"""The card on which instances are made."""
OTHER: Final = 1
FILTERED: Final = 2
"""A card that the settings leave alone, with an instance of somebody else's."""
PROFILES: Final = profiles_of("A100-40")
CORES: Final = {"1g.5gb": 15, "2g.10gb": 29, "3g.20gb": 43}
LARGEST: Final = 7
"""Slots of a card: the most instances of any profile."""


def cards(*lines: str) -> tuple[str, ...]:
    """The control file: three cards in MIG mode, and these lines."""
    return (*(card(number, mig="enabled") for number in range(3)), *lines)


@dataclass
class DividedNode:
    """A running daemon; `foreign` are the instances that others have made."""

    rig: DaemonRig
    foreign: dict[int, Instance] = field(default_factory=dict)
    ids: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def stub(self) -> Stub:
        """The driver."""
        return self.rig.stub

    # -- what goes wrong ---------------------------------------------------------------------------
    def say(self, *lines: str) -> None:
        """Exactly these lines beside the cards."""
        self.stub.write(*cards(*lines))

    def befall(self, calls: str, position: int, when: str, effect: str) -> str:
        """An nth line of the served card that has counted nothing yet; its id."""
        line = f"line-{next(self.ids)}"
        self.say(f"nth {line} {calls} {SERVED} {position} {when} {effect}")
        return line

    def wait_dead(self) -> None:
        """It was killed by SIGKILL."""
        assert self.rig.process.wait(LIMIT_S) == -signal.SIGKILL

    def restart(self) -> None:
        """After its end; waits until kubelet has every slot again."""
        self.rig.kubelet.restart()
        self.rig.start_again()
        self.wait_listed()

    # -- kubelet and the cluster -------------------------------------------------------------------
    def wait_listed(self) -> None:
        """Until the daemon serves."""
        eventually(lambda: self.rig.kubelet.allocatable(RESOURCE) >= LARGEST, LIMIT_S)

    def place(self, name: str, profile: str, start: int, number: int = SERVED) -> None:
        """A pod that the scheduler of 2.10 has reserved and bound."""
        wanted = PROFILES[profile]
        row = {
            "containerIndex": 0,
            "deviceIndex": 0,
            "gpuUUID": UUIDS[number],
            "profile": profile,
            "placement": {"start": start, "size": wanted.size},
        }
        grants = f"{UUIDS[number]},NVIDIA,{wanted.memory_mib},{CORES[profile]}:;"
        limits = {RESOURCE: "1", nvidia_names.RESOURCE_GPU_MEMORY: str(wanted.memory_mib)}
        self.rig.api.create(
            "pods",
            {
                "metadata": {
                    "name": name,
                    "namespace": "default",
                    "uid": f"uid-{name}",
                    "annotations": {
                        nvidia_names.POD_ALLOCATED: grants,
                        nvidia_names.POD_TO_ALLOCATE: grants,
                        nvidia_names.POD_MIG_ALLOCATIONS: json.dumps([row]),
                        names.POD_BIND_PHASE: names.PHASE_ALLOCATING,
                        names.POD_NODE: NODE,
                    },
                },
                "spec": {
                    "nodeName": NODE,
                    "containers": [{"name": "c", "resources": {"limits": limits}}],
                },
                "status": {"phase": "Pending"},
            },
        )

    def admit(self, name: str) -> str:
        """Let kubelet admit it; the MIG UUID that it has, or the refusal."""
        pod = decode_pod(self.rig.api.read("pods", name, "default"))
        answer = self.rig.kubelet.admit(pod, RESOURCE)
        if answer.refusal:
            self._end_wait(name, "Failed")
            return answer.refusal
        self._end_wait(name, "Running")
        return str(answer.responses["c"].envs["NVIDIA_VISIBLE_DEVICES"])

    def _end_wait(self, name: str, phase: str) -> None:
        """As kubelet reports it; a failed pod is in its list no more."""
        self.rig.api.edit("pods", name, lambda pod: pod["status"].update(phase=phase), "default")

    def admit_aside(self, name: str) -> threading.Thread:
        """The same while the test does something else."""
        thread = threading.Thread(target=self.admit, args=(name,))
        thread.start()
        return thread

    def delete(self, name: str) -> None:
        """Pod and container are gone."""
        self.rig.api.delete("pods", name, "default")
        self.rig.kubelet.remove("default", name)

    # -- the truth ---------------------------------------------------------------------------------
    def made(self, number: int = SERVED) -> dict[str, str]:
        """MIG UUIDs by profile and start, without what is foreign."""
        there = self.stub.mig.instances(UUIDS[number])
        own = [found for found in there if found != self.foreign.get(number)]
        return {f"{found.profile}@{found.start}": found.uuid for found in own}

    def is_foreign_whole(self) -> bool:
        """Nothing of somebody else's has changed."""
        return all(
            found in self.stub.mig.instances(UUIDS[number])
            for number, found in self.foreign.items()
        )

    def on_record(self) -> dict[str, str]:
        """The same as the daemon has it in its file."""
        return on_record(self.rig.root / "record")

    def agrees(self) -> bool:
        """Hardware and record are the same, and nothing is half done."""
        return self.made() == self.on_record() and "" not in self.made().values()

    def changes(self, number: int = SERVED) -> list[str]:
        """The calls that changed a card."""
        return [change.function for change in self.stub.mig.changes(UUIDS[number])]


@contextmanager
def divided_node(folder: Path) -> Iterator[DividedNode]:
    """A node with the operating mode mig; another's instances are on two of its cards."""
    config = folder / "config.json"
    filtered = {"uuid": [UUIDS[FILTERED]], "index": []}
    entry = {"name": NODE, "operatingmode": "mig", "filterdevices": filtered}
    config.write_text(json.dumps({"nodeconfig": [entry]}))
    foreign: dict[int, Instance] = {}

    def prepare(stub: Stub) -> None:
        stub.write(*cards())
        foreign[SERVED] = stub.mig.make(UUIDS[SERVED], "1g.5gb", 6)
        foreign[FILTERED] = stub.mig.make(UUIDS[FILTERED], "3g.20gb", 0, is_whole=False)

    with running_daemon("--node-config-file", str(config), prepare=prepare) as rig:
        node = DividedNode(rig, foreign)
        node.wait_listed()
        yield node
