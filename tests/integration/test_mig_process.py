"""The daemon as a process of its own on divided cards: served to the end, and killed by SIGKILL.

What a kill at any other call leaves is told in-process: unit/vendors/nvidia/node/mig/test_kills.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.fakes.processes import started
from tests.fakes.waiting import eventually
from tests.integration.mig_rig import BY_TEMPLATE, SLOTS, MigRig, Row, Slot
from tests.integration.rig import GPU, LIMIT_S
from tests.nvml_stub.control import Stub
from tests.reliability import shows


class ProcessRig(MigRig):
    """`hami-node run`, with a driver that nobody else has."""

    def __init__(self, driver: Stub) -> None:
        super().__init__(driver)
        self.stub = Stub(driver.library, self.root / "nvml.txt")
        self.hardware = self.stub.mig
        self.show()
        self.process: subprocess.Popen[bytes] | None = None
        self.log = self.root / "log"

    def flags(self) -> dict[str, object]:
        """With the real driver's backend."""
        found = super().flags() | {
            "backend": "nvml",
            "config-file": self.config_path,
            "node-config-file": self.node_config,
            "scan-interval-s": "0.2",
            "report-interval-s": "1",
        }
        del found["simulated-file"]
        return found

    def start_process(self) -> None:
        """And wait until kubelet has every slot, and it has reported."""
        environment = {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(self.stub.library.parent),
            "NVML_STUB_FILE": str(self.stub.file),
            "DEVICE_LIST_STRATEGY": "envvar",
            "HAMI_NODE_VISIBLE_DEVICES_FORM": "bare",
        }
        self.process = started(self.log, "run", self.flags(), env=environment)
        self.wait_registered(SLOTS)
        eventually(lambda: names.NODE_IDENTITY in self.notes, LIMIT_S)

    def wait_dead(self) -> None:
        """It was killed by SIGKILL, and kubelet has noticed."""
        assert self.process is not None
        assert self.process.wait(LIMIT_S) == -signal.SIGKILL, self.log.read_text()
        self.process = None
        eventually(lambda: self.kubelet.allocatable(GPU) == 0, LIMIT_S)

    def close(self) -> None:
        """A daemon that still runs has to end in good order."""
        self.show()
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(LIMIT_S) == 0, self.log.read_text()
        super().close()


@pytest.fixture
def rig(stub_library: Stub) -> Iterator[ProcessRig]:
    """A node in MIG mode that serves."""
    with closing(ProcessRig(stub_library)) as made:
        made.start_process()
        yield made


@shows(
    "M6",
    fault="the daemon is killed between the GPU instance and the compute instance",
    happens="the next one removes what is left, releases its pod's node lock, and serves the place",
    lost="the pod of that call: kubelet fails it",
)
def test_hazard_06_kill_between_two_calls_leaves_neither_instance_nor_lock(rig: ProcessRig) -> None:
    other = rig.serve("other", Row(start=0))
    rig.show("nth kill changes * 2 before kill")
    rig.divide("p", {"main": [Row()]}, is_locked=True)
    assert not rig.admit("p").is_admitted
    rig.wait_dead()
    assert [it.compute for it in rig.instances() if it.start == 6] == [()]
    rig.show()
    assert rig.lock_text
    rig.start_process()
    eventually(lambda: not rig.lock_text, LIMIT_S)
    rig.wait_places(("1g.5gb", 0))
    assert rig.at(0).uuid == other
    assert rig.serve("next", Row()) == rig.at(6).uuid


@shows(
    "G2",
    fault="the daemon is killed at a call that destroys the MIG instance of a pod that has ended",
    happens="the next one goes on with it and serves the place; instances of living pods are as "
    "they were",
)
def test_hazard_06_kill_while_an_instance_is_destroyed_the_next_daemon_goes_on(
    rig: ProcessRig,
) -> None:
    other = rig.serve("other", Row(start=0))
    rig.serve("p", Row())
    rig.show("nth kill changes * 2 before kill")
    rig.delete("p")
    rig.wait_dead()
    rig.show()
    rig.start_process()
    rig.wait_places(("1g.5gb", 0))
    assert rig.at(0).uuid == other
    assert rig.serve("next", Row()) == rig.at(6).uuid


def test_restart_touches_no_instance_and_answers_and_publishes_the_same(
    rig: ProcessRig,
) -> None:
    rig.divide("new", {"main": [Row("2g.10gb", 4)]})
    rig.divide("old", {"main": [Slot(2)]})
    answers = [rig.admit(name) for name in ("new", "old")]
    changes, last_beat = rig.hardware.changes(), rig.notes[nvidia_names.NODE_HANDSHAKE]
    assert rig.process is not None
    rig.process.kill()
    rig.wait_dead()
    rig.start_process()
    for answer in answers:
        again = rig.kubelet.call_again(GPU, answer.device_ids["main"])
        assert again.SerializeToString(deterministic=True) == answer.responses[
            "main"
        ].SerializeToString(deterministic=True)
    assert rig.hardware.changes() == changes
    eventually(lambda: rig.notes[nvidia_names.NODE_HANDSHAKE] != last_beat, LIMIT_S)
    told = rig.log.read_text()
    assert "card_unhealthy" not in told
    assert nvidia_names.NODE_REGISTER not in told, "written anew: it said something else meanwhile"
    rig.delete("new")
    rig.delete("old")
    rig.wait_places()
    rig.wait_places(number=BY_TEMPLATE)
