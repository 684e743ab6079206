"""A driver that answers nonsense: it costs the card that it is about, and nothing else."""

from __future__ import annotations

import pytest

from hami_node.errors import DriverUnavailable
from hami_node.model import Device, Uuid
from hami_node.node.cards.inventory import kubelet_list
from hami_node.vendors.nvidia.codec import decode_register, encode_csv7, encode_csv9, encode_json
from hami_node.vendors.nvidia.nvml.xid_ledger import XidPolicy
from hami_node.wire.register import encode_pair_scores
from tests.fakes.waiting import eventually
from tests.nvml_stub.control import UUIDS, Stub, card, sequence
from tests.reliability import shows
from tests.unit.vendors.nvidia.nvml.conftest import Open

OF_A_CARD = (
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetRemappedRows",
)


OF_LINKS = (
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkRemoteDeviceType",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
)
BYTES = (0x00, 0x01, 0x2C, 0x7F, 0x80, 0xFF)


def by_uuid(cards: tuple[Device, ...]) -> dict[str, Device]:
    return {str(found.uuid): found for found in cards}


def assert_publishable(cards: tuple[Device, ...]) -> None:
    """Everything that is made of the cards can be made, and shows the good ones."""
    kubelet_list(cards).SerializeToString()
    for encode in (encode_json, encode_csv9, encode_csv7):
        read = by_uuid(decode_register(encode(cards)))
        assert read[UUIDS[0]].healthy
        assert read[UUIDS[2]].healthy


@shows(
    "N11",
    fault="the driver answers nonsense about a card, in any call: bytes that are no text, sizes "
    "beyond every card, an empty or a foreign UUID",
    happens="that card is unhealthy with the reason and keeps its last known values; the others "
    "are served, published and read on",
)
@pytest.mark.parametrize("byte", BYTES)
@pytest.mark.parametrize("function", OF_A_CARD)
def test_nonsense_about_a_card_costs_that_card(
    start: Open, stub: Stub, function: str, byte: int
) -> None:
    backend = start()
    before = backend.scan()
    stub.show(f"garbage {function} 1 {byte}")
    cards = backend.scan()
    assert [found.uuid for found in cards] == list(UUIDS[:3])
    assert (cards[0], cards[2]) == (before[0], before[2])
    assert_publishable(cards)
    assert cards[1].memory_mib == before[1].memory_mib
    if not cards[1].healthy:
        assert cards[1].unhealthy_reason
        assert backend.scan() == cards, "the reason stays the same while the answer does"
    stub.show()
    assert backend.scan() == before


@pytest.mark.parametrize(
    "changes",
    [
        {"uuid": ""},
        {"uuid": '"GPU 1"'},
        {"uuid": "GPU-1,2:3;"},
        {"uuid": "x" * 80},
        {"uuid": b"GPU-\xff\xfe".decode(errors="surrogateescape")},
        {"name": b"\xff\xff\xff".decode(errors="surrogateescape")},
        {"name": '""'},
        {"name": "A10,x:y"},
        {"name": "A\x01\x02"},
        {"memory_mib": 2**43 + 5},
        {"memory_mib": 2**44 - 1},
        {"memory_mib": 2**25},
        {"memory_mib": 0},
    ],
    ids=str,
)
def test_values_that_no_card_has_cost_that_card(
    start: Open, stub: Stub, changes: dict[str, object]
) -> None:
    backend = start()
    before = backend.scan()
    stub.write(card(0), card(1, **changes), card(2))
    cards = backend.scan()
    assert [(found.uuid, found.healthy) for found in cards] == [
        (UUIDS[0], True),
        (UUIDS[1], False),
        (UUIDS[2], True),
    ]
    assert cards[1].unhealthy_reason
    assert_publishable(cards)
    stub.show()
    assert backend.scan() == before


def test_cards_that_share_a_uuid_cost_the_second(start: Open, stub: Stub) -> None:
    stub.write(card(0), card(1), card(2), card(3, uuid=UUIDS[1]))
    backend = start()
    for _ in range(3):
        assert_publishable(backend.scan())
    assert backend.nameless_faults() == ("card 3: has the UUID of card 1",)


@pytest.mark.parametrize("byte", BYTES)
@pytest.mark.parametrize("function", OF_LINKS)
def test_nonsense_about_links_costs_scores_only(
    start: Open, stub: Stub, function: str, byte: int
) -> None:
    stub.show("links * 4 switch", "links 0 2 1", f"garbage {function} 1 {byte}")
    backend = start()
    for _ in range(3):
        assert all(found.healthy for found in backend.scan())
    scores = backend.pair_scores()
    encode_pair_scores(scores)
    assert scores[Uuid(UUIDS[0])][Uuid(UUIDS[2])] == 410


@pytest.mark.parametrize("code", [15, 4, 999])
@pytest.mark.parametrize("function", OF_LINKS[:2])
def test_card_that_does_not_answer_about_links_leaves_the_others_theirs(
    start: Open, stub: Stub, function: str, code: int
) -> None:
    stub.show(f"fail {function} 0 {code}")
    backend = start()
    for _ in range(3):
        backend.scan()
    b, c = Uuid(UUIDS[1]), Uuid(UUIDS[2])
    assert backend.pair_scores() == {b: {c: 10}, c: {b: 10}}


@pytest.mark.parametrize("byte", [0x01, 0x7F, 0xFF])
def test_count_of_cards_that_is_none_is_the_drivers_fault(
    start: Open, stub: Stub, byte: int
) -> None:
    backend = start()
    good = backend.scan()
    stub.show(f"garbage nvmlDeviceGetCount_v2 * {byte}")
    with pytest.raises(DriverUnavailable, match="no number of cards"):
        backend.scan()
    stub.show()
    eventually(lambda: backend.scan() == good)


def test_event_that_is_nonsense_is_counted_and_the_next_is_heard(start: Open, stub: Stub) -> None:
    backend = start(xids=XidPolicy())
    backend.scan()
    heard = stub.calls("nvmlEventSetWait_v2")
    eventually(lambda: stub.calls("nvmlEventSetWait_v2") > heard)
    nonsense = f"xid {next(sequence)} 0 79"
    stub.show(nonsense, "garbage nvmlEventSetWait_v2 * 255")
    eventually(lambda: backend.error_counts() == {("", 0): 1})
    assert all(found.healthy for found in backend.scan())
    stub.show(nonsense, f"xid {next(sequence)} 1 79")
    eventually(lambda: not backend.scan()[1].healthy)
