"""Several nodes: policies over nodes, nodes that leave, nodes of older generations.

Two nodes are on paper: the decisions and bindings are real, nothing runs there.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import pytest

from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.wire import names
from hami_node.wire.grants import decode_grants
from tests.e2e.api import Api
from tests.e2e.extender import DEFAULT
from tests.e2e.paper_nodes import PaperNodes, cards_of
from tests.e2e.pods import Pods, RealContainer
from tests.e2e.waiting import eventually

_ONE = RealContainer(name="c0", cards=1, memory_mib=1000, cores=5)
_A100 = {nvidia_names.USE_GPU_TYPE: "a100"}
"""Only paper nodes have such cards."""


@pytest.fixture
def paper(api: Api, pods: Pods) -> Iterator[PaperNodes]:
    assert pods
    with PaperNodes(api) as one:
        yield one


def _placed(pods: Pods, name: str) -> str:
    """The node a pod is bound to, once it is."""

    def probe() -> str:
        pod = pods.read(name)
        assert pod["spec"].get("nodeName"), pod["status"].get("conditions")
        return str(pod["spec"]["nodeName"])

    return eventually(f"{name} is bound", probe)


def _place(pods: Pods, count: int, annotations: dict[str, str]) -> Counter[str]:
    """Create pods one after the other; how many each node got."""
    nodes: Counter[str] = Counter()
    for number in range(count):
        name = f"p{number}"
        pods.create(name, _ONE, annotations=annotations, scheduler=DEFAULT)
        nodes[_placed(pods, name)] += 1
    return nodes


@pytest.mark.usefixtures("extender")
def test_binpack_fills_one_node_and_spread_uses_all_three(pods: Pods, paper: PaperNodes) -> None:
    paper.add("paper-1")
    paper.add("paper-2")
    packed = _place(pods, 3, {names.POD_NODE_POLICY: "binpack"})
    assert sorted(packed.values()) == [3], packed
    _remove(pods)
    spread = _place(pods, 3, {names.POD_NODE_POLICY: "spread"})
    assert sorted(spread.values()) == [1, 1, 1], spread


def _remove(pods: Pods) -> None:
    """Also those on paper, which no kubelet ends."""
    for pod in pods.all():
        pods.remove_by_force(pod["metadata"]["name"])
    eventually("no pods", lambda: not pods.all())


@pytest.mark.usefixtures("extender")
@pytest.mark.parametrize("form", ["csv9", "csv7", "json"])
def test_daemon_of_every_generation_is_served(pods: Pods, paper: PaperNodes, form: str) -> None:
    paper.add("paper-1", form=form)  # and no handshake at all
    pods.create("old", _ONE, annotations=_A100, scheduler=DEFAULT)
    assert _placed(pods, "old") == "paper-1"
    key = nvidia_names.POD_TO_ALLOCATE
    (slot,) = decode_grants(pods.annotation("old", key), key, NVIDIA)
    assert [grant.uuid in {card.uuid for card in cards_of("paper-1")} for grant in slot] == [True]
    assert pods.annotation("old", names.POD_BIND_PHASE) == names.PHASE_ALLOCATING


@pytest.mark.usefixtures("extender")
def test_node_without_identity_is_locked_for_its_pod(
    pods: Pods, paper: PaperNodes, api: Api
) -> None:
    paper.add("paper-1")
    pods.create("locks", _ONE, annotations=_A100, scheduler=DEFAULT)
    assert _placed(pods, "locks") == "paper-1"
    lock = api.read("/api/v1/nodes/paper-1")["metadata"]["annotations"][names.NODE_LOCK]
    assert lock.endswith(",default,locks")
    # the next waits for the lock, and goes on as soon as the plugin has served the first
    pods.create("waits", _ONE, annotations=_A100, scheduler=DEFAULT)
    eventually("reserved", lambda: pods.annotation("waits", nvidia_names.POD_ALLOCATED))
    assert not pods.read("waits")["spec"].get("nodeName")
    served = {names.POD_BIND_PHASE: names.PHASE_SUCCESS}
    api.patch(f"{Pods.path}/locks", {"metadata": {"annotations": served}})
    paper.annotate("paper-1", {names.NODE_LOCK: None})
    assert _placed(pods, "waits") == "paper-1"


@pytest.mark.usefixtures("extender")
@pytest.mark.parametrize("way", ["plugin-gone", "cordoned", "card-cordoned", "unregistered"])
def test_node_that_leaves_gets_nothing_more(pods: Pods, paper: PaperNodes, way: str) -> None:
    paper.add("paper-1")
    if way == "plugin-gone":
        paper.set_allocatable("paper-1", 0)
    elif way == "cordoned":
        paper.cordon("paper-1")
    elif way == "card-cordoned":
        every = ",".join(card.uuid for card in cards_of("paper-1"))
        paper.annotate("paper-1", {names.NODE_CORDON: every})
    else:
        paper.annotate("paper-1", {nvidia_names.NODE_REGISTER: None})
    numbers = itertools.count()
    eventually("it gets no more", lambda: _finds_no_node(pods, f"nowhere-{next(numbers)}"))


def _finds_no_node(pods: Pods, name: str) -> bool:
    """Whether a pod that comes now is refused; the news of a node may be on its way."""
    pods.create(name, _ONE, annotations=_A100, scheduler=DEFAULT)

    def outcome() -> str:
        return _unschedulable(pods, name) or str(pods.read(name)["spec"].get("nodeName", ""))

    eventually("it is decided", outcome)
    return not pods.read(name)["spec"].get("nodeName")


def _unschedulable(pods: Pods, name: str) -> str:
    conditions = pods.read(name)["status"].get("conditions", [])
    return "".join(
        one.get("message", "") for one in conditions if one.get("reason") == "Unschedulable"
    )
