"""kubelet restarts at the worst moments; running pods and repeated calls are as before."""

from __future__ import annotations

import threading

import pytest

from hami_node.wire import names
from tests.fakes.waiting import eventually
from tests.integration.rig import GPU, LIMIT_S, Rig
from tests.reliability import shows


@shows(
    "P8",
    fault="kubelet and the daemon restart, and kubelet asks again for a container that runs",
    happens="the answer is the same, byte for byte, although nothing is left to allocate",
)
@pytest.mark.parametrize("restarts", ["none", "daemon", "kubelet", "both"])
def test_repeated_call_after_restarts_gets_the_same_bytes(rig: Rig, restarts: str) -> None:
    answer = rig.serve_one("running", 1)
    if restarts in ("kubelet", "both"):
        before = len(rig.kubelet.registrations)
        rig.kubelet.restart()
        eventually(lambda: len(rig.kubelet.registrations) > before, LIMIT_S)
    if restarts in ("daemon", "both"):
        rig.restart()
    rig.wait_registered()
    rig.wait_seen("running")
    version = rig.pod("running").resource_version
    again = rig.kubelet.call_again(GPU, answer.device_ids["main"])
    assert again.SerializeToString(deterministic=True) == answer.responses[
        "main"
    ].SerializeToString(deterministic=True)
    assert rig.pod("running").resource_version == version


@shows(
    "P8",
    fault="kubelet restarts while Allocate waits for the API server",
    happens="the daemon registers again, the pod has one grant at most, and the next is served",
)
def test_kubelet_restarts_in_the_middle_of_allocate(rig: Rig) -> None:
    rig.place_one("unlucky", 1)
    rig.api.fail_next("patch", "pods", "hang")
    pod = rig.pod("unlucky")
    waiting = threading.Thread(target=lambda: rig.kubelet.admit(pod, GPU), daemon=True)
    waiting.start()
    eventually(lambda: list(rig.hook.rglob("*uid-unlucky*")), LIMIT_S)
    before = len(rig.kubelet.registrations)
    rig.kubelet.restart()
    eventually(lambda: len(rig.kubelet.registrations) > before, LIMIT_S)
    rig.api.faults.clear()
    waiting.join(LIMIT_S)
    rig.wait_registered()
    rig.kubelet.remove("default", "unlucky")
    rig.set_phase("unlucky", "Failed")
    rig.serve_one("next", 1)
    assert rig.bind_phase("next") == names.PHASE_SUCCESS
