"""NVIDIA cards in the engine: links are in test_link_groups.py, here is MIG from ask to check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hami_node.engine.check import check_reservation
from hami_node.engine.compat import V2_8
from hami_node.engine.filters import Reason
from hami_node.engine.objection import Doubt, Objection
from hami_node.engine.usage import DeviceUsage, NodeUsage, PodGrants, Taken
from hami_node.model import (
    Ask,
    ContainerKind,
    Grant,
    PodWishes,
    Uuid,
)
from hami_node.vendors.nvidia.cards import NVIDIA, MigDoubt
from hami_node.vendors.nvidia.mig.layout import (
    TemplateSlot,
)
from tests.unit.engine.cards import (
    ask,
    device,
    grant,
    instance,
    mig_card,
    template_card,
)

INIT, APP = ContainerKind.INIT, ContainerKind.APP
MIG_28, MIG_210 = template_card().device, mig_card().device


def _slot(template: int, slot: int) -> TemplateSlot:
    return TemplateSlot(template=template, slot=slot)


# -- counting -------------------------------------------------------------------------------------
def _pod(*grants: Grant) -> PodGrants:
    return PodGrants(containers=(grants,), kinds=(APP,))


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
