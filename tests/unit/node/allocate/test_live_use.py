from __future__ import annotations

import pytest

from hami_node.model import ContainerKind, Pod
from hami_node.wire.objects import decode_pod
from tests.fakes.cards import uuid
from tests.fakes.live_kube import FakeCluster
from tests.fakes.pods import Box, Part, layout, pod_body, reservation
from tests.unit.node.allocate.uses import a_pod, live_use, used

INIT = ContainerKind.INIT


@pytest.mark.parametrize(
    ("pod", "wanted"),
    [
        (a_pod(), [1000, 0]),
        (a_pod(is_served=False), [0, 0]),
        (a_pod(phase="Running"), [1000, 0]),
        (a_pod(phase="Succeeded"), [0, 0]),
        (a_pod(phase="Failed"), [0, 0]),
        (decode_pod(pod_body("p", [Box()])), [0, 0]),
        (
            decode_pod(pod_body("p", [Box(cards=0)], reservation(f"{uuid(0)},NVIDIA,1000,0:;"))),
            [0, 0],
        ),
    ],
    ids=["served", "waits", "runs", "ended", "refused", "no-reservation", "asks-for-none"],
)
def test_live_use_only_served_containers_of_pods_that_live_count(
    pod: Pod, wanted: list[int]
) -> None:
    assert used(live_use(FakeCluster(pod))) == wanted


def test_live_use_pod_left_out_does_not_count() -> None:
    live = live_use(FakeCluster(a_pod("a"), a_pod("b", 500)))
    assert used(live) == [1500, 0]
    assert used(live, leave_out="uid-a") == [500, 0]


def test_live_use_init_containers_count_as_the_maximum() -> None:
    boxes = [Box(name="i", memory_mib=4000, kind=INIT), Box(name="m", memory_mib=3000)]
    reserved = {
        "i": [Part(uuid=uuid(0), memory_mib=4000)],
        "m": [Part(uuid=uuid(0), memory_mib=3000)],
    }
    text = layout(boxes, reserved)
    pod = decode_pod(pod_body("p", boxes, reservation(text, to_allocate=";;")))
    assert used(live_use(FakeCluster(pod))) == [4000, 0]


def test_live_use_pod_deleted_by_force_holds_until_kubelet_lists_it_no_more() -> None:
    cluster = FakeCluster(a_pod(is_served=False, resource_version="5"))
    live = live_use(cluster)
    live.patched(a_pod(resource_version="7"))
    assert used(live) == [1000, 0]
    cluster.show()
    assert used(live) == [1000, 0]
    live.settle([("default", "p")])
    assert used(live) == [1000, 0], "its containers still run"
    live.settle([])
    assert used(live) == [0, 0]


@pytest.mark.parametrize(
    ("listed", "wanted"),
    [([], [0, 0]), ([("default", "p")], [1000, 0])],
    ids=["its containers ended", "its containers run"],
)
def test_live_use_pod_that_vanished_since_the_last_look_is_as_kubelet_lists_it(
    listed: list[tuple[str, str]], wanted: list[int]
) -> None:
    cluster = FakeCluster(a_pod())
    live = live_use(cluster)
    assert used(live) == [1000, 0]
    cluster.show()
    live.settle(listed)
    assert used(live) == wanted


def test_live_use_card_that_is_gone_disturbs_nobody() -> None:
    assert used(live_use(FakeCluster(a_pod("a", index=7), a_pod("b")))) == [1000, 0]


def test_live_use_pod_that_ended_by_the_api_server_holds_nothing_while_the_watch_lags() -> None:
    cluster = FakeCluster(a_pod(phase="Running"))
    live = live_use(cluster)
    assert used(live) == [1000, 0]
    assert [pod.name for pod in live.unlisted()] == ["p"]
    assert live.ended_as(a_pod(), None)
    assert used(live) == [0, 0]
    assert live.unlisted() == ()
