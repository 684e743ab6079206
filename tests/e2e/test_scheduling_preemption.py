"""An urgent pod gets a card by eviction: of whom it takes, and of nobody where that does not help.

The node is on paper, with two cards and two slots, so that kube-scheduler sees what is short.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names
from tests.e2e.api import Api, Json
from tests.e2e.extender import SCHEDULER
from tests.e2e.paper_nodes import CARDS, MEMORY_MIB, PaperNodes
from tests.e2e.parts import BUSYBOX
from tests.e2e.pods import Pods
from tests.e2e.waiting import eventually, stays

_CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
_BUDGETS: Final = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
_NODE: Final = "paper-full"
_PRIORITIES: Final[Mapping[str, tuple[int, str]]] = {
    "e2e-low": (10, "PreemptLowerPriority"),
    "e2e-middle": (20, "PreemptLowerPriority"),
    "e2e-high": (1000, "PreemptLowerPriority"),
    "e2e-never": (1000, "Never"),
}


@pytest.fixture
def priorities(api: Api) -> Iterator[None]:
    for name, (value, policy) in _PRIORITIES.items():
        body = {"metadata": {"name": name}, "value": value, "preemptionPolicy": policy}
        api.create(_CLASSES, body)
    yield
    for name in _PRIORITIES:
        api.delete(f"{_CLASSES}/{name}")


@pytest.fixture
def full(api: Api, pods: Pods, priorities: None) -> Iterator[None]:
    """Two pods on the two cards of a node: `low`, and `middle` with a higher priority."""
    assert priorities is None
    with PaperNodes(api) as paper:
        paper.add(_NODE)
        paper.set_allocatable(_NODE, CARDS)
        # nobody serves there, so nobody would free the node's lock
        paper.annotate(_NODE, {names.NODE_IDENTITY: names.IDENTITY_POD_RESOURCES})
        for name in ("low", "middle"):
            api.create(Pods.path, _pod(name, f"e2e-{name}"))
            eventually(f"{name} is bound", partial(_is_there, pods, name))
        yield
        for pod in pods.all():
            pods.remove_by_force(pod["metadata"]["name"])


def _pod(name: str, priority: str, memory_mib: int = MEMORY_MIB) -> Json:
    limits = {nvidia_names.RESOURCE_GPU: "1", nvidia_names.RESOURCE_GPU_MEMORY: str(memory_mib)}
    box = {"name": "c0", "image": BUSYBOX, "imagePullPolicy": "Never"}
    return {
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "schedulerName": SCHEDULER,
            "priorityClassName": priority,
            "nodeSelector": {"paper": "1"},
            "terminationGracePeriodSeconds": 0,  # no kubelet ends it
            "containers": [{**box, "resources": {"limits": limits}}],
        },
    }


def _node(pods: Pods, name: str) -> str:
    return str(pods.read(name)["spec"].get("nodeName", ""))


def _is_there(pods: Pods, name: str) -> bool:
    pod = pods.read(name)
    assert pod["spec"].get("nodeName") == _NODE, f"{pod['metadata']}, {pod['status']}"
    return True


def _names(pods: Pods) -> set[str]:
    return {str(pod["metadata"]["name"]) for pod in pods.all()}


def _tried(pods: Pods, name: str) -> str:
    """Why kube-scheduler does not place the pod; "" before it has tried."""
    found = pods.read(name)["status"].get("conditions", [])
    return " ".join(str(c.get("message", "")) for c in found if c["type"] == "PodScheduled")


@pytest.mark.usefixtures("extender", "full")
def test_one_pod_of_the_lowest_priority_makes_room(api: Api, pods: Pods) -> None:
    api.create(Pods.path, _pod("urgent", "e2e-high"))
    eventually("the urgent pod is bound", partial(_is_there, pods, "urgent"))
    assert _names(pods) == {"middle", "urgent"}
    given = nvidia_names.POD_ALLOCATED
    assert (
        pods.annotation("urgent", given).split(",")[0]
        != (pods.annotation("middle", given).split(",")[0])
    )


@pytest.mark.usefixtures("extender", "full")
def test_a_disruption_budget_protects_its_pod(api: Api, pods: Pods) -> None:
    """Without the budget the pod of the lowest priority would go."""
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "low"}}}
    api.create(_BUDGETS, {"metadata": {"name": "keep-low"}, "spec": spec})
    try:
        eventually("the budget is in force", lambda: _is_counted(api.read(f"{_BUDGETS}/keep-low")))
        api.create(Pods.path, _pod("urgent", "e2e-high"))
        eventually("the urgent pod is bound", partial(_is_there, pods, "urgent"))
        assert _names(pods) == {"low", "urgent"}
    finally:
        api.delete(f"{_BUDGETS}/keep-low")


def _is_counted(budget: Json) -> bool:
    """Kubernetes has taken it up, and found its pod healthy or not."""
    return "observedGeneration" in budget.get("status", {})


@pytest.mark.usefixtures("extender", "full")
def test_nobody_is_evicted_where_that_does_not_help_or_is_not_wanted(api: Api, pods: Pods) -> None:
    waiting = {"large", "polite"}
    api.create(Pods.path, _pod("large", "e2e-high", MEMORY_MIB + 1))
    api.create(Pods.path, _pod("polite", "e2e-never"))
    for name in waiting:
        eventually("kube-scheduler has tried", partial(_tried, pods, name))
    stays("everybody", lambda: _names(pods) == {"low", "middle"} | waiting, 8.0)
    assert not any(_node(pods, name) for name in waiting)
