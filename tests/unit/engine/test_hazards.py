"""Hazards of the original engine that must not come back, each by its number in the list.

C2, C3, C5, C9, C11, C14, C19 and C20 are rows of the tests of ranking, usage, fleet and quotas, C12
and C13 are in the tests of vendors/neuron/placement.py. C6 to C8, C16, C17, C21, C22, C25, C26 and
C29 are not the engine's. C23 and C24 stay as executed, because recorded answers say so; they are
pinned here.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from hami_node.engine.card_rules import Placement
from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.filters import Reason, context, has_type
from hami_node.engine.fleet.fleet import Fleet, NoNode, Placed
from hami_node.engine.place import ContainerAsks, PodRequest, Rules, fit
from hami_node.engine.quota import Limits, QuotaBook
from hami_node.engine.usage import NodeUsage, PodGrants
from hami_node.errors import WireError
from hami_node.model import (
    NO_CARD_WISHES,
    Ask,
    CardWishes,
    Container,
    ContainerKind,
    Node,
    PodWishes,
    Uuid,
)
from hami_node.vendors.neuron.cards import NEURON
from hami_node.vendors.neuron.protocol import neuron_protocol
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA, MigReason
from hami_node.vendors.nvidia.protocol import nvidia_protocol
from hami_node.vendors.placement import encode_placement
from hami_node.vendors.request import asks_of
from tests.unit.engine.cards import ask, card, choose, device, grant, instance, mig_card

VENDORS = (nvidia_protocol(), neuron_protocol())
INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP
COMPATS = pytest.mark.parametrize("compat", [V2_8, V2_10], ids=["2.8", "2.10"])


def _request(
    *containers: tuple[ContainerKind, tuple[Ask, ...]],
    wishes: PodWishes | None = None,
    namespace: str = "team",
) -> PodRequest:
    return PodRequest(
        namespace=namespace,
        containers=tuple(ContainerAsks(kind=kind, asks=asks) for kind, asks in containers),
        wishes=wishes or PodWishes(),
    )


def _fleet(compat: Compat, *devices: Any, quotas: QuotaBook | None = None) -> Fleet:
    fleet = Fleet(Rules(compat=compat), quotas)
    fleet.set_node("n", devices)
    return fleet


@COMPATS
def test_hazard_c1_container_without_cards_keeps_its_slot_whatever_the_model(
    compat: Compat,
) -> None:
    """Padding went by model name: the slot of a container without cards was lost."""
    fleet = _fleet(compat, device(0, model="NVIDIA A100-SXM4-40GB"))
    answer = fleet.place(_request((INIT, ()), (APP, ()), (APP, (ask(),))))
    assert isinstance(answer, Placed)
    containers = tuple(Container(name=name) for name in "iab")
    texts = encode_placement(Node(name="n"), containers, answer.grants.containers, {}, VENDORS)
    assert texts[nvidia_names.POD_ALLOCATED] == ";;GPU-0,NVIDIA,4096,30:;"


@pytest.mark.parametrize("memory", ["4Gi ", "1500m", "-1", "9000000000", "lots"])
def test_hazard_c4_memory_that_cannot_be_read_is_an_error_not_an_empty_request(memory: str) -> None:
    """Such a pod asked for nothing and passed on every node."""
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": memory}
    with pytest.raises(WireError, match=re.escape("nvidia.com/gpumem")):
        asks_of(Container(name="c", limits=limits), VENDORS)


def test_hazard_c10_topology_aware_with_numa_bind_keeps_every_group() -> None:
    """Only the last NUMA group's candidates were kept (E45e)."""
    cards = [card(3, numa=1), card(2, numa=1), card(1, numa=1), card(0, numa=0)]
    scores: dict[Uuid, dict[Uuid, int]] = {
        Uuid("GPU-3"): {Uuid("GPU-1"): 60, Uuid("GPU-2"): 10, Uuid("GPU-0"): 90}
    }
    ctx = context(ask(2), CardWishes(is_numa_bound=True), V2_10, policy="topology-aware")
    answer = fit(cards, ctx, policy="topology-aware", pair_scores=scores)
    assert isinstance(answer, Placement)
    assert [taken.device.index for taken in answer.taken] == [3, 1]


