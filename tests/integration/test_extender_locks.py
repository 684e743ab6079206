"""Many pods for one node whose plugin needs the lock: in turn, and at what cost."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fakes.pods import Box
from tests.integration.extender_rig import ExtenderRig, pod_manifest

pytestmark = pytest.mark.timeout(120)
COUNT = 16
SERVED_AFTER_S = 0.05


def test_binds_that_wait_for_one_lock_cost_a_few_requests_each() -> None:
    rig = ExtenderRig(lock_wait_s=30.0)
    rig.write_node("n0", has_identity=False)
    rig.start()
    stop = threading.Event()

    def allocate() -> None:
        """The plugin: serves whoever is bound, a moment later."""
        served: set[str] = set()
        while not stop.wait(SERVED_AFTER_S):
            for pod in rig.pods():
                if pod.node_name and pod.name not in served:
                    served.add(pod.name)
                    rig.serve(pod.name)

    plugin = threading.Thread(target=allocate)
    pods = [pod_manifest(f"p{number}", (Box(memory_mib=1000),), {}) for number in range(COUNT)]
    stored = [rig.api.create("pods", pod) for pod in pods]
    assert all(rig.filter(pod, ["n0"])["NodeNames"] for pod in stored)
    rig.settle()
    before = len(rig.api.requests())
    plugin.start()
    with ThreadPoolExecutor(COUNT) as pool:
        errors = list(pool.map(lambda pod: rig.bind(pod, "n0"), stored))
    stop.set()
    plugin.join()
    asked = [
        request for request in rig.api.requests()[before:] if request.resource in ("pods", "nodes")
    ]
    rig.close()
    assert errors == [""] * COUNT
    # phase, binding, and the lock: free at first sight, taken by a look, or waited for
    assert len(asked) <= 6 * COUNT, len(asked)
