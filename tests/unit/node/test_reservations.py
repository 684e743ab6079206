from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from hami_node.model import Container, ContainerKind, Pod
from hami_node.node.loans import lenders, lent
from hami_node.node.reservations import LiveUse
from hami_node.wire import names
from hami_node.wire.objects import decode_pod
from hami_node.wire.requests import checked_asks_of
from hami_node.wire.reservation import count_of, read_reservation
from tests.fakes.cards import card, uuid
from tests.fakes.clock import FakeClock
from tests.fakes.live_kube import FakeCluster
from tests.fakes.pods import Box, Generation, Part, layout, pod_body, reservation, reserved_pod

GPU = names.RESOURCE_GPU
CARDS = (card(0), card(1))
INIT = ContainerKind.INIT


def live_use(
    cluster: FakeCluster, clock: FakeClock | None = None, served: frozenset[str] = frozenset()
) -> LiveUse:
    return LiveUse(
        watched=cluster,
        resource=GPU,
        has_served=served.__contains__,
        clock=clock or FakeClock(),
    )


def used(live: LiveUse, leave_out: str = "") -> list[int]:
    return [one.memory_used_mib for one in live.cards(CARDS, leave_out).values()]


def a_pod(
    name: str = "p",
    memory_mib: int = 1000,
    index: int = 0,
    *,
    is_served: bool = True,
    **fields: str,
) -> Pod:
    text = f"{uuid(index)},NVIDIA,{memory_mib},0:;"
    notes = reservation(text, to_allocate=";" if is_served else None)
    return decode_pod(pod_body(name, [Box(memory_mib=memory_mib)], notes, **fields))


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({}, 0),
        ({GPU: "2"}, 2),
        ({GPU: "1k"}, 1000),
        ({GPU: "-1"}, 0),
        ({GPU: "1.5"}, 0),
        ({GPU: "many"}, 0),
        ({"amd.com/gpu": "2"}, 0),
    ],
    ids=["none", "two", "suffix", "negative", "fraction", "words", "other-resource"],
)
def test_count_of_a_container_nonsense_is_none(limits: Mapping[str, str], count: int) -> None:
    assert count_of(Container(name="c", limits=limits), GPU) == count


# -- live use --------------------------------------------------------------------------------------
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


def test_live_use_own_patch_counts_until_the_watch_shows_it() -> None:
    before = a_pod(is_served=False, resource_version="5")
    after = a_pod(resource_version="7")
    cluster = FakeCluster(before)
    live = live_use(cluster)
    live.patched(after)
    assert used(live) == [1000, 0]
    cluster.show(replace(before, resource_version="6"))
    assert used(live) == [1000, 0], "what the watch shows is older than our patch"
    cluster.show(replace(after, resource_version="8", phase="Failed"))
    assert used(live) == [0, 0], "and now it is newer"


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


@pytest.mark.parametrize(
    "changes",
    [
        {names.POD_ALLOCATED: None},
        {names.POD_ALLOCATED: f"{uuid(0)},NVIDIA,1,0:;"},
        {names.POD_ALLOCATED: f"{uuid(0)},NVIDIA,99999,100:;"},
        {names.POD_TO_ALLOCATE: f"{uuid(0)},NVIDIA,1000,0:;"},
        {names.POD_ALLOCATED: "rubbish,,:"},
    ],
    ids=["removed", "shrunk", "grown", "put-back", "broken"],
)
def test_live_use_what_was_served_stays_whatever_its_owner_writes(
    changes: dict[str, str | None],
) -> None:
    pod = a_pod(resource_version="5")
    cluster = FakeCluster(pod)
    live = live_use(cluster)
    assert used(live) == [1000, 0]
    edited = {key: value for key, value in {**pod.annotations, **changes}.items() if value}
    cluster.show(replace(pod, annotations=edited, resource_version="6"))
    assert used(live) == [1000, 0]


def test_live_use_patched_pod_never_shown_counts_longer_than_a_watch_is_silent() -> None:
    clock = FakeClock()
    live = live_use(FakeCluster(), clock)
    live.patched(a_pod(resource_version="7"))
    clock.advance(299)
    live.settle([])
    assert used(live) == [1000, 0]
    clock.advance(2)
    used(live)
    live.settle([])
    assert used(live) == [0, 0]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (names.POD_ALLOCATED, "rubbish,;"),
        (names.POD_TO_ALLOCATE, "GPU-x,NVIDIA,1,1:;"),
        (names.POD_TO_ALLOCATE, f"{uuid(0)},NVIDIA,9,9:;"),
    ],
    ids=["unreadable", "foreign-rest", "other-amount"],
)
def test_live_use_annotations_broken_later_keep_what_was_held(key: str, text: str) -> None:
    good = a_pod()
    cluster = FakeCluster(good)
    live = live_use(cluster)
    assert used(live) == [1000, 0]
    cluster.show(replace(good, annotations={**good.annotations, key: text}))
    assert used(live) == [1000, 0]


def test_live_use_unclear_from_the_start_counts_in_full() -> None:
    pod = a_pod()
    notes = {**pod.annotations, names.POD_TO_ALLOCATE: "GPU-x,NVIDIA,1,1:;"}
    assert used(live_use(FakeCluster(replace(pod, annotations=notes)))) == [1000, 0]


