"""What is left of an instance whose removal a kill has interrupted."""

from __future__ import annotations

import pytest

from hami_node.model import Uuid
from hami_node.vendors.nvidia.mig.found import MigCard
from hami_node.vendors.nvidia.mig.layout import MigPlacement
from hami_node.vendors.nvidia.node.mig.instances.machine import Instance, Owner, State, sighted
from tests.fakes.mig_cards import A100_40


@pytest.mark.parametrize(
    ("state", "is_kept"),
    [(State.NAMED, True), (State.DRAINING, False), (State.EMPTIED, False)],
)
def test_place_of_an_instance_that_is_gone_is_kept_only_for_whoever_has_it(
    state: State, *, is_kept: bool
) -> None:
    """A removal is begun once nobody has it: the next daemon need not learn that first."""
    instance = Instance(
        owner=Owner(pod_uid="u", container="c", position=0),
        card=Uuid("GPU-0"),
        profile="1g.5gb",
        profile_id=19,
        placement=MigPlacement(start=6, size=1),
        state=state,
        gpu_instance_id=13,
        compute_instance_id=None if state is State.EMPTIED else 0,
        uuid="MIG-0",
        given="MIG-0",
    )
    left = sighted(instance, MigCard(is_enabled=True, is_pending=True, profiles=A100_40)).instance
    assert (left is not None and left.state is State.LOST) is is_kept
    assert (left is None) is not is_kept
