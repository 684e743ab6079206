from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hami_node.clock import Deadline
from hami_node.cluster.daemon_pages import MOST_PAGES, daemons_in, read_pages
from hami_node.errors import Forbidden, KubeError
from hami_node.model import Pod
from tests.fakes.clock import RealClock

ROOT = Path(__file__).parents[3]
LABELS = {"hami-node.io/metrics": "daemon"}


def daemon(node: str, labels: dict[str, str] = LABELS, namespace: str = "hami-system") -> Pod:
    return Pod(
        uid=node,
        namespace=namespace,
        name=f"hami-node-{node}",
        node_name=node,
        phase="Running",
        labels=labels,
        annotations={"prometheus.io/port": "9394"},
    )


def soon() -> Deadline:
    return Deadline.after(30.0, RealClock().monotonic)


def test_daemons_are_found_by_their_label_in_their_namespace() -> None:
    ended = replace(daemon("n5"), phase="Failed")
    pods = (
        daemon("n1"),
        daemon("n2", {"hami-node.io/metrics": "extender"}),
        daemon("n3", {}),
        daemon("n4", namespace="tenant"),
        ended,
        daemon("n6"),
    )
    found = daemons_in(pods, "hami-system", frozenset({"n1", "n2", "n3", "n4", "n5"}))
    assert [pod.node_name for pod in found] == ["n1"]


@pytest.mark.parametrize(
    "path", ["base/daemonset/daemonset.yaml", "chart/templates/daemon/_daemonset.tpl"]
)
def test_pods_of_daemons_carry_the_label(path: str) -> None:
    assert "hami-node.io/metrics: daemon" in (ROOT / "daemonset" / path).read_text()


def test_pages_are_read_by_node_and_failures_named() -> None:
    def read(pod: Pod, port: str, _: Deadline) -> bytes:
        if pod.node_name == "n2":
            raise KubeError("no answer")
        return f"{pod.node_name} {port}".encode()

    found = read_pages(read, [daemon(f"n{number}") for number in range(1, 4)], soon())
    assert found.by_node == {"n1": b"n1 9394", "n3": b"n3 9394"}
    assert found.unread == {"n2": "no answer"}
    assert found.note == ""


def test_who_may_not_read_one_page_asks_for_no_other() -> None:
    asked: list[str] = []

    def read(pod: Pod, port: str, _: Deadline) -> bytes:
        asked.append(port)
        raise Forbidden("pods/proxy is forbidden")

    found = read_pages(read, [daemon(f"n{number}") for number in range(50)], soon())
    assert len(asked) == 1
    assert found.note == "what is used can't be read: pods/proxy is forbidden"


def test_number_of_daemons_is_bounded_and_said() -> None:
    found = read_pages(lambda *_: b"", [daemon(f"n{number}") for number in range(5000)], soon())
    assert len(found.by_node) == MOST_PAGES
    assert "64 of 5000 nodes" in found.note


def test_cluster_without_daemons_says_so() -> None:
    assert "no daemon was found" in read_pages(lambda *_: b"", (), soon()).note


def test_port_that_is_none_is_not_believed() -> None:
    ports: list[str] = []

    def read(pod: Pod, port: str, _: Deadline) -> bytes:
        ports.append(port)
        return b""

    odd = replace(daemon("n1"), annotations={"prometheus.io/port": "1/x"})
    read_pages(read, [odd], soon())
    assert ports == ["9394"]
