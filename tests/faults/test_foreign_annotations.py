"""Others write the same objects at the same time: nothing of theirs is lost."""

from __future__ import annotations

import threading

from hami_node.wire import names
from tests.fakes.cards import uuid
from tests.fakes.pods import NODE, Box, Part, pod_body, reservation
from tests.integration.rig import GPU, Rig
from tests.reliability import shows

BOX = Box(memory_mib=1000)
NETWORK = "k8s.ovn.org/pod-networks"


@shows(
    "P12",
    fault="a network plugin writes annotations of the pods and of the node while the daemon does",
    happens="both survive: the pods are served, and every foreign annotation is there",
)
def test_foreign_annotations_survive_every_write(node: Rig) -> None:
    node.start(report_interval_s="2")
    pods = [f"p{number}" for number in range(10)]
    stop = threading.Event()

    def write() -> None:
        rounds = 0
        while not stop.wait(0.002):
            rounds += 1
            for name in pods:
                values = {NETWORK: f"10.0.0.{rounds}", f"example.com/{rounds % 5}": "x"}
                node.api.annotate("pods", name, values, "default")
            node.api.annotate("nodes", NODE, {f"example.com/{rounds % 5}": str(rounds)})

    for number, name in enumerate(pods):
        text = f"{Part(uuid=uuid(number % 4), memory_mib=1000)};"
        node.api.create("pods", pod_body(name, [BOX], reservation(text)))
    for name in pods:
        node.wait_seen(name)
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for name in pods:
            answer = node.kubelet.admit(node.pod(name), GPU)
            assert answer.is_admitted, answer.refusal
    finally:
        stop.set()
        writer.join()
    for name in pods:
        annotations = node.pod(name).annotations
        assert annotations[names.POD_BIND_PHASE] == names.PHASE_SUCCESS
        assert annotations[NETWORK]
        assert not node.waits(name)
    assert node.notes["example.com/1"]
    assert node.register_text
