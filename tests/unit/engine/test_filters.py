"""Every filter accepts and rejects; the first that rejects gives the reason."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

import pytest

from hami_node.engine.card_rules import filters_after_numa
from hami_node.engine.compat import V2_8, V2_10, Compat, FilterName
from hami_node.engine.filters import (
    BEFORE_NUMA,
    FILTERS,
    FitContext,
    Reason,
    Rejection,
    context,
    first_failing,
)
from hami_node.engine.quota import Quota, QuotaTally
from hami_node.engine.usage import DeviceUsage
from hami_node.model import NO_CARD_WISHES, Ask, CardWishes, Uuid, UuidWish, Vendor
from hami_node.vendors.neuron.cards import NEURON
from hami_node.vendors.nvidia.cards import NVIDIA
from tests.unit.engine.cards import ask, card

IDLE = card()
FULL_QUOTA = Quota(memory_limit_mib=1000)


def _ctx(
    wanted: Ask | None = None,
    wishes: CardWishes = NO_CARD_WISHES,
    compat: Compat = V2_10,
    policy: str = "",
    cordoned: tuple[str, ...] = (),
    quota: Quota | None = None,
) -> FitContext:
    return context(
        wanted or ask(),
        wishes,
        compat,
        policy=policy,
        cordoned=frozenset(Uuid(uuid) for uuid in cordoned),
        quota=None if quota is None else QuotaTally.start(quota, compat),
    )


def _uuids(use: set[str] | None = None, nouse: set[str] | None = None) -> CardWishes:
    return CardWishes(
        uuids=UuidWish(use=None if use is None else frozenset(use), nouse=frozenset(nouse or set()))
    )


CASES: list[tuple[FilterName, DeviceUsage, FitContext, Reason | None]] = [
    (FilterName.HEALTH, IDLE, _ctx(), None),
    (FilterName.HEALTH, card(healthy=False), _ctx(), Reason.NOT_HEALTHY),
    (FilterName.HEALTH, replace(IDLE, contradiction="twice"), _ctx(), Reason.NOT_HEALTHY),
    (FilterName.CORDON, IDLE, _ctx(cordoned=("GPU-1",)), None),
    (FilterName.CORDON, IDLE, _ctx(cordoned=("GPU-0",)), Reason.CORDONED),
    (FilterName.TYPE, IDLE, _ctx(wishes=CardWishes(use_types=("v100", "a100"))), None),
    (FilterName.TYPE, IDLE, _ctx(wishes=CardWishes(use_types=("h100",))), Reason.TYPE_MISMATCH),
    (FilterName.TYPE, IDLE, _ctx(wishes=CardWishes(nouse_types=("a100",))), Reason.TYPE_MISMATCH),
    (FilterName.TYPE, IDLE, _ctx(wishes=CardWishes(nouse_types=("t4",))), None),
    (
        FilterName.TYPE,
        IDLE,
        _ctx(wishes=CardWishes(use_types=("a100",), nouse_types=("sxm4",))),
        Reason.TYPE_MISMATCH,
    ),
    (
        FilterName.TYPE,
        IDLE,
        _ctx(wishes=CardWishes(modes=frozenset({"mig"}))),
        Reason.TYPE_MISMATCH,
    ),
    (FilterName.TYPE, IDLE, _ctx(wishes=CardWishes(modes=frozenset({"mig", "hami-core"}))), None),
    (FilterName.TYPE, card(mode=""), _ctx(wishes=CardWishes(modes=frozenset({"mig"}))), None),
    (FilterName.TYPE, card(vendor=NEURON), _ctx(), Reason.TYPE_MISMATCH),
    (FilterName.UUID, IDLE, _ctx(), None),
    (FilterName.UUID, IDLE, _ctx(wishes=_uuids(use={"GPU-0", "GPU-9"})), None),
    (FilterName.UUID, IDLE, _ctx(wishes=_uuids(use={"GPU-9"})), Reason.UUID_MISMATCH),
    (FilterName.UUID, IDLE, _ctx(wishes=_uuids(nouse={"GPU-9", "GPU-0"})), Reason.UUID_MISMATCH),
    (
        FilterName.UUID,
        IDLE,
        _ctx(wishes=_uuids(use={"GPU-0"}, nouse={"GPU-0"})),
        Reason.UUID_MISMATCH,
    ),
    (FilterName.SLOTS, card(used=(9, 0, 0)), _ctx(), None),
    (FilterName.SLOTS, card(used=(10, 0, 0)), _ctx(), Reason.NO_SLOT),
    (FilterName.SLOTS, card(used=(11, 0, 0)), _ctx(), Reason.NO_SLOT),
    (FilterName.MUTEX, card(used=(1, 0, 0)), _ctx(policy="binpack"), None),
    (FilterName.MUTEX, IDLE, _ctx(policy="mutex"), None),
    (FilterName.MUTEX, card(used=(1, 0, 0)), _ctx(policy="binpack,mutex"), Reason.NOT_EXCLUSIVE),
    (FilterName.MUTEX, card(used=(1, 0, 0)), _ctx(policy="binpack, mutex "), Reason.NOT_EXCLUSIVE),
    (FilterName.QUOTA, IDLE, _ctx(), None),
    (FilterName.QUOTA, IDLE, _ctx(quota=Quota(memory_limit_mib=4096)), None),
    (FilterName.QUOTA, IDLE, _ctx(quota=Quota(memory_limit_mib=4095)), Reason.OVER_QUOTA),
    (FilterName.QUOTA, IDLE, _ctx(quota=Quota(core_limit=29)), Reason.OVER_QUOTA),
    (FilterName.MEMORY, card(used=(0, 12288, 0)), _ctx(), None),
    (FilterName.MEMORY, card(used=(0, 12289, 0)), _ctx(), Reason.TOO_LITTLE_MEMORY),
    (FilterName.CORES, card(used=(0, 0, 70)), _ctx(), None),
    (FilterName.CORES, card(used=(0, 0, 71)), _ctx(), Reason.TOO_FEW_CORES),
    (FilterName.CORES, IDLE, _ctx(ask(cores=250)), None),
    (FilterName.EXCLUSIVE, IDLE, _ctx(ask(cores=100)), None),
    (FilterName.EXCLUSIVE, card(used=(1, 0, 0)), _ctx(ask(cores=99)), None),
    (FilterName.EXCLUSIVE, card(used=(1, 0, 0)), _ctx(ask(cores=100)), Reason.NOT_EXCLUSIVE),
    (FilterName.EXCLUSIVE, card(used=(1, 0, 0)), _ctx(ask(cores=250)), Reason.NOT_EXCLUSIVE),
    (FilterName.NO_CORES_LEFT, card(used=(1, 0, 99)), _ctx(ask(cores=0)), None),
    (FilterName.NO_CORES_LEFT, card(used=(1, 0, 100)), _ctx(ask(cores=1)), None),
    (FilterName.NO_CORES_LEFT, card(cores=0), _ctx(ask(cores=0)), None),
    (FilterName.NO_CORES_LEFT, card(used=(1, 0, 100)), _ctx(ask(cores=0)), Reason.NO_CORES_LEFT),
]


@pytest.mark.parametrize(("name", "usage", "ctx", "reason"), CASES)
def test_filter_gives_its_reason(
    name: FilterName, usage: DeviceUsage, ctx: FitContext, reason: Reason | None
) -> None:
    assert FILTERS[name](usage, ctx) is reason


def test_every_filter_is_tested_both_ways() -> None:
    for name in FilterName:
        reasons = {case[3] for case in CASES if case[0] is name}
        assert None in reasons
        assert len(reasons) > 1


@pytest.mark.parametrize(
    ("wanted", "memory_mib", "expected"),
    [
        (ask(memory_mib=None, memory_percent=25), 24576, 6144),
        (ask(memory_mib=None, memory_percent=33), 16384, 5406),
        (ask(memory_mib=4096, memory_percent=50), 16384, 4096),
        (ask(memory_mib=None), 16384, 0),
    ],
    ids=["quarter", "truncated", "absolute-wins", "nothing-given"],
)
def test_memory_of_an_ask_on_a_card(wanted: Ask, memory_mib: int, expected: int) -> None:
    assert wanted.memory_mib_on(memory_mib) == expected


@pytest.mark.parametrize(
    ("compat", "reason"),
    [(V2_8, Reason.TOO_FEW_CORES), (V2_10, Reason.OVER_QUOTA)],
    ids=["2.8", "2.10"],
)
def test_first_failing_follows_the_generations_order(compat: Compat, reason: Reason) -> None:
    ctx = _ctx(compat=compat, quota=FULL_QUOTA)
    assert (
        first_failing(card(used=(1, 16000, 90)), ctx, filters_after_numa(NVIDIA, compat)) is reason
    )


def test_first_failing_in_2_10_names_memory_before_cores() -> None:
    ctx = _ctx(compat=V2_10)
    used_up = card(used=(1, 16000, 90))
    assert (
        first_failing(used_up, ctx, filters_after_numa(NVIDIA, V2_10)) is Reason.TOO_LITTLE_MEMORY
    )


@pytest.mark.parametrize("compat", [V2_8, V2_10], ids=["2.8", "2.10"])
def test_every_generation_runs_every_filter_once(compat: Compat) -> None:
    rules = (*BEFORE_NUMA, *filters_after_numa(Vendor("any"), compat))
    assert sorted(map(id, rules)) == sorted(map(id, FILTERS.values()))


def test_rejection_text_is_sorted_as_strings() -> None:
    counts: dict[StrEnum, int] = {
        Reason.TOO_LITTLE_MEMORY: 3,
        Reason.TYPE_MISMATCH: 1,
        Reason.NO_SLOT: 10,
    }
    text = Rejection(counts=counts, total=14).text()
    assert (
        text == "1/14 CardTypeMismatch, 10/14 CardTimeSlicingExhausted, 3/14 CardInsufficientMemory"
    )


def test_rejection_of_a_whole_node_has_no_counts() -> None:
    assert Rejection(whole=Reason.NOT_REGISTERED).text() == "node unregistered"
