"""Pods that hold cards from another device plugin: these cards are closed until they end."""

from __future__ import annotations

import json

import pytest

from hami_node.inspection.cluster import inspect
from hami_node.inspection.views import Problem
from hami_node.model import Pod
from hami_node.simulate.kubelet import Admission
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import decode_register
from hami_node.vendors.registry import VENDORS
from hami_node.vendors.spec import protocols_of
from hami_node.wire import names
from hami_node.wire.objects import decode_node
from tests.fakes.cards import uuid
from tests.fakes.pods import NODE, Box, Part, layout, pod_body, reservation
from tests.fakes.waiting import eventually
from tests.integration.rig import GPU, LIMIT_S, SLOTS, Rig
from tests.reliability import shows

SMALL = Box(memory_mib=1000)
FORMER = "example.com/vgpu"


def hold(rig: Rig, name: str, resource: str, *ids: str, is_seen: bool = True) -> Pod:
    """A running pod without any annotation that got these IDs from another plugin."""
    body = pod_body(name, [Box()], phase="Running")
    body["spec"]["containers"][0]["resources"]["limits"] = {resource: str(len(ids))}
    rig.api.create("pods", body)
    if is_seen:
        rig.wait_seen(name)
    pod = rig.pod(name)
    rig.kubelet.hold(pod, resource, *ids)
    return pod


def written(rig: Rig) -> list[str]:
    """The register texts that the node has had, the first one first."""
    bodies = [
        change.after for change in rig.api.store.changes_after(rig.api.store.oldest, "nodes")[1]
    ]
    notes = [(body or {}).get("metadata", {}).get("annotations") or {} for body in bodies]
    return [
        note[nvidia_names.NODE_REGISTER] for note in notes if nvidia_names.NODE_REGISTER in note
    ]


def healthy(rig: Rig) -> list[bool]:
    """As a scheduler reads the node."""
    return [card.healthy for card in decode_register(rig.register_text)]


def await_closed(rig: Rig, *cards: int) -> None:
    wanted = [index not in cards for index in range(rig.card_count)]
    eventually(lambda: healthy(rig) == wanted, LIMIT_S)
    eventually(lambda: rig.kubelet.allocatable(GPU) == SLOTS * sum(wanted), LIMIT_S)


def place(rig: Rig, name: str, card: int) -> Admission:
    rig.place(name, [SMALL], {"main": [Part(uuid=uuid(card), memory_mib=1000)]})
    return rig.admit(name)


def assert_refused(rig: Rig, name: str, card: int, why: str) -> None:
    answer = place(rig, name, card)
    assert not answer.is_admitted
    assert why in answer.refusal


@shows(
    "F1",
    fault="pods run with cards from NVIDIA's own device plugin when the daemon comes to the node",
    happens="their cards are closed, for kubelet and for schedulers, before the first report, with "
    "the reason; they open within seconds of these pods' end",
)
def test_cards_of_pods_from_before_are_closed_until_they_end(node: Rig) -> None:
    hold(node, "whole", GPU, uuid(0))
    hold(node, "shared", GPU, f"{uuid(1)}::3")
    node.closed_count = 2
    node.start()
    first = written(node)[0]
    assert [card.healthy for card in decode_register(first)] == [False, False, True, True]
    assert_refused(node, "p", 0, "default/whole (nvidia.com/gpu)")
    assert place(node, "q", 2).is_admitted
    eventually(lambda: node.metric("foreign_pods") == 2, LIMIT_S)
    reason = json.loads(node.notes[names.NODE_CLOSED_CARDS])[uuid(1)]
    assert "default/shared (nvidia.com/gpu)" in reason
    eventually(lambda: node.metric("card_unhealthy", uuid=uuid(1), reason=reason) == 1, LIMIT_S)
    assert any(problem.why == reason for problem in problems(node))
    node.end("whole")
    await_closed(node, 1)
    node.end("shared")
    await_closed(node)
    eventually(lambda: names.NODE_CLOSED_CARDS not in node.notes, LIMIT_S)
    assert place(node, "r", 0).is_admitted
    eventually(lambda: node.metric("foreign_pods") == 0, LIMIT_S)
    assert not node.events("ResourceTaken"), "whoever served them is gone"


