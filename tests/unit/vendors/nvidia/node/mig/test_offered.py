"""Instances of others: who holds them, by what is on record."""

from __future__ import annotations

from hami_node.model import Grant
from hami_node.vendors.divided import PartState
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.mig.found import MigDevice
from hami_node.vendors.nvidia.mig.shown import divided_cards
from hami_node.vendors.nvidia.node.mig.offered import OfferedInstances
from hami_node.vendors.on_node.parts import PartHolder, PartsSituation
from tests.fakes.cards import uuid
from tests.fakes.mig_cards import divided, instance

FIRST, SECOND = instance(9, "1g.5gb", 2), instance(3, "2g.10gb", 4)


def holder(*devices: MigDevice | None) -> PartHolder:
    grants = tuple(
        Grant(uuid=uuid(0), vendor=NVIDIA, memory_mib=4864, cores=15, part=device)
        for device in devices
    )
    return PartHolder(
        pod_uid="uid-p", namespace="ml", pod="train", container="main", grants=grants,
        annotations={},
    )  # fmt: skip


def test_each_instance_is_its_containers_and_the_others_are_offered() -> None:
    offered = OfferedInstances()
    offered.keep(PartsSituation(holders=(holder(FIRST.device),)))
    (card,) = divided_cards([divided(0, FIRST, SECOND)], offered.state().own, is_offered=True)
    seen = [(part.kind, part.start, part.state, part.pod_uid) for part in card.parts]
    assert seen == [
        ("1g.5gb", 2, PartState.LIVE, "uid-p"),
        ("2g.10gb", 4, PartState.OFFERED, ""),
    ]


def test_several_of_one_container_are_in_its_order() -> None:
    offered = OfferedInstances()
    offered.keep(PartsSituation(holders=(holder(None, SECOND.device, FIRST.device),)))
    positions = {part.numbers: part.position for part in offered.state().own}
    assert positions == {(3, 0): 1, (9, 0): 2}


def test_who_holds_what_is_kept_while_that_is_not_known() -> None:
    offered = OfferedInstances()
    offered.keep(PartsSituation(holders=(holder(FIRST.device),)))
    offered.keep(PartsSituation(holders=None))
    assert len(offered.state().own) == 1
    offered.keep(PartsSituation(holders=()))
    assert offered.state().own == ()