def test_hazard_c15_mig_reservation_counts_from_the_moment_of_the_grant() -> None:
    """Reservations were read back from the API server: until then the card looked sick."""
    fleet = _fleet(V2_10, mig_card().device)
    request = _request((APP, (ask(1, 9000, 0),)))
    for number, start in enumerate((0, 2, 4)):
        answer = fleet.place(request)
        assert isinstance(answer, Placed)
        assert answer.grants.containers[0][0].part == instance(start, 2, "2g.10gb")
        fleet.add_pod(f"p{number}", "team", "n", answer.grants)
    assert fleet.place(request) == NoNode()


def test_hazard_c15_card_with_a_grant_without_reservation_is_closed() -> None:
    usage = NodeUsage([mig_card().device])
    usage.add("old", PodGrants(containers=((grant(memory_mib=9856),),)))
    assert usage.cards[Uuid("GPU-0")].contradiction


def test_hazard_c18_lowest_of_several_quotas_holds() -> None:
    """The last one read won, and deleting one lifted all."""
    book = QuotaBook()
    book.set_limits("team", "wide", Limits(memory_mib=9000))
    book.set_limits("team", "narrow", Limits(memory_mib=1000, cores=10))
    book.set_limits("team", "wider", Limits(memory_mib=99000))
    quota = book.quota("team")
    assert quota is not None
    assert (quota.memory_limit_mib, quota.core_limit) == (1000, 10)
    book.set_limits("team", "narrow", None)
    left = book.quota("team")
    assert left is not None
    assert (left.memory_limit_mib, left.core_limit) == (9000, None)


def test_hazard_c23_whole_card_percentage_on_mig_stays_as_executed() -> None:
    """No profile reaches the card's memory; recorded answers refuse it."""
    answer = _fleet(V2_10, mig_card().device).explain(
        _request((APP, (ask(1, None, 0, memory_percent=100),)))
    )
    assert isinstance(answer, dict)
    assert answer["n"].counts == {MigReason.NO_PLACEMENT: 1}


def test_hazard_c24_mig_placement_stays_as_executed() -> None:
    """1g goes to the top, so that a 3g has no place left beside a 2g; recorded answers say so."""
    usage = mig_card()
    for memory_mib in (4000, 9000):
        choice = choose(usage, memory_mib)
        assert choice is not None
        _, usage = NVIDIA.grant(usage, choice)
    assert choose(usage, 19000) is None


@pytest.mark.parametrize(
    ("usage", "wishes", "reason"),
    [
        (card(vendor=NEURON, model="NVIDIA"), NO_CARD_WISHES, Reason.TYPE_MISMATCH),
        (card(mode="mig"), CardWishes(modes=frozenset({"mig-mixed"})), Reason.TYPE_MISMATCH),
        (card(model="GeForce"), NO_CARD_WISHES, None),
    ],
    ids=["vendor-not-by-name", "mode-not-by-part", "no-NVIDIA-in-the-name"],
)
def test_hazard_c27_vendor_and_mode_are_compared_whole(
    usage: Any, wishes: CardWishes, reason: Reason | None
) -> None:
    """Parts of words were searched for."""
    assert has_type(usage, context(ask(), wishes, V2_10)) is reason


@COMPATS
def test_hazard_c28_card_without_pair_scores_counts_0(compat: Compat) -> None:
    """A card that the node's table does not name crashed the original."""
    scores = {Uuid("GPU-0"): {Uuid("GPU-1"): 10}}
    ctx = context(ask(2), NO_CARD_WISHES, compat, policy="topology-aware")
    answer = fit([card(2), card(1), card(0)], ctx, policy="topology-aware", pair_scores=scores)
    assert isinstance(answer, Placement)
    assert [taken.device.index for taken in answer.taken] == [1, 0]


def test_hazard_c30_unknown_numa_node_is_no_group() -> None:
    """Unknown was registered as node 0, so strangers looked like neighbours."""
    ctx = context(ask(2), CardWishes(is_numa_bound=True), V2_10)
    cards = [card(0, numa=None), card(1, numa=None), card(2, numa=0), card(3, numa=0)]
    answer = fit(cards, ctx)
    assert isinstance(answer, Placement)
    assert [taken.device.index for taken in answer.taken] == [2, 3]
