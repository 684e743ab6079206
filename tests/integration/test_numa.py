"""NUMA nodes for kubelet and preferred IDs, over kubelet's real calls."""

from __future__ import annotations

from collections.abc import Sequence

from hami_node.model import uuid_of
from tests.fakes.cards import MEMORY_MIB, MODEL, uuid
from tests.fakes.pods import Box, Part
from tests.fakes.waiting import eventually
from tests.integration.rig import GPU, LIMIT_S, SLOTS, Rig
from tests.reliability import shows

SMALL = Box(memory_mib=1000)


def lay_cards(rig: Rig, *, known: bool = True) -> None:
    """Four cards, two on each NUMA node, linked in pairs across them."""
    lines = ["cards:"]
    for i in range(4):
        numa = f"numa: {i // 2}, " if known or i else ""
        links = f"links: {{{(i + 2) % 4}: 200}}, "
        lines.append(
            f"  - {{model: {MODEL}, memory_mib: {MEMORY_MIB}, {numa}{links}uuid: {uuid(i)}}}"
        )
    rig.cards_path.write_text("\n".join(lines), encoding="utf-8")


def admit(rig: Rig, name: str, *cards: int) -> set[str]:
    """The cards that kubelet counts for a pod with reservations on these cards."""
    boxes = [Box(memory_mib=1000, cards=len(cards))]
    rig.place(name, boxes, {"main": [Part(uuid=uuid(i), memory_mib=1000) for i in cards]})
    answer = rig.admit(name)
    assert answer.is_admitted, answer.refusal
    return {uuid_of(device_id) for device_id in answer.device_ids["main"]}


@shows(
    "F5",
    fault="kubelet's topology manager rejects pods whose CPUs don't fit the NUMA nodes of free "
    "device IDs, though the reserved card is elsewhere",
    happens="it is told no NUMA nodes, unless they are asked for and every NUMA node has room",
)
def test_numa_nodes_are_not_shown_unless_asked_for(node: Rig) -> None:
    lay_cards(node)
    node.start()
    assert node.kubelet.numa_nodes(GPU) == {()}
    node.restart(numa_topology="true")
    eventually(lambda: node.kubelet.numa_nodes(GPU) == {(0,), (1,)}, LIMIT_S)
    assert admit(node, "p", 1, 3) == {uuid(1), uuid(3)}


@shows(
    "F6",
    fault="a container is admitted before kubelet knows the NUMA nodes, or while one has no room; "
    "admitted again by a restarted kubelet, it would be ended",
    happens="the NUMA nodes stay hidden until it has ended; the log says why",
)
def test_numa_nodes_stay_hidden_while_a_container_runs_without(node: Rig) -> None:
    lay_cards(node)
    node.start()
    admit(node, "old", 0)
    node.restart(numa_topology="true")
    node.wait_registered()
    admit(node, "new", 3)
    assert node.kubelet.numa_nodes(GPU) == {()}
    node.end("old")
    node.end("new")
    eventually(lambda: node.kubelet.numa_nodes(GPU) == {(0,), (1,)}, LIMIT_S)


@shows(
    "F7",
    fault="kubelet asks which device IDs to take, and it can't be told for which pod",
    happens="it gets those of several cards, of one NUMA node and well linked, by the policy",
)
def test_ids_are_chosen_by_the_cards_where_no_reservation_is_known(node: Rig) -> None:
    lay_cards(node)
    node.start()
    assert prefer(node, 2) == [0, 1], "one NUMA node before better links"
    assert sorted(prefer(node, 3)) == [0, 1, 2]
    assert prefer(node, 2, f"{uuid(3)}-4") == [3, 2]
    assert len(prefer(node, SLOTS * 4 + 1)) == SLOTS * 4


def prefer(rig: Rig, size: int, *must: str, ids: Sequence[str] = ()) -> list[int]:
    """The cards of the preferred ones out of these IDs, or of all."""
    kubelet = rig.kubelet
    available = list(ids) or sorted(kubelet.devices(GPU))
    kubelet.failing_lists = 1
    chosen = kubelet._preferred(kubelet._endpoints[GPU], available, list(must), size)
    cards = {uuid(i): i for i in range(4)}
    return [cards[uuid_of(name)] for name in chosen]


def test_policy_of_a_free_choice_and_numa_nodes_take_effect_at_once(node: Rig) -> None:
    lay_cards(node)
    node.config_path.write_text("hami-node: {}\n", encoding="utf-8")
    daemon = node.start()
    admit(node, "p", 3)
    assert prefer(node, 1) == [0]
    node.config_path.write_text("hami-node: {gpu-scheduler-policy: binpack}\n", encoding="utf-8")
    daemon.hang_up()
    ids = [name for name in sorted(node.kubelet.devices(GPU)) if name != f"{uuid(3)}-0"]
    eventually(lambda: prefer(node, 1, ids=ids) == [3], LIMIT_S)
    node.end("p")
    node.config_path.write_text("nvidia: {enableNumaTopology: true}\n", encoding="utf-8")
    daemon.hang_up()
    eventually(lambda: node.kubelet.numa_nodes(GPU) == {(0,), (1,)}, LIMIT_S)
    node.config_path.write_text("nvidia: {}\n", encoding="utf-8")
    daemon.hang_up()
    eventually(lambda: node.kubelet.numa_nodes(GPU) == {()}, LIMIT_S)
    assert not daemon.resources[0].hints.are_shown
