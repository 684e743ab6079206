"""Instances of others are handed out as they are, and only while they are there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hami_node.errors import AllocationError
from hami_node.model import Container, Grant
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.mig.layout import MigInstance
from hami_node.vendors.nvidia.mig.static import grants_of, with_instances
from hami_node.vendors.nvidia.node.mig.offered import OfferedInstances
from hami_node.vendors.on_node.answer import MadePart, Slice
from hami_node.vendors.on_node.parts import PartsKept, PartsSituation, PartsState
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


def test_slice_of_a_whole_card_has_no_instance() -> None:
    assert OfferedInstances().make(granted(replace(GRANT, part=None)), soon()) == (None,)


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


def test_nothing_is_kept_or_on_record() -> None:
    offered = OfferedInstances()
    assert offered.keep(PartsSituation(holders=())) == PartsKept()
    assert (offered.state(), dict(offered.in_use())) == (PartsState(), {})
