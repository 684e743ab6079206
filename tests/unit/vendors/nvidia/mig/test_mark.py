"""The node's annotation about its MIG cards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hami_node.errors import WireError
from hami_node.vendors.divided import DividedCards, PartState, PartView
from hami_node.vendors.nvidia.mig.mark import MAX_PARTS, MAX_SENTENCE, decode_mig, encode_mig
from hami_node.vendors.nvidia.mig.shown import divided_cards
from tests.fakes.cards import uuid
from tests.fakes.mig_cards import A30, divided, instance

STALE = PartView(
    card=uuid(0), kind="2g.10gb", start=0, size=2, state=PartState.STALE, numbers=(3, 0),
    uuid="MIG-3", pod_uid="uid-p", container="main", why="process 77 is on it",
)  # fmt: skip


def node_of(*own: PartView, hands_off: str = "") -> DividedCards:
    cards = [divided(index, instance(9, "1g.5gb", 2)) for index in range(8)]
    return DividedCards(cards=divided_cards(cards, own, is_offered=False), hands_off=hands_off)


def test_what_is_written_is_read_again() -> None:
    written = node_of(STALE, hands_off="MIG Manager is at work")
    assert decode_mig(encode_mig(written) or "") == written


def test_node_without_such_cards_has_no_annotation() -> None:
    assert encode_mig(DividedCards(hands_off="nobody asked")) is None


def test_equal_cards_share_their_profiles() -> None:
    text = encode_mig(node_of()) or ""
    assert text.count('"7g.40gb"') == 1
    assert len(text) < 4000
    mixed = DividedCards(
        cards=divided_cards(
            [divided(0), divided(1, profiles=A30), divided(2)], (), is_offered=False
        )
    )
    assert decode_mig(encode_mig(mixed) or "") == mixed


def test_full_node_whatever_the_texts_stays_small() -> None:
    long = "x" * 10_000
    cards = [
        replace(
            card,
            problem=long,
            parts=tuple(replace(STALE, start=i, why=long, kind=long) for i in range(1000)),
        )
        for card in node_of().cards
    ]
    text = encode_mig(DividedCards(cards=tuple(cards), hands_off=long)) or ""
    assert len(text.encode()) < 128 * 1024
    found = decode_mig(text)
    assert len(found.parts) == MAX_PARTS
    assert len(found.cards) == 8
    assert len(found.hands_off) == MAX_SENTENCE


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "[]",
        '{"cards":[{"uuid":"GPU-1","index":0,"mode":"mig","profiles":1}]}',
        '{"cards":[{"uuid":"GPU-1","index":0,"mode":"mig","profiles":-1}],"profiles":[[]]}',
        '{"cards":[{"uuid":"GPU-1","index":0,"mode":"mig","instances":'
        '[{"profile":"1g","start":0,"size":1,"state":"?"}]}]}',
        '{"cards":[{"uuid":"GPU-1"}]}',
    ],
)
def test_text_of_another_shape_is_refused(text: str) -> None:
    with pytest.raises(WireError, match=r"hami-node\.io/mig"):
        decode_mig(text)
