"""The picture that is kept equals one that is made anew, whatever came in whatever order."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from hami_node.inspection.cluster import inspect
from hami_node.inspection.picture import Listed, picture_of
from hami_node.inspection.waiting import totals_of, waiting_in
from hami_node.model import Node, Pod
from hami_node.vendors.holding import UNBOUND_S
from hami_node.view.live_picture import NOTES, PATIENCE, LivePicture
from hami_node.wire.objects import decode_node, decode_pod
from hami_node.wire.quotas import ResourceQuota
from tests.fakes.card_cluster import SCHEDULER, holding_pod, node_object, pending_pod, uuid_of
from tests.fakes.clock import FakeClock
from tests.fakes.kept import kept_bytes
from tests.fakes.view_rig import basis

NOW_S = 1_795_348_900.0


def node(number: int, **changed: Any) -> Node:
    return decode_node(json.dumps(node_object(number, **changed)).encode())


def pod(body: dict[str, Any]) -> Pod:
    return decode_pod(json.dumps(body).encode())


class World:
    """Objects and the picture that follows them."""

    def __init__(self) -> None:
        self.clock = FakeClock(NOW_S)
        self.picture = LivePicture(basis(), self.clock)
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}

    def put(self, *items: Node | Pod) -> None:
        for item in items:
            if isinstance(item, Node):
                self.picture.note(self.nodes.get(item.name), item)
                self.nodes[item.name] = item
            else:
                self.picture.note(self.pods.get(item.key), item)
                self.pods[item.key] = item

    def remove(self, name: str) -> None:
        before = self.nodes.pop(name, None) or self.pods.pop(name, None)
        self.picture.note(before, None)

    def settle(self) -> None:
        while self.picture.refresh().left:
            pass

    def check(self) -> None:
        self.settle()
        made, now_s = basis(), self.clock.now()
        listed = Listed(nodes=tuple(self.nodes.values()), pods=tuple(self.pods.values()))
        anew = picture_of(listed, made, now_s)
        with self.picture.lock, self.picture.picture() as kept:
            assert kept.offers == anew.offers
            assert kept.others == anew.others
            for name in anew.offers:
                assert dict(kept.cards_of(name)) == dict(anew.cards_of(name)), name
            mine, theirs = totals_of(kept), totals_of(anew)
            assert (mine.memory_free_mib, mine.slots_free) == (
                theirs.memory_free_mib,
                theirs.slots_free,
            )
            pods = sorted(self.pods.values(), key=lambda pod: pod.key)
            assert {
                f"{view.namespace}/{view.pod}" for view in waiting_in(anew, pods, now_s, SCHEDULER)
            } == set(self.picture.waiting)
        shown = inspect(self.nodes.values(), self.pods.values(), made.vendors, now_s)
        assert sorted(self.picture.rows) == [view.name for view in shown.nodes]
        for view in shown.nodes:
            row = json.loads(self.picture.rows[view.name].wire)
            cards = [card for card in shown.cards if card.node == view.name]
            assert [card["memory"][0] for card in row["cards"]] == [
                card.memory_used_mib for card in cards
            ]
            assert self.picture.rows[view.name].holders == sum(
                holder.node == view.name for holder in shown.holders
            )


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize("seed", range(6))
def test_kept_picture_equals_one_made_anew(world: World, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(120):
        number = draw.randrange(4)
        what = draw.randrange(8)
        if what == 0:
            sick = (draw.randrange(8),) if draw.random() < 0.5 else ()
            world.put(node(number, sick=sick, is_ready=draw.random() < 0.8))
        elif what == 1 and world.nodes:
            world.remove(draw.choice(sorted(world.nodes)))
        elif what == 2 and world.pods:
            world.remove(draw.choice(sorted(world.pods)))
        elif what == 3:
            world.put(pod(pending_pod("ml", f"p{draw.randrange(8)}", memory_mib=50000)))
        else:
            body = holding_pod(
                draw.choice(("ml", "web")),
                f"p{draw.randrange(8)}",
                number,
                draw.randrange(8),
                draw.choice((1000, 9000)),
            )
            if draw.random() < 0.2:
                body["status"]["phase"] = "Succeeded"
            if draw.random() < 0.3:  # reserved, not bound
                del body["spec"]["nodeName"]
                body["status"] = {"phase": "Pending"}
                body["metadata"]["annotations"]["hami.io/vgpu-time"] = str(int(NOW_S) - 20)
            world.put(pod(body))
        if draw.random() < 0.1:
            world.settle()
    world.check()


def test_nodes_wait_for_the_pods_that_come_with_them_and_not_for_ever(world: World) -> None:
    world.put(node(0))
    world.put(*(pod(pending_pod("ml", f"p{number}")) for number in range(NOTES * 3)))
    first = world.picture.refresh()
    assert first.nodes == frozenset()
    assert first.left > 2 * NOTES
    world.put(*(pod(pending_pod("ml", f"q{number}")) for number in range(NOTES * 2 * PATIENCE)))
    read = [world.picture.refresh().nodes for _ in range(PATIENCE)]
    assert frozenset({"gpu-00000"}) in read
    world.settle()
    assert len(world.picture.waiting) == NOTES * (3 + 2 * PATIENCE)


def test_reservation_that_was_never_bound_is_let_go(world: World) -> None:
    body = holding_pod("ml", "p", 0, 0, 40960)
    del body["spec"]["nodeName"]
    body["status"] = {"phase": "Pending"}
    body["metadata"]["annotations"]["hami.io/vgpu-time"] = str(int(NOW_S) - 10)
    world.put(node(0), pod(body))
    world.settle()
    with world.picture.picture() as seen:
        assert any(card.memory_free_mib == 0 for card in seen.cards_of("gpu-00000").values())
    world.clock.advance(UNBOUND_S + 1.0)
    world.picture.sweep()
    world.settle()
    with world.picture.picture() as seen:
        assert all(card.memory_free_mib for card in seen.cards_of("gpu-00000").values())


def test_picture_without_a_pod_has_its_grants_again_afterwards(world: World) -> None:
    world.put(node(0), pod(holding_pod("ml", "p", 0, 0, 40960)))
    world.settle()
    with world.picture.picture(without="ml/p") as seen:
        assert seen.cards_of("gpu-00000")[uuid_of(0, 0)].slots_used == 0  # type: ignore[index]  # a Uuid
    world.check()


def test_quota_counts_and_goes(world: World) -> None:
    world.put(node(0), pod(pending_pod("ml", "p", memory_mib=2000)))
    quota = ResourceQuota(
        namespace="ml", name="cards", uid="1", resource_version="1",
        hard={"limits.nvidia.com/gpumem": "1000"},
    )  # fmt: skip
    world.picture.note(None, quota)
    world.settle()
    waiting = world.picture.waiting.values()
    with world.picture.picture() as seen:
        (view,) = waiting_in(seen, waiting, NOW_S, SCHEDULER)
        assert "Quota" in view.why
    world.picture.note(quota, None)
    world.settle()
    with world.picture.picture() as seen:
        (view,) = waiting_in(seen, waiting, NOW_S, SCHEDULER)
        assert "its cards are free" in view.why


def test_made_up_nodes_of_a_pod_leave_nothing_behind(world: World) -> None:
    body = holding_pod("ml", "p", 1, 0, 1000)
    del body["spec"]["nodeName"]
    body["status"] = {"phase": "Pending"}
    world.put(pod(body))
    world.settle()
    before = kept_bytes(world.picture)
    for i in range(300):
        body["metadata"]["annotations"]["hami.io/vgpu-node"] = f"{i:04}" * 60
        world.put(pod(body))
        world.settle()
    assert kept_bytes(world.picture) - before < 20_000