def test_live_use_init_container_without_a_slot_holds_its_lenders_card_once_served() -> None:
    boxes = [Box(name="i", memory_mib=500, kind=INIT), Box(name="m", memory_mib=3000)]
    pod = reserved_pod("p", boxes, {"m": [Part(uuid=uuid(1), memory_mib=3000)]}, Generation.V2_7)
    assert used(live_use(FakeCluster(pod))) == [0, 0]
    served = live_use(FakeCluster(pod), served=frozenset({"uid-p_i"}))
    assert used(served) == [0, 3000]
    assert not any(served.of_pod(pod).containers), "the app container itself was not served yet"


def test_live_use_card_that_is_gone_disturbs_nobody() -> None:
    assert used(live_use(FakeCluster(a_pod("a", index=7), a_pod("b")))) == [1000, 0]


@pytest.mark.parametrize(
    ("notes", "words"),
    [
        ({}, "did not come through the scheduler"),
        ({names.POD_ALLOCATED: "x,y;"}, "can't be read"),
        ({names.POD_ALLOCATED: ";"}, "0 containers have a reservation, 1 ask for one"),
        (
            {names.POD_ALLOCATED: f"{uuid(0)},NVIDIA,1,1:;", names.POD_TO_ALLOCATE: "x,y;"},
            "can't be read",
        ),
    ],
    ids=["none", "unreadable", "empty", "rest-unreadable"],
)
def test_read_reservation_that_is_no_use_is_a_problem_in_words(
    notes: dict[str, str], words: str
) -> None:
    found = read_reservation(decode_pod(pod_body("p", [Box()], notes)), GPU)
    assert found.slots is None
    assert words in found.problem


# -- loans -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("box", "memory_mib", "cores", "wanted"),
    [
        (Box(memory_mib=500), 1000, 0, (500, 0)),
        (Box(memory_mib=1000), 1000, 0, (1000, 0)),
        (Box(memory_mib=1001), 1000, 0, None),
        (Box(memory_mib=1001), 0, 0, (1001, 0)),
        (Box(memory_mib=500, cores=20), 1000, 30, (500, 20)),
        (Box(memory_mib=500, cores=40), 1000, 30, None),
        (Box(memory_mib=500, cores=40), 1000, 0, (500, 40)),
        (Box(memory_percent=10), 5000, 0, (4096, 0)),
        (Box(), 5000, 0, None),
        (Box(), 40960, 0, (40960, 0)),
    ],
    ids=[
        "less",
        "equal",
        "memory-short",
        "memory-unlimited",
        "cores",
        "cores-short",
        "cores-unlimited",
        "percent",
        "whole-card-short",
        "whole-card",
    ],
)
def test_lent_amounts_are_those_asked_for_or_nothing(
    box: Box, memory_mib: int, cores: int, wanted: tuple[int, int] | None
) -> None:
    pod = reserved_pod(
        "p", [box], {"main": [Part(uuid=uuid(0), memory_mib=memory_mib, cores=cores)]}
    )
    slots = read_reservation(pod, GPU).slots
    assert slots is not None
    (ask,) = checked_asks_of(pod.containers[0])
    found = lent(slots.granted["main"], ask, {one.uuid: one for one in CARDS})
    assert (found and (found[0].memory_mib, found[0].cores)) == wanted


def test_lent_card_not_on_this_node_lends_nothing() -> None:
    pod = reserved_pod("p", [Box(memory_mib=1)], {"main": [Part(uuid="GPU-x", memory_mib=1)]})
    slots = read_reservation(pod, GPU).slots
    assert slots is not None
    (ask,) = checked_asks_of(pod.containers[0])
    assert lent(slots.granted["main"], ask, {one.uuid: one for one in CARDS}) is None


def test_lenders_are_app_containers_with_as_many_cards_in_order() -> None:
    boxes = [
        Box(name="i", kind=INIT),
        Box(name="two", cards=2),
        Box(name="b"),
        Box(name="a"),
    ]
    reserved = {
        "two": [Part(uuid=uuid(0), memory_mib=1), Part(uuid=uuid(1), memory_mib=1)],
        "b": [Part(uuid=uuid(0), memory_mib=1)],
        "a": [Part(uuid=uuid(1), memory_mib=1)],
    }
    pod = reserved_pod("p", boxes, reserved, Generation.V2_4)
    slots = read_reservation(pod, GPU).slots
    assert slots is not None
    assert lenders(slots, pod, 1) == ("b", "a")
    assert lenders(slots, pod, 2) == ("two",)
    assert lenders(slots, pod, 3) == ()


def test_live_use_pod_that_ended_by_the_api_server_holds_nothing_while_the_watch_lags() -> None:
    cluster = FakeCluster(a_pod(phase="Running"))
    live = live_use(cluster)
    assert used(live) == [1000, 0]
    assert [pod.name for pod in live.unlisted()] == ["p"]
    assert live.ended_as(a_pod(), None)
    assert used(live) == [0, 0]
    assert live.unlisted() == ()