def problems(rig: Rig) -> tuple[Problem, ...]:
    """What `inspect` reports of the node."""
    assert rig.daemon is not None
    vendors = protocols_of(VENDORS, rig.daemon.settings())
    return inspect([decode_node(rig.api.read("nodes", NODE))], [], vendors, 0.0).problems


@pytest.mark.parametrize(
    ("resource", "device_id", "closed"),
    [
        pytest.param("nvidia.com/gpu.shared", f"{uuid(3)}::0", (3,), id="renamed-by-nvidia"),
        pytest.param("volcano.sh/vgpu-number", f"{uuid(3)}-7", (3,), id="a-fork-of-hami"),
        pytest.param(GPU, f"{uuid(3)}-7", (), id="our-own-form"),
        pytest.param(GPU, uuid(9), (), id="card-that-we-do-not-offer"),
        pytest.param("rdma/hca", "mlx5_0", (), id="no-card"),
        pytest.param(GPU, "nvidia0", (0, 1, 2, 3), id="unknown-id-of-our-resource"),
    ],
)
def test_ids_of_other_plugins_close_their_cards(
    node: Rig, resource: str, device_id: str, closed: tuple[int, ...]
) -> None:
    hold(node, "old", resource, device_id)
    node.closed_count = len(closed)
    node.start()
    await_closed(node, *closed)


@shows(
    "F2",
    fault="a pod was served by HAMi's plugin, under this resource or one of another name",
    happens="it counts with its reservation, as every pod on record; its card stays open",
)
@pytest.mark.parametrize("resource", [GPU, FORMER])
def test_pods_that_hamis_plugin_served_are_not_foreign(node: Rig, resource: str) -> None:
    part = Part(uuid=uuid(1), memory_mib=1000)
    text = layout([SMALL], {"main": [part]})
    body = pod_body("old", [SMALL], reservation(text, to_allocate=";"), phase="Running")
    limits = body["spec"]["containers"][0]["resources"]["limits"]
    limits[resource] = limits.pop(GPU)
    node.api.create("pods", body)
    node.kubelet.hold(node.pod("old"), resource, f"{uuid(1)}-4")
    node.start()
    eventually(lambda: node.granted(1) == 1000 * 2**20, LIMIT_S)
    assert place(node, "p", 1).is_admitted
    assert healthy(node) == [True] * 4
    assert node.metric("foreign_pods") == 0


@shows(
    "F3",
    fault="kubelet is restarted, and its list is empty or can't be read for a while",
    happens="the cards that another plugin's pods hold stay closed until the API server says that "
    "these pods have ended",
)
def test_closed_card_stays_closed_while_the_list_shows_nothing(node: Rig) -> None:
    pod = hold(node, "old", GPU, uuid(0))
    node.closed_count = 1
    node.start()
    await_closed(node, 0)
    node.kubelet.remove("default", "old")  # as while kubelet starts
    look(node)
    assert healthy(node)[0] is False
    node.kubelet.failing_lists = 1000
    assert not place(node, "p", 0).is_admitted
    assert healthy(node)[0] is False
    node.kubelet.failing_lists = 0
    node.kubelet.hold(pod, GPU, uuid(0))
    node.api.delete("pods", "old", "default")
    look(node)
    assert healthy(node)[0] is False, "kubelet still lists it"
    node.kubelet.remove("default", "old")
    await_closed(node)


def look(rig: Rig) -> None:
    """Let the daemon look at kubelet's list twice."""
    assert rig.daemon is not None
    assert rig.daemon.cluster is not None
    for _ in range(2):
        rig.daemon.cluster._strangers.look()


@shows(
    "F4",
    fault="another plugin gives a card to a pod a moment before kubelet asks this daemon for it",
    happens="the very call sees it in kubelet's list and is refused, naming the pod that holds it",
)
def test_card_that_was_given_away_a_moment_ago_is_refused(rig: Rig) -> None:
    rig.place("p", [SMALL], {"main": [Part(uuid=uuid(2), memory_mib=1000)]})
    rig.kubelet.hold(hold_nothing(rig, "quick"), "nvidia.com/gpu.shared", f"{uuid(2)}::0")
    answer = rig.admit("p")
    assert not answer.is_admitted
    assert "default/quick (nvidia.com/gpu.shared)" in answer.refusal


def hold_nothing(rig: Rig, name: str) -> Pod:
    rig.api.create("pods", pod_body(name, [Box(cards=0)], phase="Running"))
    rig.wait_seen(name)
    return rig.pod(name)
