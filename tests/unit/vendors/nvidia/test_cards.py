"""NVIDIA cards in the engine: links are in test_link_groups.py, here is MIG from ask to check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hami_node.engine.card_rules import Placement, filters_after_numa
from hami_node.engine.check import check_reservation
from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.filters import BEFORE_NUMA, FILTERS, FitContext, Reason, Rejection, context
from hami_node.engine.fit import fit
from hami_node.engine.objection import Doubt, Objection
from hami_node.engine.place import (
    ContainerAsks,
    NodeOffer,
    Plan,
    PodRequest,
    Rules,
    place_on,
    plan,
)
from hami_node.engine.usage import DeviceUsage, NodeUsage, PodGrants, Taken, collapse
from hami_node.model import (
    NO_CARD_WISHES,
    Ask,
    ContainerGrants,
    ContainerKind,
    Grant,
    PodWishes,
    Uuid,
)
from hami_node.vendors.nvidia.cards import NVIDIA, MigDoubt, MigReason, has_mig_instance
from hami_node.vendors.nvidia.mig.choice import (
    use_of,
)
from hami_node.vendors.nvidia.mig.codec import MigAllocation, split_uuid, with_parts
from hami_node.vendors.nvidia.mig.layout import (
    MigPlacement,
    TemplateSlot,
)
from hami_node.vendors.nvidia.mode import Mode
from tests.unit.engine.cards import (
    ask,
    card,
    device,
    grant,
    instance,
    mig_card,
    template_card,
    wishes_for,
)

INIT, APP = ContainerKind.INIT, ContainerKind.APP
MIG_28, MIG_210 = template_card().device, mig_card().device


def _slot(template: int, slot: int) -> TemplateSlot:
    return TemplateSlot(template=template, slot=slot)


@pytest.mark.parametrize(
    ("text", "uuid", "part"),
    [
        ("GPU-0", "GPU-0", None),
        ("GPU-0[1-3]", "GPU-0", _slot(1, 3)),
        ("GPU-0[1-3", "GPU-0[1-3", None),
        ("GPU-0[a-3]", "GPU-0[a-3]", None),
        ("GPU-0[1]", "GPU-0[1]", None),
        ("GPU-0[1-²]", "GPU-0[1-²]", None),
        ("GPU-0[1-99999999999]", "GPU-0[1-99999999999]", None),
        ("", "", None),
    ],
)
def test_split_uuid(text: str, uuid: str, part: TemplateSlot | None) -> None:
    assert split_uuid(text) == (uuid, part)


# -- the filter -----------------------------------------------------------------------------------
def _ctx(memory_mib: int, compat: Compat = V2_10) -> FitContext:
    return context(ask(memory_mib=memory_mib), NO_CARD_WISHES, compat)


@pytest.mark.parametrize(
    ("compat", "reason"), [(V2_8, MigReason.NO_TEMPLATE), (V2_10, MigReason.NO_PLACEMENT)]
)
@pytest.mark.parametrize(
    ("usage", "memory_mib", "is_served"),
    [
        (card(), 90000, True),
        (mig_card(), 40192, True),
        (mig_card(), 40193, False),
        (template_card(), 40960, True),
        (template_card(), 40961, False),
        (card(mode=Mode.MIG), 4096, False),
    ],
)
def test_mig_filter_gives_the_reason_of_its_generation(
    usage: DeviceUsage, memory_mib: int, is_served: bool, compat: Compat, reason: MigReason
) -> None:
    answer = has_mig_instance(usage, _ctx(memory_mib, compat))
    assert answer is (None if is_served else reason)


@pytest.mark.parametrize("compat", [V2_8, V2_10], ids=["2.8", "2.10"])
def test_mig_filter_is_the_last_in_every_generation(compat: Compat) -> None:
    rules = (*BEFORE_NUMA, *filters_after_numa(NVIDIA, compat))
    assert rules[-1] is has_mig_instance
    assert sorted(map(id, rules[:-1])) == sorted(map(id, FILTERS.values()))


# -- choosing cards -------------------------------------------------------------------------------
def _fit(cards: Sequence[DeviceUsage], wanted: Ask) -> list[int] | str:
    answer = fit(cards, context(wanted, NO_CARD_WISHES, V2_10, policy="spread"), policy="spread")
    if isinstance(answer, Placement):
        return [taken.device.index for taken in answer.taken]
    return answer.text()


def test_card_in_mig_mode_serves_several_cards_of_one_ask() -> None:
    assert _fit([mig_card()], ask(3, 9000, 0)) == [0, 0, 0]


def test_card_in_mig_mode_that_is_full_counts_once_more() -> None:
    expected = "1/1 CardMigTopologyInfeasible, 3/1 AllocatedCardsInsufficientRequest"
    assert _fit([mig_card()], ask(4, 9000, 0)) == expected


def test_mig_and_whole_cards_serve_one_ask_together() -> None:
    assert _fit([mig_card(0), card(1)], ask(3, 16000, 0)) == [0, 0, 1]


# -- placing pods ---------------------------------------------------------------------------------
def _request(
    *containers: tuple[ContainerKind, Sequence[Ask]], wishes: PodWishes | None = None
) -> PodRequest:
    return PodRequest(
        namespace="team",
        containers=tuple(ContainerAsks(kind=kind, asks=tuple(asks)) for kind, asks in containers),
        wishes=wishes or PodWishes(),
    )


def _placed(usage: DeviceUsage, request: PodRequest, compat: Compat) -> PodGrants | str:
    ready = plan(request, Rules(compat=compat))
    assert isinstance(ready, Plan)
    answer = place_on(NodeOffer(cards={usage.device.uuid: usage}), ready)
    return answer.text() if isinstance(answer, Rejection) else answer


def _amounts(answer: PodGrants | str) -> list[list[tuple[str, int]]] | str:
    if isinstance(answer, str):
        return answer
    return [[(item.uuid, item.memory_mib) for item in grants] for grants in answer.containers]


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        (None, [[("GPU-0", 9856), ("GPU-0", 9856)]]),
        (frozenset({"mig"}), [[("GPU-0", 9856), ("GPU-0", 9856)]]),
        (frozenset({"hami-core"}), "NodeInsufficientDevice"),
    ],
    ids=["any-mode", "mig", "not-mig"],
)
def test_one_card_in_mig_mode_may_be_several(
    modes: frozenset[str] | None, expected: object
) -> None:
    request = _request((APP, [ask(2, 9000, 0)]), wishes=wishes_for(modes=modes))
    assert _amounts(_placed(mig_card(), request, V2_10)) == expected


def test_mig_grants_carry_their_instances() -> None:
    request = _request((APP, [ask(2, 9000, 0)]), (APP, [ask(1, 3000, 0)]))
    answer = _placed(mig_card(), request, V2_10)
    assert isinstance(answer, PodGrants)
    assert [[item.part for item in grants] for grants in answer.containers] == [
        [instance(0, 2, "2g.10gb"), instance(2, 2, "2g.10gb")],
        [instance(6, 1, "1g.5gb")],
    ]


def test_mig_grants_of_2_8_name_their_slots() -> None:
    answer = _placed(template_card(), _request((APP, [ask(2, 9000, 0)])), V2_8)
    assert isinstance(answer, PodGrants)
    assert [(item.uuid, item.part, item.memory_mib) for item in answer.containers[0]] == [
        ("GPU-0", _slot(1, 1), 10240),
        ("GPU-0", _slot(1, 2), 10240),
    ]


def test_app_container_keeps_the_geometry_of_an_init_container() -> None:
    request = _request((INIT, [ask(1, 5000, 0)]), (APP, [ask(1, 9000, 0)]))
    assert _placed(template_card(), request, V2_8) == "1/1 CardNotFoundCustomFilterRule"
    small = _request((INIT, [ask(1, 5000, 0)]), (APP, [ask(1, 5000, 0)]))
    answer = _placed(template_card(), small, V2_8)
    assert _amounts(answer) == [[("GPU-0", 5120)], [("GPU-0", 5120)]]
    assert isinstance(answer, PodGrants)
    assert [grants[0].part for grants in answer.containers] == [_slot(0, 0), _slot(0, 1)]


# -- counting -------------------------------------------------------------------------------------
def _pod(*grants: Grant) -> PodGrants:
    return PodGrants(containers=(grants,), kinds=(APP,))


def test_template_instances_are_marked() -> None:
    usage = NodeUsage([MIG_28])
    usage.add("a", _pod(grant("GPU-0", 10240, 28, part=_slot(1, 1))))
    used = usage.cards[Uuid("GPU-0")]
    assert (use_of(used).template, use_of(used).slots, used.contradiction) == (
        1,
        frozenset({1}),
        "",
    )
    assert usage.charges("a")[0].uuid == "GPU-0"


def test_profile_instances_are_marked() -> None:
    usage = NodeUsage([MIG_210])
    usage.add("a", _pod(grant("GPU-0", 9856, 29, part=instance(2, 2))))
    used = usage.cards[Uuid("GPU-0")]
    assert use_of(used).placements == (MigPlacement(start=2, size=2),)
    assert not used.contradiction


@pytest.mark.parametrize(
    ("target", "pods"),
    [
        pytest.param(device(0), [_pod(grant(part=_slot(0, 0)))], id="not-in-mig-mode"),
        pytest.param(MIG_28, [_pod(grant())], id="whole-card-in-mig-mode"),
        pytest.param(MIG_210, [_pod(grant())], id="no-reservation"),
        pytest.param(
            MIG_28,
            [_pod(grant(part=_slot(0, 0))), _pod(grant(part=_slot(1, 1)))],
            id="two-geometries",
        ),
        pytest.param(MIG_28, [_pod(grant(part=_slot(0, 0)))] * 2, id="slot-twice"),
        pytest.param(
            MIG_210,
            [_pod(grant(part=instance(0, 4))), _pod(grant(part=instance(2, 2)))],
            id="placements-overlap",
        ),
    ],
)
def test_contradicting_grants_close_the_card_until_they_go(
    target: Any, pods: list[PodGrants]
) -> None:
    usage = NodeUsage([target])
    for number, pod in enumerate(pods):
        usage.add(str(number), pod)
    assert usage.cards[Uuid("GPU-0")].contradiction
    usage.remove(str(len(pods) - 1))
    assert not usage.cards[Uuid("GPU-0")].contradiction


def test_reservation_of_another_container_is_not_charged() -> None:
    """Only containers that hold something count their instances."""
    reserved = MigAllocation(
        container_index=1, device_index=0, uuid=Uuid("GPU-0"), instance=instance(0, 2, "2g.10gb")
    )
    containers: tuple[ContainerGrants, ...] = ((grant("GPU-1"),), ())
    pod = PodGrants(containers=with_parts(containers, [reserved]))
    assert all(not charge.parts for charge in collapse(pod))


# -- the check of Allocate ------------------------------------------------------------------------
def _check(usage: DeviceUsage, grants: Sequence[Grant], wanted: Ask) -> Objection | None:
    cards: Mapping[Uuid, DeviceUsage] = {usage.device.uuid: usage}
    return check_reservation(cards, tuple(grants), wanted, PodWishes(), V2_8)


def test_grants_of_one_container_are_charged_together() -> None:
    grants = [grant("GPU-0", 10240, 28, part=_slot(1, 1))] * 2
    objection = _check(template_card(), grants, ask(2, 9000, 0))
    assert objection is not None
    assert objection.reason is Doubt.CONTRADICTION


def test_instances_are_accepted_where_they_are_real_and_free() -> None:
    whole = grant("GPU-0", 10240, 28, part=_slot(1, 1))
    assert _check(template_card(), [whole], ask(1, 9000, 0)) is None
    grants = [grant("GPU-0", 9856, 29, part=instance(start, 2, "2g.10gb")) for start in (0, 2)]
    assert _check(mig_card(), grants, ask(2, 9000, 0)) is None


@pytest.mark.parametrize(
    ("target", "given", "reason"),
    [
        (template_card(), grant("GPU-0", 10240, 28, part=_slot(1, 0)), MigDoubt.NO_INSTANCE),
        (template_card(), grant("GPU-0", 5120, 14, part=_slot(1, 0)), MigDoubt.NO_INSTANCE),
        (template_card(), grant("GPU-0", 10240, 28), Doubt.CONTRADICTION),
        (mig_card(), grant("GPU-0", 9856, 29), Doubt.CONTRADICTION),
        (mig_card(), grant("GPU-0", 9856, 29, part=instance(1, 2)), Doubt.CONTRADICTION),
        (
            mig_card(healthy=False),
            grant("GPU-0", 9856, part=instance(0, 2)),
            Reason.NOT_HEALTHY,
        ),
    ],
    ids=["wrong-size", "below-the-ask", "no-slot", "no-reservation", "odd-placement", "unhealthy"],
)
def test_instances_are_refused(
    target: DeviceUsage, given: Grant, reason: Reason | Doubt | MigDoubt
) -> None:
    objection = _check(target, [given], ask(1, 9000, 0))
    assert objection is not None
    assert objection.reason is reason


@pytest.mark.parametrize(("cards", "is_exact"), [(64, True), (65, False), (256, False)])
@pytest.mark.parametrize("count", [1, 2, 40])
def test_links_of_more_cards_than_any_machine_has_are_not_compared(
    cards: int, is_exact: bool, count: int
) -> None:
    """Of 256 cards the best linked took 1.4 s, under the lock of all decisions."""
    group = [
        Taken(device=device(at, uuid=Uuid(f"GPU-{at}")), memory_mib=1, cores=1)
        for at in range(cards)
    ]
    found = NVIDIA.best_linked([group], count, {}, is_bound=False)
    assert found is not None
    assert len(found.taken) == count
    assert found.is_exact is is_exact
    if not is_exact:
        assert list(found.taken) == group[:count]
