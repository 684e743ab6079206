"""The real process, killed with SIGKILL while Allocate waits for the API server."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator

import pytest

from hami_node.simulate.kubelet import Admission
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.fakes.cards import uuid
from tests.fakes.pods import Box, Part
from tests.fakes.processes import started
from tests.fakes.waiting import eventually
from tests.integration.rig import GPU, LIMIT_S, Rig, inside


def launch(rig: Rig) -> subprocess.Popen[bytes]:
    """`hami-node run`, registered and reported."""
    process = started(rig.root / "log", "run", rig.flags())
    rig.wait_registered()
    eventually(lambda: names.NODE_IDENTITY in rig.notes, LIMIT_S)
    return process


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    made: list[subprocess.Popen[bytes]] = []
    yield made
    for process in made:
        process.kill()
        process.wait(LIMIT_S)


def test_process_killed_in_the_middle_of_allocate_the_next_one_cleans_up_and_serves(
    node: Rig, processes: list[subprocess.Popen[bytes]]
) -> None:
    processes.append(launch(node))
    box, part = Box(memory_mib=30000), Part(uuid=uuid(1), memory_mib=30000)
    node.place("running", [Box(memory_mib=9000)], {"main": [Part(uuid=uuid(1), memory_mib=9000)]})
    assert node.admit("running").is_admitted
    pod = node.place("p", [box], {"main": [part]}, is_locked=True)
    node.api.fail_next("patch", "pods", "hang")
    answers: list[Admission] = []
    waiting = threading.Thread(target=lambda: answers.append(node.kubelet.admit(pod, GPU)))
    waiting.start()
    folder = node.hook / "vgpu" / "containers" / "uid-p_main"
    eventually(folder.is_dir, LIMIT_S)  # it is past its checks: next comes the patch
    processes[0].send_signal(signal.SIGKILL)
    processes[0].wait(LIMIT_S)
    waiting.join(LIMIT_S)
    node.api.faults.clear()
    assert not answers[0].is_admitted
    node.set_phase("p", "Failed")
    assert node.lock_text

    processes.append(launch(node))
    eventually(lambda: not node.lock_text, LIMIT_S)
    node.place("next", [box], {"main": [part]})
    answer = node.admit("next")
    assert answer.is_admitted, answer.refusal
    assert inside(answer)[nvidia_names.ENV_VISIBLE_DEVICES] == uuid(1)
    assert node.bind_phase("running") == names.PHASE_SUCCESS
    assert len(list(node.plugins.glob("hami-*.sock"))) == 1

    processes[1].send_signal(signal.SIGTERM)
    assert processes[1].wait(LIMIT_S) == 0
