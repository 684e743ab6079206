"""Pair scores from PCI distance and NVLinks."""

from __future__ import annotations

import pytest

from hami_node.model import PairScores, Uuid
from tests.nvml_stub.control import UUIDS, Stub
from tests.unit.vendors.nvidia.nvml.conftest import Open

A, B, C = map(Uuid, UUIDS[:3])


def scores(start: Open) -> PairScores:
    backend = start()
    backend.scan()
    assert backend.pair_scores() == {}  # the first list must not wait for them
    backend.scan()
    return backend.pair_scores()


@pytest.mark.parametrize(
    ("level", "score"),
    [
        ("internal", 60),
        ("single", 50),
        ("multiple", 40),
        ("hostbridge", 30),
        ("node", 20),
        ("system", 10),
    ],
)
def test_pci_distance_scores_from_10_to_60(start: Open, stub: Stub, level: str, score: int) -> None:
    stub.show(f"topology * * {level}", cards=2)
    assert scores(start) == {A: {B: score}, B: {A: score}}


def test_direct_nvlinks_count_for_their_pair_only(start: Open, stub: Stub) -> None:
    stub.show("topology * * node", "links 0 4 1", "links 1 2 2")
    assert scores(start) == {A: {B: 420, C: 20}, B: {A: 420, C: 220}, C: {A: 20, B: 220}}


def test_links_through_switches_count_for_every_pair(start: Open, stub: Stub) -> None:
    stub.show("links * 18 switch", cards=8)
    found = scores(start)
    assert {score for others in found.values() for score in others.values()} == {1810}
    assert sum(len(others) for others in found.values()) == 56


def test_switch_with_fewer_links_of_one_card_counts_the_fewer(start: Open, stub: Stub) -> None:
    stub.show("links 0 12 switch", "links 1 6 switch")
    assert scores(start)[A] == {B: 610, C: 10}


@pytest.mark.parametrize("code", [2, 3, 6, 13, 25, 26])
@pytest.mark.parametrize(
    ("function", "score"),
    [
        ("nvmlDeviceGetTopologyCommonAncestor", 400),
        ("nvmlDeviceGetNvLinkState", 10),
        ("nvmlDeviceGetNvLinkRemoteDeviceType", 410),
        ("nvmlDeviceGetNvLinkRemotePciInfo_v2", 10),
    ],
)
def test_link_query_that_is_not_offered_counts_nothing(
    start: Open, stub: Stub, function: str, code: int, score: int
) -> None:
    stub.show("links 0 4 1", f"fail {function} * {code}", cards=2)
    assert scores(start) == {A: {B: score}, B: {A: score}}


@pytest.mark.parametrize("code", [1, 4, 10, 15, 999])
@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetNvLinkState"]
)
def test_link_query_that_fails_leaves_cards_healthy_and_is_asked_again(
    start: Open, stub: Stub, function: str, code: int
) -> None:
    stub.show("links 0 4 1", f"fail {function} 0 {code}", cards=2)
    backend = start()
    for _ in range(2):
        assert all(found.healthy for found in backend.scan())
    assert backend.pair_scores() == {}
    stub.show("links 0 4 1", cards=2)
    backend.scan()
    assert backend.pair_scores() == {A: {B: 410}, B: {A: 410}}


def test_links_are_asked_once_while_the_cards_stay_the_same(start: Open, stub: Stub) -> None:
    backend = start()
    backend.scan()
    backend.scan()
    asked = stub.calls("nvmlDeviceGetTopologyCommonAncestor")
    for _ in range(3):
        backend.scan()
    assert stub.calls("nvmlDeviceGetTopologyCommonAncestor") == asked
