"""The keeper of MIG instances over the real NVML calls, in processes that a test may have killed.

`Programs` talks to a process that has imported everything and has no thread: it forks for each
command, so that the child is a new program with nothing but the record and the hardware.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hami_node.clock import Deadline, SystemClock
from hami_node.errors import AllocationError
from hami_node.model import Container, Grant
from hami_node.node.cards.records import CardRecord
from hami_node.record.file import RecordFile
from hami_node.vendors.nvidia.driver.library import DriverLibrary
from hami_node.vendors.nvidia.node.mig.keeper import CHECK_S, MigInstances
from hami_node.vendors.nvidia.nvml.backend import NvmlBackend, NvmlSettings
from hami_node.vendors.nvidia.nvml.cards import HostSources
from hami_node.vendors.nvidia.nvml.xid_ledger import XidPolicy
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.answer import Slice
from hami_node.vendors.on_node.parts import PartHolder, PartsKept, PartsSituation
from tests.fakes.mig_node import row
from tests.nvml_stub.control import UUIDS, Stub, card

RECORD_NAME: Final = "mig-instances"
PASSES: Final = 12
ALLOCATE_S: Final = 5.0
CALL_LIMIT_S: Final = 4.0
"""So long may a call take, as on a busy machine; where one is to hang, a test waits less."""
GRANTS: Final = {
    "a": (row("2g.10gb", 0, card=UUIDS[0], memory_mib=9856),),
    "b": (
        row("1g.5gb", 2, card=UUIDS[0], memory_mib=4864),
        row("1g.5gb", 3, card=UUIDS[0], memory_mib=4864),
    ),
}
"""What the pods have been granted."""


def lines(*more: str) -> tuple[str, ...]:
    """The control file: two cards in MIG mode, and these."""
    return (*(card(number, mig="enabled") for number in range(2)), *more)


class HurriedClock(SystemClock):
    """Time that can be skipped."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s


@dataclass
class _Node:
    """One program's life; `held` are the pods that are there, `served` those with an answer."""

    stub: Stub
    folder: Path
    held: set[str]
    served: set[str]
    call_limit_s: float = CALL_LIMIT_S
    clock: HurriedClock = field(default_factory=HurriedClock)
    told: dict[str, Any] = field(default_factory=dict)

    def start(self) -> None:
        self.backend = NvmlBackend(
            SystemClock(),
            NvmlSettings(
                library=DriverLibrary(self.stub.library),
                sources=HostSources(sysfs_root=self.folder, meminfo=self.folder / "meminfo"),
                xids=XidPolicy(is_on=False),
                interval_s=30.0,
                call_limit_s=self.call_limit_s,
            ),
        )
        self.devices = self.backend.scan()
        self.keeper = MigInstances(
            self.backend.mig,
            CardRecord(self.folder, RECORD_NAME),
            lambda: NvidiaSettings(),
            lambda: self.devices,
            self.clock,
        )

    def do(self, step: str) -> None:
        word, _, rest = step.partition(" ")
        getattr(self, f"_{word}")(rest)

    def _say(self, line: str) -> None:
        self.stub.write(*lines(*filter(None, [line])))

    def _make(self, pod: str) -> None:
        self.held.add(pod)
        granted = Slice(
            pod_uid=pod,
            container=Container(name="c"),
            grants=GRANTS[pod],
            cards={device.uuid: device for device in self.devices},
        )
        try:
            made = self.keeper.make(granted, Deadline.after(ALLOCATE_S, self.clock.monotonic))
        except AllocationError as e:
            self.told[pod] = str(e)
            self.held.discard(pod)  # kubelet fails the pod
            return
        self.told[pod] = [part.uuid for part in made if part is not None]
        self.served.add(pod)

    def _end(self, pod: str) -> None:
        self.held.discard(pod)
        self.served.discard(pod)

    def _keep(self, passes: str) -> float | None:
        kept = PartsKept()
        for _ in range(int(passes)):
            self.devices = self.backend.scan()
            kept = self.keeper.keep(
                PartsSituation(
                    holders=tuple(_holder(pod, GRANTS[pod]) for pod in sorted(self.served)),
                    is_held=lambda uid: uid in self.held,
                )
            )
            self.clock.ahead_s += 120
        return kept.next_s

    def _settle(self, _: str) -> None:
        for _number in range(PASSES):
            if self._keep("1") in (None, CHECK_S):
                break
        self.told["record"] = on_record(self.folder)


def on_record(folder: Path) -> dict[str, str]:
    """MIG UUIDs by profile and start, as the file has them."""
    payload = RecordFile(folder, RECORD_NAME).load().payload
    kept: dict[str, Any] = json.loads(payload or b'{"instances":[]}')
    return {
        f"{row['profile']}@{row['placement'].get('start', 0)}": row.get("uuid", "")
        for row in kept["instances"]
    }


def _holder(pod: str, grants: tuple[Grant, ...]) -> PartHolder:
    return PartHolder(
        pod_uid=pod, namespace="n", pod=pod, container="c", grants=grants, annotations={}
    )


def _serve() -> None:
    """A command a line: the folder, the pods there, and the steps; an answer a line."""
    library, control = Path(sys.argv[1]), Path(sys.argv[2])
    for line in sys.stdin:
        command = json.loads(line)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            node = _Node(
                Stub(library, control),
                Path(command["folder"]),
                set(command["held"]),
                set(command["served"]),
                command["call_limit_s"],
            )
            node.start()
            for step in command["steps"]:
                node.do(step)
            os.write(writing, json.dumps(node.told).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as answer:
            told = answer.read() or b"{}"
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        print(json.dumps({"code": code, "told": json.loads(told)}), flush=True)


@dataclass(frozen=True, slots=True)
class Ended:
    """A program that has ended: its exit code, and what it told."""

    code: int
    told: dict[str, Any]


class Programs:
    """Programs one after the other on the same hardware and the same record."""

    def __init__(self, stub: Stub, folder: Path) -> None:
        self._folder = folder
        self.record = folder / f"{RECORD_NAME}.record"
        command = [sys.executable, "-m", "tests.faults.mig_program"]
        self._server = subprocess.Popen(
            [*command, str(stub.library), str(stub.file)],
            env={**os.environ, "NVML_STUB_FILE": str(stub.file)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self,
        *steps: str,
        held: Sequence[str] = (),
        served: Sequence[str] = (),
        call_limit_s: float = CALL_LIMIT_S,
    ) -> Ended:
        """A program that does these steps and ends, if it isn't killed before."""
        assert self._server.stdin
        assert self._server.stdout
        command = {
            "folder": str(self._folder),
            "held": list(held),
            "served": list(served),
            "steps": list(steps),
            "call_limit_s": call_limit_s,
        }
        print(json.dumps(command), file=self._server.stdin, flush=True)
        answer = json.loads(self._server.stdout.readline())
        return Ended(answer["code"], answer["told"])

    def close(self) -> None:
        """No more programs."""
        self._server.communicate(timeout=20)


if __name__ == "__main__":
    _serve()
