"""Many pods for one node whose plugin needs the lock: one after another."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hami_node.wire import names
from tests.fakes.pods import Box
from tests.integration.extender_rig import ExtenderRig, pod_manifest
from tests.reliability import shows

pytestmark = pytest.mark.timeout(120)


class OldPlugin:
    """HAMi 2.4's plugin: serves whoever is bound, and removes whatever lock stands there, twice.

    The second time is the retry of a removal whose answer was lost: it comes late, and the lock
    that it meets may be the next pod's.
    """

    def __init__(self, rig: ExtenderRig) -> None:
        self.rig, self.stop = rig, threading.Event()
        self.most_in_flight = self.late_removals = 0
        self._threads: dict[str, threading.Thread] = {}
        self._main = threading.Thread(target=self._run)
        self._main.start()

    def close(self) -> None:
        self.stop.set()
        self._main.join()
        for thread in self._threads.values():
            thread.join()

    def _run(self) -> None:
        while not self.stop.wait(0.01):
            in_flight = [
                pod.name
                for pod in self.rig.pods()
                if pod.annotations.get(names.POD_BIND_PHASE) == names.PHASE_ALLOCATING
            ]
            self.most_in_flight = max(self.most_in_flight, len(in_flight))
            for name in in_flight:
                if name not in self._threads:
                    self._threads[name] = threading.Thread(target=self._serve, args=(name,))
                    self._threads[name].start()

    def _serve(self, name: str) -> None:
        self.stop.wait(0.3)
        phase = {names.POD_BIND_PHASE: names.PHASE_SUCCESS}
        self.rig.api.annotate("pods", name, phase, "default")
        self.rig.api.annotate("nodes", "n0", {names.NODE_LOCK: None})
        self.stop.wait(0.15)
        self.late_removals += bool(self.rig.lock_of("n0"))
        self.rig.api.annotate("nodes", "n0", {names.NODE_LOCK: None})


@shows(
    "E8",
    fault="HAMi's 2.4 plugin removes a lock late, and it is the next pod's",
    happens="the pod after that waits until the plugin has served the one before",
)
def test_late_removal_of_a_lock_never_puts_two_pods_in_flight() -> None:
    rig = ExtenderRig(lock_wait_s=60.0)
    rig.write_node("n0", has_identity=False)
    rig.start()
    plugin = OldPlugin(rig)
    pods = [pod_manifest(f"p{number}", (Box(memory_mib=1000),), {}) for number in range(6)]
    stored = [rig.api.create("pods", pod) for pod in pods]
    assert all(rig.filter(pod, ["n0"])["NodeNames"] for pod in stored)
    with ThreadPoolExecutor(len(stored)) as pool:
        errors = list(pool.map(lambda pod: rig.bind(pod, "n0"), stored))
    plugin.close()
    rig.close()
    assert errors == [""] * len(stored)
    assert plugin.most_in_flight == 1
    assert plugin.late_removals > 0  # or nothing was shown
