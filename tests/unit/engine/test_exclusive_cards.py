"""All cores of a card asked for: it is served alone, unless the card's cores are scaled."""

from __future__ import annotations

import pytest

from hami_node.engine.card_rules import Placement
from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.filters import Reason, context
from hami_node.engine.fit import fit
from hami_node.engine.fleet.fleet import Fleet, NoNode, Placed
from hami_node.engine.place import ContainerAsks, PodRequest, Rules
from hami_node.engine.usage import PodGrants
from hami_node.model import NO_CARD_WISHES, ContainerKind, PodWishes
from tests.unit.engine.cards import ask, card, device, grant

COMPATS = pytest.mark.parametrize("compat", [V2_8, V2_10], ids=["2.8", "2.10"])


def _request(cores: int, policy: str | None = None) -> PodRequest:
    asks = ContainerAsks(kind=ContainerKind.APP, asks=(ask(1, 1000, cores),))
    wishes = PodWishes(gpu_policy=policy)
    return PodRequest(namespace="team", containers=(asks,), wishes=wishes)


def _fleet(compat: Compat, **cores_of_nodes: int) -> Fleet:
    """Nodes of one card with that many cores; a pod without a core limit is on each card."""
    fleet = Fleet(Rules(compat=compat))
    for name, cores in cores_of_nodes.items():
        uuid = f"GPU-{name}"
        fleet.set_node(name, [device(uuid=uuid, cores=cores)])
        held = PodGrants(containers=((grant(uuid, 1000, 0),),))
        fleet.add_pod(f"on-{name}", "team", name, held)
    return fleet


def _node(fleet: Fleet, request: PodRequest) -> str:
    answer = fleet.place(request)
    assert isinstance(answer, Placed | NoNode)
    return answer.node if isinstance(answer, Placed) else ""


@COMPATS
@pytest.mark.parametrize("cores", [100, 250], ids=["asked", "clamped"])
def test_seed_000_3_3_used_card_of_100_cores_is_refused(compat: Compat, cores: int) -> None:
    ctx = context(ask(cores=cores), NO_CARD_WISHES, compat)
    answer = fit([card(0, (1, 0, 0))], ctx)
    assert not isinstance(answer, Placement)
    assert Reason.NOT_EXCLUSIVE in answer.counts
    assert isinstance(fit([card(0)], ctx), Placement)


@COMPATS
@pytest.mark.parametrize("total", [150, 200, 300])
def test_seed_002_3_2_3_4_scaled_cores_switch_the_rule_off(compat: Compat, total: int) -> None:
    ctx = context(ask(cores=100), NO_CARD_WISHES, compat)
    assert isinstance(fit([card(0, (1, 0, 10), cores=total)], ctx), Placement)


@COMPATS
def test_seed_000_3_3_scaled_cores_still_run_out(compat: Compat) -> None:
    ctx = context(ask(cores=100), NO_CARD_WISHES, compat)
    answer = fit([card(0, (2, 0, 110), cores=200)], ctx)
    assert not isinstance(answer, Placement)
    assert Reason.TOO_FEW_CORES in answer.counts


@COMPATS
def test_seed_000_3_3_fleet_finds_the_used_card_with_scaled_cores(compat: Compat) -> None:
    assert _node(_fleet(compat, plain=100, scaled=200), _request(100)) == "scaled"
    fleet = _fleet(compat, plain=100)
    assert _node(fleet, _request(100)) == ""
    reasons = fleet.explain(_request(100))
    assert isinstance(reasons, dict)
    assert Reason.NOT_EXCLUSIVE in reasons["plain"].counts


@COMPATS
def test_mutex_wants_an_unused_card_whatever_its_cores(compat: Compat) -> None:
    fleet = _fleet(compat, plain=100, scaled=200)
    assert _node(fleet, _request(10, "mutex")) == ""
    fleet.set_node("idle", [device(uuid="GPU-idle", cores=200)])
    assert _node(fleet, _request(10, "mutex")) == "idle"
