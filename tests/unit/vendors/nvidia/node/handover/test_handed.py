"""What a container is handed: never a card instead of an instance, never one for two."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hami_node.errors import AllocationError
from hami_node.model import Container, Device, Grant
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.node.handover.handed import handed_of
from hami_node.vendors.on_node.answer import MadePart, Slice
from tests.fakes.cards import card, uuid
from tests.fakes.made_instances import divided, mig_grant, mig_uuid, part

CARDS = (divided(0), divided(1), card(2), card(3))


def full(index: int) -> Grant:
    return Grant(uuid=uuid(index), vendor=NVIDIA, memory_mib=1000, cores=10)


def granted(*pairs: tuple[Grant, MadePart | None], cards: tuple[Device, ...] = CARDS) -> Slice:
    return Slice(
        pod_uid="u",
        container=Container(name="c"),
        grants=tuple(grant for grant, _ in pairs),
        cards={each.uuid: each for each in cards},
        made=tuple(made for _, made in pairs),
    )


@pytest.mark.parametrize(
    "pairs",
    [
        [(mig_grant(0), None)],
        [(mig_grant(0), None), (mig_grant(1), part(1))],
        [(full(0), None)],
        [(full(0), None), (mig_grant(1), part(1))],
    ],
    ids=["nothing-made", "one-missing", "whole-divided-card", "whole-divided-card-beside"],
)
def test_whole_card_in_mig_mode_is_never_handed_over(
    pairs: list[tuple[Grant, MadePart | None]],
) -> None:
    with pytest.raises(AllocationError, match=f"card {uuid(0)} is in MIG mode"):
        handed_of(granted(*pairs))


def test_one_instance_is_never_handed_over_for_two_grants() -> None:
    with pytest.raises(AllocationError, match="two grants would get one"):
        handed_of(granted((mig_grant(0), part(1)), (mig_grant(0, 1), part(1))))


@pytest.mark.parametrize(
    "made",
    [
        *(
            MadePart(uuid=text, numbers=(1, 0))
            for text in ("", "GPU-1", "MIG-", "MIG-../x", "MIG-1,all", "MIG-1\n", "MIG-" + "a" * 99)
        ),
        *(
            MadePart(uuid=mig_uuid(1), numbers=numbers)
            for numbers in ((), (1,), (1, 2, 3), (-1, 0))
        ),
    ],
)
def test_name_that_is_no_instances_is_refused(made: MadePart) -> None:
    with pytest.raises(AllocationError, match="is no name of a MIG instance"):
        handed_of(granted((mig_grant(0), made)))


def test_fewer_instances_than_grants_are_refused() -> None:
    item = granted((mig_grant(0), part(1)), (mig_grant(1), part(2)))
    with pytest.raises(AllocationError, match="1 MIG instances were made for 2 grants"):
        handed_of(replace(item, made=item.made[:1]))
