"""A whole pod on one node: containers add up, init containers don't, reasons are the first's."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from hami_node.engine.card_rules import MOST_STEPS, LinkSteps
from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.filters import Rejection
from hami_node.engine.place import (
    ContainerAsks,
    Fitting,
    NodeOffer,
    Plan,
    PodRequest,
    Refused,
    Rules,
    place_on,
    plan,
    try_on,
)
from hami_node.engine.quota import Quota
from hami_node.engine.usage import DeviceUsage, NodeUsage, PodGrants
from hami_node.model import Ask, ContainerKind, PodWishes, Uuid
from hami_node.vendors.neuron.cards import NEURON
from tests.unit.engine.cards import ask, card, neuron_card

INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP


@pytest.fixture(params=[V2_8, V2_10], ids=["2.8", "2.10"])
def compat(request: pytest.FixtureRequest) -> Compat:
    """Every test of this file holds in both generations; what differs: test_generations.py."""
    chosen: Compat = request.param
    return chosen


def _request(
    *containers: tuple[ContainerKind, Sequence[Ask]], wishes: PodWishes | None = None
) -> PodRequest:
    return PodRequest(
        namespace="team",
        containers=tuple(ContainerAsks(kind=kind, asks=tuple(asks)) for kind, asks in containers),
        wishes=wishes or PodWishes(),
    )


def _ready(request: PodRequest, compat: Compat, quota: Quota | None = None) -> Plan:
    ready = plan(request, Rules(compat=compat), quota)
    assert isinstance(ready, Plan)
    return ready


def _place(
    cards: Sequence[DeviceUsage],
    request: PodRequest,
    compat: Compat,
    quota: Quota | None = None,
) -> list[list[tuple[str, int]]] | str:
    """(uuid, MiB) by container, or the reasons."""
    node = NodeOffer(cards={usage.device.uuid: usage for usage in cards})
    answer = place_on(node, _ready(request, compat, quota))
    if isinstance(answer, Rejection):
        return answer.text()
    return [[(grant.uuid, grant.memory_mib) for grant in grants] for grants in answer.containers]


def test_containers_without_an_ask_have_an_empty_place(compat: Compat) -> None:
    request = _request((INIT, []), (APP, [ask()]), (APP, []))
    assert _place([card()], request, compat) == [[], [("GPU-0", 4096)], []]


def test_app_containers_add_up(compat: Compat) -> None:
    request = _request((APP, [ask(memory_mib=10000)]), (APP, [ask(memory_mib=10000)]))
    assert _place([card()], request, compat) == "1/1 CardInsufficientMemory"
    assert _place([card(0), card(1)], request, compat) == [[("GPU-1", 10000)], [("GPU-0", 10000)]]


def test_init_containers_are_placed_alone(compat: Compat) -> None:
    request = _request(
        (INIT, [ask(memory_mib=16000)]),
        (INIT, [ask(memory_mib=16000)]),
        (APP, [ask(memory_mib=16000)]),
    )
    assert _place([card()], request, compat) == [[("GPU-0", 16000)]] * 3


def test_init_container_runs_beside_the_sidecars_before_it(compat: Compat) -> None:
    sidecar = (SIDECAR, [ask(memory_mib=4000)])
    init = (INIT, [ask(memory_mib=13000)])
    assert _place([card()], _request(sidecar, init), compat) == "1/1 CardInsufficientMemory"
    assert _place([card()], _request(init, sidecar), compat) == [
        [("GPU-0", 13000)],
        [("GPU-0", 4000)],
    ]


def test_reason_is_the_first_containers_that_cannot(compat: Compat) -> None:
    request = _request((APP, [ask(memory_mib=99999)]), (APP, [ask(cores=31), ask(3)]))
    assert _place([card(used=(1, 0, 70))], request, compat) == "1/1 CardInsufficientMemory"


def test_more_cards_than_the_node_has_counts_the_asks_vendor(compat: Compat) -> None:
    assert (
        _place([card(), neuron_card()], _request((APP, [ask(2)])), compat)
        == "NodeInsufficientDevice"
    )


def test_two_vendors_in_one_container(compat: Compat) -> None:
    cores = Ask(vendor=NEURON, count=1, cores=1)
    answer = _place([card(), neuron_card()], _request((APP, [ask(), cores])), compat)
    assert answer == [[("n-0", 0), ("GPU-0", 4096)]]


def test_quota_spans_containers_and_spares_neuron(compat: Compat) -> None:
    request = _request((APP, [ask(memory_mib=6000)]), (APP, [ask(memory_mib=6000)]))
    quota = Quota(memory_limit_mib=10000)
    assert _place([card(0), card(1)], request, compat, quota) == "2/2 ResourceQuotaNotFit"
    cores = Ask(vendor=NEURON, count=1, cores=1)
    blocked = Quota(memory_limit_mib=0, core_limit=0)
    assert _place([neuron_card()], _request((APP, [cores])), compat, blocked) == [[("n-0", 0)]]


def test_wrong_weights_refuse_the_pod(compat: Compat) -> None:
    wishes = PodWishes(scoring_weights="slot=1")
    refused = plan(_request((APP, [ask()]), wishes=wishes), Rules(compat=compat))
    assert isinstance(refused, Refused)
    assert "'slot=1'" in refused.why


def test_scores_are_taken_anew_for_every_container(compat: Compat) -> None:
    request = _request((APP, [ask()]), (APP, [ask()]))
    assert _place([card(0), card(1)], request, compat) == [[("GPU-1", 4096)], [("GPU-0", 4096)]]


def test_request_without_asks_is_empty() -> None:
    assert _request((APP, [])).is_empty
    assert not _request((APP, []), (INIT, [ask()])).is_empty


def test_placed_grants_collapse_to_what_the_card_has(compat: Compat) -> None:
    request = _request((INIT, [ask(memory_mib=16384, cores=100)]), (APP, [ask(cores=100)]))
    answer = place_on(NodeOffer(cards={Uuid("GPU-0"): card()}), _ready(request, compat))
    assert isinstance(answer, PodGrants)
    usage = NodeUsage([card().device])
    usage.add("pod", answer)
    after = usage.cards[Uuid("GPU-0")]
    assert (after.slots_used, after.memory_used_mib, after.cores_used) == (1, 16384, 100)


def test_choosing_by_links_for_all_containers_together_has_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each container had 10 to 20 ms of its own on a node whose links have no order."""
    draw, size, spent = random.Random(1), 32, [0]
    uuids = [Uuid(f"GPU-{number}") for number in range(size)]
    scores = {a: {b: draw.randrange(1000) for b in uuids if a != b} for a in uuids}
    cards = {uuid: card(at, uuid=uuid) for at, uuid in enumerate(uuids)}
    request = _request(
        *[(INIT, [ask(12, 1000 + at)]) for at in range(8)],
        (APP, [ask(12)]),
        wishes=PodWishes(gpu_policy="topology-aware"),
    )
    take = LinkSteps.take

    def counted(self: LinkSteps, number: int) -> bool:
        is_taken = take(self, number)
        spent[0] += number * is_taken
        return is_taken

    monkeypatch.setattr(LinkSteps, "take", counted)
    answer = try_on(NodeOffer(cards=cards, pair_scores=scores), _ready(request, V2_10))
    assert isinstance(answer, Fitting)
    assert not answer.is_exact
    assert spent[0] <= MOST_STEPS + size
