from __future__ import annotations

from enum import StrEnum

import pytest

from hami_node.engine.filters import Reason
from hami_node.engine.objection import Amounts, Doubt, Objection
from hami_node.node.allocate.refusals import RECREATE, sentence
from hami_node.vendors.neuron.cards import NeuronDoubt
from hami_node.vendors.neuron.protocol import neuron_protocol
from hami_node.vendors.nvidia.cards import MigDoubt, MigReason
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.vendors.protocol import VendorProtocol
from tests.fakes.cards import uuid


@pytest.mark.parametrize(
    ("objection", "wanted"),
    [
        (
            Objection(
                reason=Reason.TOO_LITTLE_MEMORY,
                uuid=uuid(3),
                index=3,
                amounts=Amounts(left=10960, asked=30000, unit="MiB"),
            ),
            f"ns/p/c: the card has too little free memory: card 3 ({uuid(3)}), free 10960 MiB, "
            f"asked 30000 MiB, {Reason.TOO_LITTLE_MEMORY}: {RECREATE}",
        ),
        (
            Objection(
                reason=Reason.TOO_FEW_CORES,
                uuid=uuid(0),
                index=0,
                amounts=Amounts(left=0, asked=50, unit="percent"),
            ),
            f"ns/p/c: the card has too few free cores: card 0 ({uuid(0)}), free 0 %, "
            f"asked 50 %, {Reason.TOO_FEW_CORES}: {RECREATE}",
        ),
        (
            Objection(
                reason=Doubt.COUNT_DIFFERS,
                amounts=Amounts(left=2, asked=1, unit="cards", is_allowance=True),
            ),
            "ns/p/c: the reservation does not have as many cards as the container asks for: "
            f"allowed 2 cards, asked 1 cards, count-differs: {RECREATE}",
        ),
        (
            Objection(reason=Doubt.UNKNOWN_CARD, uuid=uuid(9)),
            f"ns/p/c: the reserved card is not on this node: card {uuid(9)}, unknown-card: "
            f"{RECREATE}",
        ),
        (
            Objection(reason=Reason.NOT_HEALTHY, uuid=uuid(1), index=1, detail="XID 48"),
            f"ns/p/c: the card is unhealthy (XID 48): card 1 ({uuid(1)}), "
            f"{Reason.NOT_HEALTHY}: {RECREATE}",
        ),
    ],
    ids=["memory", "cores", "count", "unknown-card", "unhealthy"],
)
def test_sentence_names_container_card_free_asked_reason_and_hint(
    objection: Objection, wanted: str
) -> None:
    assert sentence("ns/p/c", objection, {}) == wanted


REASONS: list[tuple[VendorProtocol | None, StrEnum]] = [
    *((None, reason) for reason in (*Doubt, *Reason)),
    *((nvidia_protocol(), reason) for reason in (*MigReason, *MigDoubt)),
    *((neuron_protocol(), reason) for reason in NeuronDoubt),
]
DOUBTS = [
    (vendor, reason) for vendor, reason in REASONS if not isinstance(reason, Reason | MigReason)
]


@pytest.mark.parametrize(("vendor", "reason"), REASONS, ids=str)
def test_sentence_of_every_reason_is_one_line_with_a_hint(
    vendor: VendorProtocol | None, reason: StrEnum
) -> None:
    said = sentence("ns/p/c", Objection(reason=reason), vendor.meanings if vendor else {})
    assert said.startswith("ns/p/c: ")
    assert said.endswith(RECREATE)
    assert "\n" not in said


@pytest.mark.parametrize(("vendor", "doubt"), DOUBTS, ids=str)
def test_sentence_of_every_doubt_has_words_of_its_own(
    vendor: VendorProtocol | None, doubt: StrEnum
) -> None:
    meanings = vendor.meanings if vendor else {}
    meaning = sentence("c", Objection(reason=doubt), meanings).split(": ")[1]
    assert meaning != str(doubt)
    assert " " in meaning
