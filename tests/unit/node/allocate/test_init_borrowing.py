from __future__ import annotations

import pytest

from hami_node.model import ContainerKind
from hami_node.node.allocate.terms import lenders, lent
from tests.fakes.cards import uuid
from tests.fakes.pods import Box, Generation, Part, reserved_pod
from tests.unit.node.holdings.uses import CARDS, VENDOR

INIT = ContainerKind.INIT


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
    held = VENDOR.held_by(pod).by_container
    ask = VENDOR.ask_of(pod.containers[0])
    assert ask is not None
    found = lent(held["main"], ask, {card.uuid: card for card in CARDS})
    assert (found and (found[0].memory_mib, found[0].cores)) == wanted


def test_lent_card_not_on_this_node_lends_nothing() -> None:
    pod = reserved_pod("p", [Box(memory_mib=1)], {"main": [Part(uuid="GPU-x", memory_mib=1)]})
    held = VENDOR.held_by(pod).by_container
    ask = VENDOR.ask_of(pod.containers[0])
    assert ask is not None
    assert lent(held["main"], ask, {card.uuid: card for card in CARDS}) is None


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
    held = VENDOR.held_by(pod).by_container
    assert lenders(held, pod, 1) == ("b", "a")
    assert lenders(held, pod, 2) == ("two",)
    assert lenders(held, pod, 3) == ()
