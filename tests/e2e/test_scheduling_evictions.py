"""A pod that wants a card evicts nobody on nodes that have none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from tests.e2e.api import Api, Json
from tests.e2e.extender import SCHEDULER
from tests.e2e.paper_nodes import PaperNodes
from tests.e2e.parts import BUSYBOX
from tests.e2e.pods import Pods
from tests.e2e.waiting import eventually, stays
from tests.reliability import shows

_CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
_NODE: Final = "paper-plain"


@pytest.fixture
def paper(api: Api, pods: Pods) -> Iterator[PaperNodes]:
    assert pods
    with PaperNodes(api) as nodes:
        yield nodes


@pytest.fixture
def priorities(api: Api) -> Iterator[None]:
    for name, value in (("e2e-low", 10), ("e2e-high", 1000)):
        api.create(_CLASSES, {"metadata": {"name": name}, "value": value})
    yield
    for name in ("e2e-low", "e2e-high"):
        api.delete(f"{_CLASSES}/{name}")


def _pod(name: str, priority: str, **limits: str) -> Json:
    box = {"name": "c0", "image": BUSYBOX, "imagePullPolicy": "Never"}
    return {
        "metadata": {"name": name},
        "spec": {
            "priorityClassName": priority,
            "terminationGracePeriodSeconds": 1,
            "nodeSelector": {"paper": _NODE},
            "containers": [{**box, "resources": {"limits": limits, "requests": limits}}],
        },
    }


def _why(pods: Pods, name: str) -> str:
    """Why kube-scheduler does not place the pod; "" before it has tried."""
    found = pods.read(name)["status"].get("conditions", [])
    return " ".join(str(c.get("message", "")) for c in found if c["type"] == "PodScheduled")


@shows(
    "E5",
    fault="an urgent pod wants a card, and a node without cards is full of less urgent pods",
    happens="nobody is evicted: kube-scheduler knows that the node has no cards",
)
@pytest.mark.usefixtures("extender", "priorities")
def test_nobody_is_evicted_from_a_node_without_cards(
    api: Api, pods: Pods, paper: PaperNodes
) -> None:
    paper.add_plain(_NODE)
    resident = _pod("resident", "e2e-low", cpu="6")
    resident["spec"]["schedulerName"] = SCHEDULER
    api.create(Pods.path, resident)
    eventually("the node is full", lambda: pods.read("resident")["spec"].get("nodeName") == _NODE)
    api.create(
        Pods.path, _pod("urgent", "e2e-high", **{"cpu": "4", nvidia_names.RESOURCE_GPU: "1"})
    )
    # without room on the node there is a reason to evict
    for short in (nvidia_names.RESOURCE_GPU, "cpu"):
        eventually(short, lambda what=f"Insufficient {short}": what in _why(pods, "urgent"))  # type: ignore[misc]

    def is_left_alone() -> bool:
        pod = pods.read("resident")
        return "deletionTimestamp" not in pod["metadata"] and pod["spec"]["nodeName"] == _NODE

    stays("the resident", is_left_alone, 8.0)
    path = "/api/v1/namespaces/default/events"
    assert not api.read(path, fieldSelector="reason=Preempted,involvedObject.name=resident")[
        "items"
    ]
    assert not pods.read("urgent")["status"].get("nominatedNodeName")
