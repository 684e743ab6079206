"""Instances of others: handed out as they are while they are there, and shown as their holders'."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hami_node.errors import AllocationError
from hami_node.model import Container, Grant
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.mig.layout import MigDevice, MigInstance
from hami_node.vendors.nvidia.mig.static import grants_of, with_instances
from hami_node.vendors.nvidia.node.static_mig import OfferedInstances
from hami_node.vendors.on_node.answer import MadePart, Slice
from hami_node.vendors.on_node.parts import PartHolder, PartsSituation
from tests.fakes.cards import card, uuid
from tests.fakes.clock import soon
from tests.fakes.mig_cards import divided, instance

SMALL = instance(9, "1g.5gb", 2)
CARD = with_instances(divided(0, SMALL))
(GRANT,) = grants_of("nvidia.com/gpu", CARD.ids, {CARD.uuid: CARD}, NVIDIA)


def granted(*grants: Grant, now: object = CARD) -> Slice:
    return Slice(
        pod_uid="u",
        container=Container(name="main"),
        grants=grants,
        cards={uuid(0): now},  # type: ignore[dict-item]  # a card
    )


def test_instance_is_handed_out_with_its_numbers() -> None:
    assert SMALL.device is not None
    made = OfferedInstances().make(granted(GRANT), soon())
    assert made == (MadePart(uuid=SMALL.device.uuid, numbers=(9, 0)),)


@pytest.mark.parametrize(
    "now",
    [
        with_instances(divided(0)),
        with_instances(divided(0, replace(SMALL, gpu_instance_id=1, device=None))),
        card(0),
    ],
    ids=["gone", "half-destroyed", "mode-off"],
)
def test_instance_that_is_gone_is_refused_with_the_remedy(now: object) -> None:
    with pytest.raises(AllocationError, match="delete and recreate the pod"):
        OfferedInstances().make(granted(GRANT, now=now), soon())


def test_instance_that_would_have_to_be_made_is_refused() -> None:
    wanted = MigInstance(profile="1g.5gb", placement=SMALL.placement)
    with pytest.raises(AllocationError, match="no MIG instance of this node now"):
        OfferedInstances().make(granted(replace(GRANT, part=wanted)), soon())


# -- who holds them -------------------------------------------------------------------------------
FIRST = instance(9, "1g.5gb", 2)


def holder(*devices: MigDevice | None) -> PartHolder:
    grants = tuple(
        Grant(uuid=uuid(0), vendor=NVIDIA, memory_mib=4864, cores=15, part=device)
        for device in devices
    )
    return PartHolder(
        pod_uid="uid-p", namespace="ml", pod="train", container="main", grants=grants,
        annotations={},
    )  # fmt: skip


def test_who_holds_what_is_kept_while_that_is_not_known() -> None:
    offered = OfferedInstances()
    offered.keep(PartsSituation(holders=(holder(FIRST.device),)))
    offered.keep(PartsSituation(holders=None))
    assert len(offered.state().own) == 1
    offered.keep(PartsSituation(holders=()))
    assert offered.state().own == ()
