"""MIG devices that containers hold of a card: no instance twice, whoever made it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hami_node.engine.card_rules import contradiction
from hami_node.engine.usage import Charge, DeviceUsage, charged
from hami_node.model import Device
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.mig.layout import (
    FoundInstance,
    MigDevice,
    MigInstance,
    MigPlacement,
    TemplateSlot,
)
from hami_node.vendors.nvidia.mig.static import with_instances
from hami_node.vendors.nvidia.node.sharing import offered_cards
from tests.fakes.cards import uuid
from tests.fakes.mig_cards import MIG, divided, instance

SMALL, OTHER = instance(9, "1g.5gb", 2), instance(10, "1g.5gb", 3)


def device(found: FoundInstance) -> MigDevice:
    assert found.device is not None
    return found.device


def taking(*parts: object) -> Charge:
    return Charge(
        uuid=uuid(0),
        vendor=NVIDIA,
        slots=len(parts),
        memory_mib=4864 * len(parts),
        cores=15 * len(parts),
        grants=len(parts),
        parts=tuple(parts),
    )


def card_of(*instances: FoundInstance) -> DeviceUsage:
    return DeviceUsage(device=with_instances(divided(0, *instances)))


def test_instances_of_a_card_are_held_by_several_pods() -> None:
    card = charged(card_of(SMALL, OTHER), taking(device(SMALL)))
    assert contradiction(card, taking(device(OTHER))) is None
    assert contradiction(card, taking(device(SMALL))) is not None


def test_init_container_and_app_of_a_pod_have_the_same_instance() -> None:
    assert contradiction(card_of(SMALL), taking(device(SMALL), device(SMALL))) is None


def test_instance_made_anew_with_the_numbers_of_a_held_one_is_not_free() -> None:
    """The container before can open what the driver's capabilities call by these numbers."""
    anew = replace(device(SMALL), uuid="MIG-anew")
    card = charged(card_of(replace(SMALL, device=anew)), taking(device(SMALL)))
    objection = contradiction(card, taking(anew))
    assert objection is not None
    assert "granted twice" in objection.detail


def test_vanished_instance_costs_its_holder_alone() -> None:
    card = charged(card_of(OTHER), taking(device(SMALL)))
    assert card.contradiction == ""
    assert contradiction(card, taking(device(OTHER))) is None


@pytest.mark.parametrize(("start", "is_free"), [(2, False), (4, True)])
def test_place_of_a_held_instance_is_not_made_into_another(start: int, is_free: bool) -> None:
    """A node that was switched from instances of others to those of its own."""
    (physical,) = offered_cards((divided(0, SMALL),), MIG)
    card = charged(DeviceUsage(device=physical), taking(device(SMALL)))
    wanted = MigInstance(profile="1g.5gb", placement=MigPlacement(start=start, size=1))
    assert (contradiction(card, taking(wanted)) is None) is is_free
    other = charged(DeviceUsage(device=physical), taking(wanted))
    assert (contradiction(other, taking(device(SMALL))) is None) is is_free


def test_device_on_a_card_that_is_not_divided_is_a_contradiction() -> None:
    plain: Device = replace(with_instances(divided(0, SMALL)), mode="hami-core")
    assert contradiction(DeviceUsage(device=plain), taking(device(SMALL))) is not None


@pytest.mark.parametrize("part", [MigInstance(profile="1g.5gb", placement=MigPlacement(size=1))])
def test_instance_without_a_known_place_is_nobodys_while_others_are_held_by_theirs(
    part: MigInstance,
) -> None:
    """A node whose daemon has lost its rights, and whose pods have instances made for them."""
    blind = replace(SMALL, placement=MigPlacement())
    card = charged(card_of(blind), taking(part))
    assert card.contradiction == ""
    objection = contradiction(card, taking(device(blind)))
    assert objection is not None
    assert "can't be told" in objection.detail
    assert contradiction(charged(card_of(SMALL), taking(part)), taking(device(SMALL))) is None


def test_instance_is_nobodys_while_a_slot_of_a_geometry_is_held() -> None:
    card = charged(card_of(SMALL), taking(TemplateSlot(template=0, slot=0)))
    assert contradiction(card, taking(device(SMALL))) is not None
