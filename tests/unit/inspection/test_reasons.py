from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from itertools import permutations

import pytest

from hami_node.engine.filters import Reason, Rejection
from hami_node.engine.place import ContainerAsks, PodRequest
from hami_node.engine.usage import DeviceUsage
from hami_node.inspection.reasons import MAX_NAMES, Explained, explained, lasting_of
from hami_node.model import Ask, ContainerKind, Uuid
from hami_node.vendors.nvidia.cards import NVIDIA, MigReason
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from tests.unit.extender.desk import MEMORY_MIB, card

Cards = Mapping[Uuid, DeviceUsage]


class OwnReason(StrEnum):
    """Why a vendor's cards can never serve."""

    NEVER = "CardNever"


def request(memory_mib: int) -> PodRequest:
    ask = Ask(vendor=NVIDIA, count=1, memory_mib=memory_mib)
    return PodRequest(
        namespace="default", containers=(ContainerAsks(kind=ContainerKind.APP, asks=(ask,)),)
    )


def counted(**counts: int) -> Rejection:
    """Counts by the names of `Reason`."""
    return Rejection.of(Counter({Reason[name]: count for name, count in counts.items()}), 4)


def cards_of(node: str, *, used_mib: int = 4000, healthy: bool = True) -> Cards:
    device = card(node, 0, healthy=healthy)
    return {device.uuid: DeviceUsage(device=device, memory_used_mib=used_mib)}


def explain(
    rejections: Mapping[str, Rejection], memory_mib: int = 8000, **cards: Cards
) -> Explained:
    def largest(names: Iterable[str]) -> dict[str, int]:
        return dict.fromkeys(names, MEMORY_MIB)

    return explained(
        request(memory_mib),
        rejections,
        lambda name: cards.get(name, cards_of(name)),
        largest,
        lambda name: f"{name} is not served",
        lasting_of([replace(nvidia_protocol(), lasting=frozenset(OwnReason))]),
    )


@pytest.mark.parametrize(
    ("rejection", "is_lasting"),
    [
        pytest.param(counted(TOO_LITTLE_MEMORY=4), False, id="memory that others hold"),
        pytest.param(counted(NO_SLOT=4), False, id="slots that others hold"),
        pytest.param(counted(TYPE_MISMATCH=4), True, id="another model"),
        pytest.param(counted(NOT_HEALTHY=2, CORDONED=2), True, id="sick and cordoned"),
        pytest.param(
            Rejection.of(Counter({OwnReason.NEVER: 4}), 4), True, id="a vendor's own reason"
        ),
        pytest.param(
            Rejection.of(Counter({MigReason.NO_TEMPLATE: 4}), 4), False, id="instances of others"
        ),
        pytest.param(
            Rejection.of(Counter({MigReason.NO_PLACEMENT: 4}), 4),
            False,
            id="a vendor's passing one",
        ),
        pytest.param(counted(TYPE_MISMATCH=3, TOO_LITTLE_MEMORY=1), False, id="one card may do"),
    ],
)
def test_waiting_helps_only_where_others_are_in_the_way(
    rejection: Rejection, is_lasting: bool
) -> None:
    found = explain({"n1": rejection})
    assert ("n1" in found.unresolvable) == is_lasting
    assert ("n1" in found.failed) != is_lasting


def test_ask_above_every_card_is_lasting() -> None:
    found = explain({"n1": counted(TOO_LITTLE_MEMORY=4)}, memory_mib=MEMORY_MIB + 1)
    assert found.unresolvable == {"n1": "4/4 CardInsufficientMemory"}


def test_node_that_offers_nothing_says_why() -> None:
    found = explain({"n1": Rejection(whole=Reason.NOT_REGISTERED)})
    assert found.unresolvable == {"n1": "node unregistered: n1 is not served"}


def test_summary_counts_nodes_by_reason_most_frequent_first() -> None:
    memory, kind = counted(TOO_LITTLE_MEMORY=4), counted(TYPE_MISMATCH=4)
    found = explain({"n1": kind, "n2": memory, "n3": memory})
    assert found.summary.startswith(
        "no available node, 3 nodes do not meet: "
        "2 nodes CardInsufficientMemory(n2,n3); 1 nodes CardTypeMismatch(n1)"
    )


def test_summary_names_only_a_few_nodes() -> None:
    memory = counted(TOO_LITTLE_MEMORY=4)
    found = explain({f"n{number}": memory for number in range(MAX_NAMES + 1)})
    assert "(n0,n1,n2,n3,n4,...)" in found.summary


def test_summary_names_the_nearest_miss() -> None:
    memory = counted(TOO_LITTLE_MEMORY=4)
    found = explain({"n1": memory, "n2": memory}, n2=cards_of("n2", used_mib=3000))
    assert found.summary.endswith("; nearest: 7000 MiB free on GPU-n2-0 of n2, 8000 MiB requested")


@pytest.mark.parametrize(
    "cards",
    [
        pytest.param(cards_of("n1", healthy=False), id="a sick card"),
        pytest.param(cards_of("n1", used_mib=0), id="enough is free"),
        pytest.param({}, id="no cards"),
    ],
)
def test_card_that_is_no_near_miss_is_not_named(cards: Cards) -> None:
    assert "nearest" not in explain({"n1": counted(TOO_LITTLE_MEMORY=4)}, n1=cards).summary


def test_no_candidates_is_a_sentence() -> None:
    assert explain({}).summary == "no available node, 0 nodes do not meet"


def test_ask_that_no_node_of_a_kind_ever_serves_is_unresolvable_and_said_once() -> None:
    never = replace(counted(OTHER_NUMA=1), never="4 or 8, not 7")
    said = explain({"a": never, "b": never, "c": counted(NO_SLOT=4)})
    assert said.failed.keys() == {"c"}
    assert said.unresolvable == dict.fromkeys("ab", "1/4 NumaNotFit: 4 or 8, not 7")
    assert said.summary.count("4 or 8, not 7") == 1


def test_node_of_which_only_the_refusal_is_known_may_get_room_if_its_cards_are_large_enough() -> (
    None
):
    """Preemption may help there; on cards that are too small it never does."""
    known = Rejection(whole=Reason.TOO_LITTLE_ROOM)
    found = explain({"a": known})
    assert (dict(found.failed), dict(found.unresolvable)) == ({"a": "NodeInsufficientRoom"}, {})
    found = explain({"a": known}, memory_mib=MEMORY_MIB + 1)
    assert (dict(found.failed), dict(found.unresolvable)) == ({}, {"a": "NodeInsufficientRoom"})


def test_nearest_miss_is_the_same_in_whatever_order_the_nodes_are_named() -> None:
    """kube-scheduler names them in another order each time: another text would be another Event."""
    used = {"n1": 4000, "n2": 3000, "n3": 3000, "n4": 5000}
    said = set()
    for order in permutations(used):
        rejections = {name: counted(TOO_LITTLE_MEMORY=4) for name in order}
        cards = {name: cards_of(name, used_mib=used[name]) for name in order}
        said.add(explain(rejections, 8000, **cards).summary.partition("; nearest: ")[2])
    assert said == {"7000 MiB free on GPU-n3-0 of n3, 8000 MiB requested"}
