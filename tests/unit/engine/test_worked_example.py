"""The numbers of docs/extender.md, computed, and found there."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.filters import Rejection
from hami_node.engine.place import (
    ContainerAsks,
    NodeOffer,
    Plan,
    PodRequest,
    Rules,
    place_on,
    plan,
)
from hami_node.engine.ranking import device_score, node_score
from hami_node.model import Ask, ContainerKind
from tests.unit.engine.cards import ask, card

PAGE = (Path(__file__).parents[3] / "docs" / "extender.md").read_text()
CARDS = (card(0, (3, 6144, 40)), card(1))


def _answer(wanted: Ask, policy: str, compat: Compat) -> str:
    request = PodRequest(
        namespace="ns", containers=(ContainerAsks(kind=ContainerKind.APP, asks=(wanted,)),)
    )
    ready = plan(request, Rules(compat=compat, gpu_policy=policy))
    assert isinstance(ready, Plan)
    answer = place_on(NodeOffer(cards={usage.device.uuid: usage for usage in CARDS}), ready)
    if isinstance(answer, Rejection):
        return f"`{answer.text()}`"
    return answer.containers[0][0].uuid


@pytest.mark.parametrize("compat", [V2_8, V2_10], ids=["2.8", "2.10"])
def test_scores_of_the_page(compat: Compat) -> None:
    scores = [device_score(usage, [ask(1, 4096, 20)], compat) for usage in CARDS]
    assert scores == [16.25, 5.5]
    assert f"10 x (4/10 + 60/100 + 10240/16384) = **{scores[0]}**" in PAGE
    assert f"10 x (1/10 + 20/100 + 4096/16384) = **{scores[1]}**" in PAGE
    assert f"10 x (3/20 + 40/200 + 6144/32768) = **{node_score(CARDS)}**" in PAGE


@pytest.mark.parametrize(
    ("row", "wanted", "compats"),
    [
        ("1 card, 4096 MiB, 20 cores", ask(1, 4096, 20), (V2_8, V2_10)),
        ("1 card, 12000 MiB, 20 cores", ask(1, 12000, 20), (V2_8, V2_10)),
        ("1 card, 4096 MiB, 100 cores", ask(1, 4096, 100), (V2_8, V2_10)),
        ("2 cards, 12000 MiB, 20 cores", ask(2, 12000, 20), (V2_8, V2_10)),
        ("2 cards, 12000 MiB, 70 cores, 2.8", ask(2, 12000, 70), (V2_8,)),
        ("2 cards, 12000 MiB, 70 cores, 2.10", ask(2, 12000, 70), (V2_10,)),
        ("3 cards, 1 MiB, 0 cores", ask(3, 1, 0), (V2_8, V2_10)),
    ],
)
def test_answers_of_the_page(row: str, wanted: Ask, compats: tuple[Compat, ...]) -> None:
    for compat in compats:
        spread = _answer(wanted, "spread", compat)
        binpack = _answer(wanted, "binpack", compat)
        shown = "the same" if spread == binpack and spread.startswith("`") else binpack
        assert f"| {row} | {spread} | {shown} |" in PAGE
