from __future__ import annotations

import pytest

from hami_node.engine.check import Doubt, Objection
from hami_node.engine.filters import Reason
from hami_node.node.refusals import RECREATE, sentence
from tests.fakes.cards import uuid


@pytest.mark.parametrize(
    ("objection", "wanted"),
    [
        (
            Objection(
                reason=Reason.TOO_LITTLE_MEMORY,
                uuid=uuid(3),
                index=3,
                free=10960,
                asked=30000,
                unit="MiB",
            ),
            f"ns/p/c: the card has too little free memory: card 3 ({uuid(3)}), free 10960 MiB, "
            f"asked 30000 MiB, {Reason.TOO_LITTLE_MEMORY}: {RECREATE}",
        ),
        (
            Objection(
                reason=Reason.TOO_FEW_CORES,
                uuid=uuid(0),
                index=0,
                free=0,
                asked=50,
                unit="percent",
            ),
            f"ns/p/c: the card has too few free cores: card 0 ({uuid(0)}), free 0 %, "
            f"asked 50 %, {Reason.TOO_FEW_CORES}: {RECREATE}",
        ),
        (
            Objection(reason=Doubt.COUNT_DIFFERS, free=2, asked=1, unit="cards"),
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
def test_sentence_names_container_card_free_asked_reason_and_cure(
    objection: Objection, wanted: str
) -> None:
    assert sentence("ns/p/c", objection) == wanted


@pytest.mark.parametrize("reason", [*Doubt, *Reason], ids=str)
def test_sentence_of_every_reason_is_one_line_with_a_cure(reason: Doubt | Reason) -> None:
    said = sentence("ns/p/c", Objection(reason=reason))
    assert said.startswith("ns/p/c: ")
    assert said.endswith(RECREATE)
    assert "\n" not in said


@pytest.mark.parametrize("doubt", list(Doubt), ids=str)
def test_sentence_of_every_doubt_has_words_of_its_own(doubt: Doubt) -> None:
    meaning = sentence("c", Objection(reason=doubt)).split(": ")[1]
    assert meaning != str(doubt)
    assert " " in meaning
