"""MIG instances of others: what they are called, which can be offered, and what they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hami_node.errors import WireError
from hami_node.model import Device
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.mig import static
from hami_node.vendors.nvidia.mig.layout import MigPlacement
from hami_node.vendors.nvidia.mode import MigStrategy
from tests.fakes.cards import card, uuid
from tests.fakes.mig_cards import A30, A100_40, A100_80, RTX_PRO_6000, divided, instance

SMALL, LARGE = instance(9, "1g.5gb", 2), instance(1, "3g.20gb", 4)
EVERY_NAME = [item.name for items in (A30, A100_40, A100_80, RTX_PRO_6000) for item in items]


@pytest.mark.parametrize(
    ("profile", "name"),
    [
        ("1g.5gb", "nvidia.com/mig-1g.5gb"),
        ("1g.5gb+me", "nvidia.com/mig-1g.5gb.me"),
        ("1g.24gb+gfx", "nvidia.com/mig-1g.24gb.gfx"),
        ("1g.24gb+me.all", "nvidia.com/mig-1g.24gb.me.all"),
        ("1g.24gb-me", "nvidia.com/mig-1g.24gb-me"),
        ("7g.141gb", "nvidia.com/mig-7g.141gb"),
    ],
)
def test_resource_is_called_as_nvidias_plugin_calls_it(profile: str, name: str) -> None:
    assert static.resource_of(profile) == name
    assert static.is_resource(name)


@pytest.mark.parametrize("profile", EVERY_NAME)
def test_resource_of_every_known_profile_is_known_as_one(profile: str) -> None:
    assert static.is_resource(static.resource_of(profile))


@pytest.mark.parametrize(
    "name",
    [
        "nvidia.com/gpu",
        "nvidia.com/gpu-1of4",
        "nvidia.com/mig-",
        "nvidia.com/mig-1c.3g.20gb",
        "nvidia.com/mig-1g.5gb.",
        "nvidia.com/mig-1g.5gb.ME",
        "nvidia.com/mig-1g.5gb\n",
        "amd.com/mig-1g.5gb",
    ],
)
def test_other_names_are_none_of_ours(name: str) -> None:
    assert not static.is_resource(name)


def test_card_offers_each_instance_as_a_device_with_its_own_name() -> None:
    offered = static.with_instances(divided(0, SMALL, LARGE))
    assert offered.ids == tuple(it.device.uuid for it in (LARGE, SMALL) if it.device)
    assert (offered.slots, offered.device_ids) == (2, list(offered.ids))
    assert (offered.healthy, offered.memory_mib) == (True, 40960)
    (small,) = static.with_instances(divided(0, SMALL, LARGE), "1g.5gb").ids
    assert small == offered.ids[1]


def test_grants_are_what_the_driver_says_of_the_profile() -> None:
    cards = {uuid(0): divided(0, SMALL, LARGE)}
    ids = [it.device.uuid for it in (SMALL, LARGE) if it.device]
    large, small = static.grants_of("nvidia.com/gpu", ids, cards, NVIDIA)
    assert (small.memory_mib, small.cores, small.part) == (4864, 15, SMALL.device)
    assert (large.memory_mib, large.cores, large.part) == (19968, 43, LARGE.device)


def test_grants_without_rights_need_no_placement() -> None:
    blind = replace(SMALL, placement=MigPlacement(), processes=None)
    cards = {uuid(0): divided(0, blind, restriction="no rights")}
    (grant,) = static.grants_of(
        "nvidia.com/mig-1g.5gb", static.with_instances(cards[uuid(0)]).ids, cards, NVIDIA
    )
    assert grant.part == SMALL.device


@pytest.mark.parametrize(
    ("resource", "name", "why"),
    [
        ("nvidia.com/mig-1g.5gb", "MIG-gone", "no MIG instance of this node now"),
        ("nvidia.com/mig-2g.10gb", SMALL.device.uuid if SMALL.device else "", "profile 1g.5gb"),
        ("nvidia.com/mig-1g.5gb", f"{uuid(0)}-0", "no MIG instance of this node now"),
    ],
    ids=["gone", "other-profile", "a-card"],
)
def test_grants_of_what_is_not_there_are_refused(resource: str, name: str, why: str) -> None:
    with pytest.raises(WireError, match=why):
        static.grants_of(resource, [name], {uuid(0): divided(0, SMALL)}, NVIDIA)


@pytest.mark.parametrize(
    ("physical", "why"),
    [
        (card(0), "not in MIG mode"),
        (card(0, mode="mig"), "has not reported its instances"),
        (divided(0), "make instances"),
        (divided(0, replace(SMALL, device=None)), "exactly one compute instance"),
        (divided(0, replace(SMALL, compute_instance_ids=(0, 1))), "exactly one compute instance"),
        (divided(0, SMALL, is_pending=False), "waits for a reset"),
        (divided(0, problem="timeout"), "MIG can't be read: timeout"),
        (divided(0, SMALL, healthy=False, unhealthy_reason="XID 79"), "XID 79"),
    ],
    ids=["no-mode", "untold", "empty", "half-made", "divided-again", "leaves", "unread", "sick"],
)
def test_card_that_can_not_be_used_says_why(physical: Device, why: str) -> None:
    offered = static.with_instances(physical)
    assert not offered.healthy
    assert why in offered.unhealthy_reason


def test_name_that_kubelet_would_not_take_costs_its_instance_alone() -> None:
    assert SMALL.device is not None
    long = replace(SMALL.device, uuid="MIG-" + "a" * 60)
    odd = replace(LARGE, profile="3g.20gb/../x")
    physical = divided(0, replace(SMALL, device=long), odd, instance(2, "2g.10gb", 0))
    assert len(static.with_instances(physical).ids) == 1


@pytest.mark.parametrize(
    ("cards", "found"),
    [
        ((), MigStrategy.SINGLE),
        ((card(0),), MigStrategy.NONE),
        ((card(0), divided(1, SMALL)), MigStrategy.SINGLE),
    ],
    ids=["unknown", "none-divided", "some-divided"],
)
def test_single_means_whole_cards_where_none_is_divided(
    cards: tuple[Device, ...], found: MigStrategy
) -> None:
    assert static.effective(MigStrategy.SINGLE, cards) is found
    assert static.effective(MigStrategy.MIXED, cards) is MigStrategy.MIXED
