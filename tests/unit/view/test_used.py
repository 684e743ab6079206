from __future__ import annotations

import threading

from hami_node.clock import Deadline
from hami_node.errors import KubeError
from hami_node.model import Pod
from hami_node.view.used import BUSY, KEPT_S, UsedReader
from tests.fakes.clock import FakeClock

LABELS = {"hami-node.io/metrics": "daemon"}
PAGE = b"""
hami_node_card_memory_used_bytes{uuid="GPU-a"} 2147483648
hami_node_card_core_use_ratio{uuid="GPU-a"} 0.5
hami_node_container_memory_used_bytes{pod="p",namespace="m",container="c",uuid="GPU-a"} 1073741824
"""


def daemon(node: str, *, namespace: str = "hami-system") -> Pod:
    name = f"hami-node-{node}"
    return Pod(
        uid=name,
        namespace=namespace,
        name=name,
        node_name=node,
        phase="Running",
        labels=LABELS,
    )


class Daemons:
    """Answers for daemons, and notes who was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: bytes | KubeError = PAGE
        self.clock = FakeClock()
        self.reader = UsedReader(self.read, self.clock, "hami-system")

    def read(self, pod: Pod, port: str, deadline: Deadline) -> bytes:
        self.asked.append(f"{pod.key}:{port}")
        if isinstance(self.answer, KubeError):
            raise self.answer
        return self.answer


def test_use_of_cards_and_containers_is_read_and_kept_for_a_while() -> None:
    daemons = Daemons()
    daemons.reader.note(None, daemon("n1"))
    daemons.reader.note(None, daemon("n2"))
    found = daemons.reader.used_on("n1")
    assert found["cards"] == {"GPU-a": {"memory": 2048, "cores": 50}}
    assert found["slices"] == [
        {"pod": "m/p", "container": "c", "uuid": "GPU-a", "memory": 1024, "cores": None}
    ]
    daemons.reader.used_on("n1")
    assert daemons.asked == ["hami-system/hami-node-n1:9394"]
    daemons.clock.advance(KEPT_S + 1)
    daemons.reader.used_on("n1")
    assert len(daemons.asked) == 2


def test_pod_of_another_namespace_is_no_daemon() -> None:
    daemons = Daemons()
    daemons.reader.note(None, daemon("n1", namespace="tenant"))
    found = daemons.reader.used_on("n1")
    assert daemons.asked == []
    assert "no daemon was found" in found["note"]


def test_daemons_that_hang_hold_up_two_readers_and_no_more() -> None:
    go_on, inside = threading.Event(), threading.Semaphore(0)

    def read(_pod: Pod, _port: str, _deadline: Deadline) -> bytes:
        inside.release()
        go_on.wait(20)
        return b""

    reader = UsedReader(read, FakeClock(), "hami-system")
    for node in ("n1", "n2", "n3"):
        reader.note(None, daemon(node))
    threads = [threading.Thread(target=reader.used_on, args=(node,)) for node in ("n1", "n2")]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert inside.acquire(timeout=10)
    assert reader.used_on("n3")["note"] == BUSY
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert reader.used_on("n3")["note"] == ""
