"""kubelet with another --root-dir: its device plugins stay where they are, pod-resources moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hami_node.wire import names
from tests.e2e import cards, parts
from tests.e2e.api import Json
from tests.e2e.cluster import Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.machine import NODE_DIR
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.scheduler import Scheduler, Slice
from tests.e2e.waiting import eventually


def _restart_kubelet(cluster: Cluster, folder: Path | None) -> None:
    cluster.stop("kubelet")
    parts.move_kubelet(cluster.root, folder)
    cluster.start("kubelet")


@pytest.fixture
def moved_root(cluster: Cluster, daemon: Daemon, pods: Pods) -> Iterator[Path]:
    """kubelet's folder, which is not the usual one; as before after the test."""
    assert pods
    folder = NODE_DIR / "kubelet"
    _restart_kubelet(cluster, folder)
    yield folder
    pods.clear()
    _restart_kubelet(cluster, None)
    daemon.restore()
    eventually("the node is Ready", cluster.is_node_ready)


def test_daemon_serves_where_only_pod_resources_has_moved(
    moved_root: Path, daemon: Daemon, pods: Pods, scheduler: Scheduler
) -> None:
    socket = moved_root / "pod-resources" / "kubelet.sock"
    eventually("kubelet's socket", socket.is_socket)

    def change(pod: Json) -> None:
        container = pod["containers"][0]
        container["args"].append(f"--pod-resources-socket={socket}")
        for mount in container["volumeMounts"]:
            if mount["name"] == "pod-resources":
                mount["mountPath"] = str(socket.parent)
        for volume in pod["volumes"]:
            if volume["name"] == "pod-resources":
                volume["hostPath"]["path"] = str(socket.parent)

    daemon.run_changed(change)  # kubelet's list is not where other tests read it
    eventually(
        "pods are identified",
        lambda: daemon.annotations().get(names.NODE_IDENTITY) == names.IDENTITY_POD_RESOURCES,
    )
    own = Slice(uuid=cards.uuid_of(3), memory_mib=3000)
    other = Slice(uuid=cards.uuid_of(4), memory_mib=3000)
    for name, granted in (("first", own), ("second", other)):  # as like as two pods can be
        pod = pods.create(name, RealContainer(name="c0", cards=1, memory_mib=3000))
        scheduler.place(pod, {"c0": (granted,)})
    pods.wait_running("first", "second")
    assert pods.inside("first", "c0").cards == (own.uuid,)
    assert pods.inside("second", "c0").cards == (other.uuid,)
