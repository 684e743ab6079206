"""Nodes in standalone mode, as people see them."""

from __future__ import annotations

import io

import pytest

from hami_node.cli.show.screen import screen_of
from hami_node.cli.show.tables import show_cluster
from hami_node.engine.usage import DeviceUsage
from hami_node.inspection.cluster import inspect
from hami_node.inspection.saved import read_saved
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import encode_json, encode_shares
from tests.fakes.cards import MEMORY_MIB, card, uuid
from tests.fakes.saved_cluster import NOW_S, node_json, saved
from tests.unit.inspection.views import BASIS

QUARTER = "nvidia.com/gpu-1of4"
CARDS = (card(0, slots=4, numa=1), card(1, slots=2, healthy=False))
USED = {
    uuid(0): DeviceUsage(device=CARDS[0], slots_used=3, memory_used_mib=25000, cores_used=60),
}


def pod_json(name: str, phase: str = "Running", **limits: str) -> dict[str, object]:
    container = {"name": "main", "resources": {"limits": {QUARTER: "2", "cpu": "1", **limits}}}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"nodeName": "n1", "containers": [container]},
        "status": {"phase": phase},
    }


def test_cards_and_who_asked_for_shares_are_shown() -> None:
    node = node_json("n1", {nvidia_names.NODE_STANDALONE: encode_shares(CARDS, USED)})
    node["status"] = {"allocatable": {QUARTER: "4", "nvidia.com/gpu-1of2": "x", "cpu": "9"}}
    found = read_saved(saved(node, pod_json("a"), pod_json("b", "Succeeded")), "file")
    view = inspect(found.nodes, found.pods, BASIS.vendors, NOW_S)
    (shown,) = view.nodes
    assert (shown.is_standalone, shown.cards, shown.allocatable) == (True, 2, "4")
    assert [(it.slots_used, it.slots, it.memory_used_mib) for it in view.cards] == [
        (3, 4, 25000),
        (0, 2, 0),
    ]
    assert [(it.pod, it.container, it.shares) for it in view.holders] == [
        ("a", "main", f"2 x {QUARTER}")
    ]
    assert view.problems == ()
    out = io.StringIO()
    show_cluster(view, screen_of(out))
    assert "standalone" in out.getvalue()
    assert f"25000/{MEMORY_MIB}" in out.getvalue()
    assert f"2 x {QUARTER}" in out.getvalue()


@pytest.mark.parametrize("text", ["x", "[{}", '[{"count": -1}]', '[{"used": "2"}]', '{"id": 1}'])
def test_shares_that_can_not_be_read_are_named(text: str) -> None:
    node = node_json("n1", {nvidia_names.NODE_STANDALONE: text})
    found = read_saved(saved(node), "file")
    (problem,) = inspect(found.nodes, found.pods, BASIS.vendors, NOW_S).problems
    assert nvidia_names.NODE_STANDALONE in problem.why


def test_node_with_shared_and_divided_cards_is_no_standalone_one() -> None:
    small = "nvidia.com/mig-1g.5gb"
    divided = card(0, slots=2, mode="mig", ids=("MIG-1", "MIG-2"))
    notes = {
        nvidia_names.NODE_STANDALONE: encode_shares([divided], {}),
        nvidia_names.NODE_REGISTER: encode_json([card(1)]),
    }
    node = node_json("n1", notes)
    node["status"] = {"allocatable": {"nvidia.com/gpu": "10", small: "2"}}
    pod = pod_json("a", **{QUARTER: "0", small: "1"})
    found = read_saved(saved(node, pod), "file")
    view = inspect(found.nodes, found.pods, BASIS.vendors, NOW_S)
    (shown,) = view.nodes
    assert (shown.is_standalone, shown.cards, shown.allocatable) == (False, 2, "10")
    assert sorted((it.index, it.slots) for it in view.cards) == [(0, 2), (1, 10)]
    assert [it.shares for it in view.holders] == [f"1 x {small}"]
