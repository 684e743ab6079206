"""Devices and cores of AWS Neuron: runs, aligned blocks, core masks, ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.engine.card_rules import Placement
from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.filters import Rejection, context
from hami_node.engine.place import fit
from hami_node.engine.usage import DeviceUsage
from hami_node.model import (
    NO_CARD_WISHES,
    Ask,
    CardWishes,
    Container,
    Device,
    Grant,
    Node,
    Uuid,
    UuidWish,
)
from hami_node.vendors.neuron import names
from hami_node.vendors.neuron.cards import NEURON
from hami_node.vendors.neuron.codec import decode_neuron_ids
from hami_node.vendors.neuron.placement import (
    WHOLE_DEVICES,
    Family,
    NeuronDetail,
    core_run,
    family_of,
    instance_type_of,
    is_valid_set,
)
from hami_node.vendors.neuron.protocol import neuron_protocol

COMPATS = [pytest.param(V2_8, id="2.8"), pytest.param(V2_10, id="2.10")]


def _node(
    count: int,
    instance_type: str,
    cores: int = 2,
    used: dict[int, int] | None = None,
) -> tuple[DeviceUsage, ...]:
    """Devices in visit order (highest index first); `used` holds core masks by index."""
    taken = used or {}
    return tuple(
        DeviceUsage(
            device=Device(
                uuid=Uuid(f"n1-AWSNeuron-{index}"),
                index=index,
                vendor=NEURON,
                model="AWSNeuron",
                mode="",
                slots=cores,
                cores=(1 << cores) - 1,
                detail=NeuronDetail(instance_type=instance_type),
            ),
            slots_used=taken.get(index, 0).bit_count(),
            cores_used=taken.get(index, 0),
        )
        for index in reversed(range(count))
    )


def _ask(count: int, cores: int = 2, *, whole: bool = False) -> Ask:
    detail = WHOLE_DEVICES if whole else None
    return Ask(vendor=NEURON, count=count, cores=cores, detail=detail)


def _fit(
    cards: Sequence[DeviceUsage],
    ask: Ask,
    wishes: CardWishes = NO_CARD_WISHES,
    *,
    compat: Compat = V2_10,
    policy: str = "",
    cordoned: frozenset[Uuid] = frozenset(),
) -> list[tuple[int, int]] | str:
    """(index, mask) of what is taken, or the text of the rejection."""
    ctx = context(ask, wishes, compat, policy=policy, cordoned=cordoned)
    answer = fit(cards, ctx)
    if isinstance(answer, Rejection):
        return answer.text()
    assert isinstance(answer, Placement)
    return [(taken.device.index, taken.cores) for taken in answer.taken]


def _whole(*indexes: int, mask: int = 3) -> list[tuple[int, int]]:
    return [(index, mask) for index in indexes]


@pytest.mark.parametrize(
    ("instance_type", "family"),
    [
        ("inf1.xlarge", Family.INFERENTIA),
        ("inf2.48xlarge", Family.INFERENTIA),
        ("Inf2.24xlarge", Family.INFERENTIA),
        ("ml.trn1.32xlarge", Family.TRAINIUM),
        ("trn2u.48xlarge", Family.TRAINIUM),
        ("trn3e.24xlarge", Family.TRAINIUM),
        ("", None),
        ("p4d.24xlarge", None),
        ("info.large", None),
    ],
)
def test_family_of_instance_type(instance_type: str, family: Family | None) -> None:
    assert family_of(instance_type) is family


def test_hazard_c12_window_follows_index_whatever_the_list_order() -> None:
    cards = _node(6, "inf2.24xlarge", used={2: 3})
    for order in (cards, cards[::-1], cards[3:] + cards[:3], (cards[3], *cards[:3], *cards[4:])):
        assert _fit(order, _ask(2), policy="mutex") == _whole(0, 1)
        assert _fit(order, _ask(3), policy="mutex") == _whole(3, 4, 5)


def test_hazard_c12_missing_device_breaks_the_run() -> None:
    cards = tuple(card for card in _node(6, "inf2.24xlarge") if card.device.index != 1)
    assert _fit(cards, _ask(2)) == _whole(2, 3)
    row = tuple(card for card in _node(16, "trn1.32xlarge") if card.device.index != 0)
    assert _fit(row, _ask(4)) == _whole(4, 5, 6, 7)


def test_hazard_c13_four_core_device_whole_takes_all_cores() -> None:
    cards = _node(4, "inf1.6xlarge", cores=4)
    assert _fit(cards, _ask(1, whole=True)) == [(3, 15)]
    assert _fit(cards, _ask(3, whole=True)) == _whole(0, 1, 2, mask=15)
    after = _node(4, "inf1.6xlarge", cores=4, used={3: 15})
    assert _fit(after, _ask(1, 1)) == [(2, 1)]


def test_hazard_c13_wishes_hold_for_many_devices() -> None:
    cards = _node(12, "inf2.48xlarge")
    nouse = CardWishes(uuids=UuidWish(nouse=frozenset({"n1-AWSNeuron-1"})))
    assert _fit(cards, _ask(2), nouse) == _whole(2, 3)
    use = CardWishes(uuids=UuidWish(use=frozenset({"n1-AWSNeuron-7", "n1-AWSNeuron-8"})))
    assert _fit(cards, _ask(2), use) == _whole(7, 8)
    assert _fit(cards, _ask(3), use) == "1/12 NumaNotFit"
    assert _fit(cards, _ask(2), cordoned=frozenset({Uuid("n1-AWSNeuron-0")})) == _whole(1, 2)


def test_hazard_core_fault_excludes_device_from_whole_requests() -> None:
    cards = tuple(
        replace(card, device=replace(card.device, cores=13 if card.device.index == 0 else 15))
        for card in _node(4, "inf1.6xlarge", cores=4)
    )
    assert _fit(cards, _ask(2, whole=True)) == _whole(1, 2, mask=15)
    assert _fit(cards[3:], _ask(1, 2)) == [(0, 12)]


@pytest.mark.parametrize(
    ("cards", "ask", "expected"),
    [
        (_node(4, "inf1.6xlarge", cores=4), _ask(2), [(3, 15)]),
        (_node(4, "inf1.6xlarge", cores=4), _ask(3), [(0, 15), (1, 3)]),
        (_node(4, "inf1.6xlarge", cores=4), _ask(8), _whole(0, 1, 2, 3, mask=15)),
        (_node(4, "inf1.6xlarge", cores=4, used={0: 1}), _ask(4), _whole(1, 2, mask=15)),
        (_node(16, "trn2.48xlarge", cores=4), _ask(8), _whole(0, 1, 2, 3, mask=15)),
        (_node(16, "trn2.48xlarge", cores=4), _ask(3), "1/16 NumaNotFit"),
        (_node(1, "trn2.3xlarge", cores=4), _ask(2), [(0, 15)]),
        (_node(1, "trn2.3xlarge", cores=8), _ask(4), [(0, 255)]),
        (_node(1, "trn2.3xlarge", cores=8), _ask(3), [(0, 63)]),
        (_node(1, "inf1.xlarge", cores=4, used={0: 0b0010}), _ask(1, 2), [(0, 12)]),
        (_node(1, "inf1.xlarge", cores=4, used={0: 5}), _ask(1, 2), "1/1 CardInsufficientCore"),
        (_node(2, "inf9.large", cores=1), _ask(2, 1), _whole(0, 1, mask=1)),
    ],
    ids=[
        "4 of 4", "6 over 2 devices", "16 over 4", "8 beside a used device", "16 on trn2",
        "6 on trn2: 2 devices", "LNC2 all", "LNC1 all", "LNC1 6 of 8", "run beside a used core",
        "free cores apart", "one-core devices",
    ],
)  # fmt: skip
def test_fit_neuron_cores_of_larger_devices(
    cards: tuple[DeviceUsage, ...], ask: Ask, expected: object
) -> None:
    assert _fit(cards, ask) == expected


@pytest.mark.parametrize(
    ("free", "count", "expected"),
    [
        (0b11, 1, 0b01),
        (0b10, 1, 0b10),
        (0b1111_0110, 2, 0b0000_0110),
        (0b1111_0110, 3, 0b0111_0000),
        (0b1011_0111, 4, 0),
        (0b1111, 4, 0b1111),
        (0, 1, 0),
        (0b1111, 0, 0),
        (0b1111, -1, 0),
    ],
)
def test_core_run_takes_shortest_stretch(free: int, count: int, expected: int) -> None:
    assert core_run(free, count) == expected


def _grant(index: int, mask: int) -> Grant:
    uuid = Uuid(f"n1-AWSNeuron-{index}")
    return Grant(uuid=uuid, vendor=NEURON, memory_mib=0, cores=mask)


def _ids(
    grants: Sequence[Grant],
    cards: Sequence[DeviceUsage],
    resource: str = names.RESOURCE_NEURON_CORE,
) -> tuple[int, ...]:
    """The ids that stand on a pod with these grants."""
    devices = {card.device.uuid: card.device for card in cards}
    container = Container(name="c", limits={resource: "1"})
    texts = neuron_protocol().annotations_of(Node(name="n1"), [container], [tuple(grants)], devices)
    return decode_neuron_ids(texts[names.NEURON_IDS])


@st.composite
def _nodes(draw: st.DrawFn) -> tuple[DeviceUsage, ...]:
    cores = draw(st.sampled_from([1, 2, 4, 8]))
    count = draw(st.integers(1, 16))
    kind = draw(st.sampled_from(["inf1.6xlarge", "inf2.48xlarge", "trn1.32xlarge", "trn3", ""]))
    masks = st.integers(0, (1 << cores) - 1)
    used = {index: draw(masks) for index in range(count) if draw(st.booleans())}
    return _node(count, kind, cores, used)


@given(
    cards=_nodes(),
    count=st.integers(1, 17),
    cores=st.integers(0, 9),
    whole=st.booleans(),
)
def test_fit_neuron_any_answer_is_free_exact_and_allowed(
    cards: tuple[DeviceUsage, ...], count: int, cores: int, whole: bool
) -> None:
    ask = _ask(count, cores, whole=whole)
    answer = fit(cards, context(ask, NO_CARD_WISHES, V2_10))
    if isinstance(answer, Rejection):
        assert answer.text()
        return
    assert answer.taken
    used = {card.device.uuid: card.cores_used for card in cards}
    assert all(taken.cores and not taken.cores & used[taken.device.uuid] for taken in answer.taken)
    per_device = cards[0].device.cores.bit_count()
    given_cores = sum(taken.cores.bit_count() for taken in answer.taken)
    assert given_cores == count * (per_device if whole else cores)
    indexes = [taken.device.index for taken in answer.taken]
    assert is_valid_set(indexes, family_of(instance_type_of(cards[0].device)))
    grants = [_grant(taken.device.index, taken.cores) for taken in answer.taken]
    ids = _ids(grants, cards)
    assert list(ids) == list(range(ids[0], ids[0] + given_cores))


@pytest.mark.parametrize("compat", COMPATS)
def test_whole_device_is_not_what_is_left_when_every_device_lost_a_core(compat: Compat) -> None:
    left = [
        replace(card, device=replace(card.device, cores=1)) for card in _node(4, "inf2.24xlarge")
    ]
    assert isinstance(_fit(left, _ask(1, whole=True), compat=compat), str)
    assert _fit(left, _ask(1, 1), compat=compat) == [(3, 1)]


def test_ids_count_the_cores_that_can_not_be_given() -> None:
    device = _node(16, "trn1.32xlarge")[0].device
    left = replace(device, cores=0b01)
    grant = Grant(uuid=device.uuid, vendor=NEURON, memory_mib=0, cores=1)
    container = Container(name="a", limits={names.RESOURCE_NEURON_CORE: "1"})
    said = neuron_protocol().annotations_of(
        Node(name="n1"), [container], [(grant,)], {device.uuid: left}
    )
    assert said[names.NEURON_IDS] == "30"
