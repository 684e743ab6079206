"""Room for more of a card that is held already."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hami_node.engine.filters import Reason
from hami_node.engine.objection import Doubt
from hami_node.engine.quota import Quota
from hami_node.engine.resize import NewAmounts, growth_objection, quota_objection, with_container
from hami_node.engine.usage import Charge, DeviceUsage, PodGrants
from hami_node.model import ContainerKind, Device, Grant, Uuid
from hami_node.vendors.nvidia.cards import NVIDIA

A = Uuid("GPU-a")
CARD = Device(uuid=A, index=0, vendor=NVIDIA, model="x", slots=10, memory_mib=1000)


def grant(memory_mib: int, cores: int = 0, uuid: Uuid = A) -> Grant:
    return Grant(uuid=uuid, vendor=NVIDIA, memory_mib=memory_mib, cores=cores)


def pod(*slots: tuple[Grant, ...]) -> PodGrants:
    return PodGrants(containers=slots, kinds=(ContainerKind.APP,) * len(slots))


def usage(**fields: Any) -> dict[Uuid, DeviceUsage]:
    return {A: DeviceUsage(device=CARD, **fields)}


def test_amounts_replace_those_that_are_named_on_every_card() -> None:
    held = (grant(100, 10), grant(200, 20, Uuid("GPU-b")))
    more = NewAmounts(memory_mib=500).of(held)
    assert [(item.memory_mib, item.cores) for item in more] == [(500, 10), (500, 20)]
    assert NewAmounts(cores=7).of(held) == (grant(100, 7), grant(200, 7, Uuid("GPU-b")))
    assert NewAmounts().of(held) == held


@pytest.mark.parametrize(
    ("used", "after", "reason"),
    [
        ({"memory_used_mib": 500}, grant(500), None),
        ({"memory_used_mib": 500}, grant(501), Reason.TOO_LITTLE_MEMORY),
        ({"memory_used_mib": 999}, grant(100), None),  # nothing grows, however full it is
        ({"memory_used_mib": 999, "cores_used": 60}, grant(100, 40), None),
        ({"cores_used": 60}, grant(100, 41), Reason.TOO_FEW_CORES),
        ({"slots_used": 1}, grant(100, 100), Reason.NOT_EXCLUSIVE),
        ({}, grant(100, 100), None),
        ({}, grant(1000, 100), None),
    ],
)
def test_only_what_grows_needs_room(
    used: dict[str, int], after: Grant, reason: Reason | None
) -> None:
    objection = growth_objection(usage(**used), pod((grant(100, 10),)), pod((after,)))
    assert (objection and objection.reason) == reason


def test_other_containers_of_the_pod_count_too() -> None:
    before = pod((grant(100),), (grant(600),))
    assert growth_objection(usage(), before, with_container(before, 0, (grant(400),))) is None
    objection = growth_objection(usage(), before, with_container(before, 0, (grant(401),)))
    assert objection is not None
    assert objection.amounts is not None
    assert (objection.amounts.left, objection.amounts.asked) == (1000, 1001)
    whole = growth_objection(usage(), before, with_container(before, 0, (grant(100, 100),)))
    assert whole is not None
    assert whole.reason is Reason.NOT_EXCLUSIVE


INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP


@pytest.mark.parametrize(
    ("kinds", "has_room"),
    [((SIDECAR, INIT, APP), False), ((INIT, SIDECAR, APP), True)],
    ids=["beside the init container", "after it"],
)
@pytest.mark.parametrize("are_inits_over", [False, True])
def test_init_containers_that_count_need_their_room_beside_what_grows(
    kinds: tuple[ContainerKind, ...], has_room: bool, are_inits_over: bool
) -> None:
    sizes = {INIT: 600, SIDECAR: 100, APP: 100}
    slots = tuple((grant(sizes[kind]),) for kind in kinds)
    before = PodGrants(containers=slots, kinds=kinds, are_inits_over=are_inits_over)
    after = with_container(before, kinds.index(SIDECAR), (grant(200),))
    objection = growth_objection(usage(memory_used_mib=250), before, after)
    assert (objection is None) == (has_room or are_inits_over)


def test_card_that_is_gone_or_ill_takes_no_more_and_gives_back() -> None:
    before, more, less = (pod((grant(size),)) for size in (100, 200, 50))
    gone = growth_objection({}, before, more)
    assert gone is not None
    assert gone.reason is Doubt.UNKNOWN_CARD
    ill = {A: DeviceUsage(device=replace(CARD, healthy=False, unhealthy_reason="hot"))}
    found = growth_objection(ill, before, more)
    assert found is not None
    assert (found.reason, found.detail) == (Reason.NOT_HEALTHY, "hot")
    assert growth_objection({}, before, less) is None
    assert growth_objection(ill, before, less) is None


def charge(memory_mib: int, cores: int) -> tuple[Charge, ...]:
    return (Charge(uuid=A, vendor=NVIDIA, slots=1, memory_mib=memory_mib, cores=cores),)


@pytest.mark.parametrize(
    ("quota", "after", "left"),
    [
        (None, charge(9999, 99), None),
        (Quota(memory_limit_mib=300, memory_used_mib=300), charge(100, 0), None),
        (Quota(memory_limit_mib=300, memory_used_mib=250), charge(150, 0), None),
        (Quota(memory_limit_mib=300, memory_used_mib=250), charge(151, 0), 150),
        (Quota(memory_limit_mib=3, memory_used_mib=250, memory_factor=100), charge(150, 0), None),
        (Quota(memory_limit_mib=100, memory_used_mib=900), charge(90, 0), None),
        (Quota(core_limit=50, cores_used=40), charge(100, 21), 20),
        (Quota(memory_limit_mib=0, memory_used_mib=100), charge(101, 0), 0),
    ],
)
def test_quota_limits_what_grows(
    quota: Quota | None, after: tuple[Charge, ...], left: int | None
) -> None:
    found = quota_objection(quota, charge(100, 10), after, zero_is_limit=True)
    assert (found and found.left) == left


def test_quota_of_zero_may_mean_no_limit() -> None:
    quota = Quota(memory_limit_mib=0, memory_used_mib=100)
    assert quota_objection(quota, charge(100, 0), charge(200, 0), zero_is_limit=False) is None
