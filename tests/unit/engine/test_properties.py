"""What holds whatever is asked: nothing over-committed, nothing raised, order of no account."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_node.engine.card_rules import Placement, rules_of
from hami_node.engine.check import check_reservation
from hami_node.engine.compat import V2_8, V2_10, Compat
from hami_node.engine.filters import Rejection, context
from hami_node.engine.fleet.fleet import Fleet, Placed
from hami_node.engine.place import Plan, PodRequest, Rules, fit, place_on, plan
from hami_node.engine.quota import Limits, QuotaBook
from hami_node.engine.usage import DeviceUsage, PodGrants
from hami_node.model import (
    NO_CARD_WISHES,
    Ask,
    CardWishes,
    ContainerKind,
    Device,
    Grant,
    PodWishes,
    Uuid,
    UuidWish,
    Vendor,
)
from hami_node.vendors.neuron.cards import NEURON
from hami_node.vendors.neuron.placement import WHOLE_DEVICES, NeuronDetail
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.mig.choice import (
    MigUse,
)
from hami_node.vendors.nvidia.mig.layout import (
    MigLayout,
    MigPlacement,
    MigProfile,
    MigTemplate,
)
from hami_node.vendors.nvidia.mode import Mode
from tests.unit.engine.cards import ask, card
from tests.unit.engine.draws import Draw

COMPATS = pytest.mark.parametrize("compat", [V2_8, V2_10], ids=["2.8", "2.10"])
SEEDS = pytest.mark.parametrize("seeds", [range(20)], ids=str)


def _fleet(draw: Draw, compat: Compat) -> Fleet:
    fleet = Fleet(Rules(compat=compat))
    for number in range(4):
        fleet.set_node(f"n{number}", draw.devices(number))
    return fleet


def _requests(draw: Draw, count: int) -> list[PodRequest]:
    return [request for request in (draw.request() for _ in range(count)) if not request.is_empty]


# -- never more than a card has -------------------------------------------------------------------
def _is_within(usage: DeviceUsage) -> bool:
    device = usage.device
    if device.vendor is NEURON:
        return not usage.cores_used & ~device.cores
    # Profiles round their cores up: seven of 15 % stand on one card, as their vendor has it.
    has_cores = device.mode == Mode.MIG or usage.cores_used <= device.cores
    return (
        usage.slots_used <= device.slots
        and usage.memory_used_mib <= device.memory_mib
        and has_cores
        and not usage.contradiction
    )


@COMPATS
@SEEDS
def test_no_card_is_ever_over_committed(seeds: range, compat: Compat) -> None:
    placed = 0
    for seed in seeds:
        draw = Draw(seed)
        fleet = _fleet(draw, compat)
        for number, request in enumerate(_requests(draw, 40)):
            answer = fleet.place(request)
            if isinstance(answer, Placed):
                placed += 1
                fleet.add_pod(f"pod-{number}", request.namespace, answer.node, answer.grants)
            if number % 4 == 3:
                fleet.remove_pod(f"pod-{draw.number(number)}")
            for node in fleet.nodes.values():
                assert all(_is_within(usage) for usage in node.usage.cards.values())
    assert placed > 100


# -- never more than a namespace may take ----------------------------------------------------------
@COMPATS
@SEEDS
def test_namespace_never_counts_more_than_its_quota(seeds: range, compat: Compat) -> None:
    """What the books count is what is checked: MIG instances, shares of cards, init containers."""
    refused = placed = 0
    for seed in seeds:
        draw, quotas = Draw(seed), QuotaBook()
        memory_mib, cores = draw.pick(None, 10_000, 25_000, 50_000), draw.pick(None, 60, 150)
        quotas.set_limits("team", "q", Limits(memory_mib=memory_mib, cores=cores))
        fleet = Fleet(Rules(compat=compat), quotas)
        for number in range(4):
            fleet.set_node(f"n{number}", draw.devices(number))
        for number, drawn in enumerate(_requests(draw, 40)):
            request = replace(drawn, namespace="team")
            answer = fleet.place(request)
            if isinstance(answer, Placed):
                placed += 1
                fleet.add_pod(f"pod-{number}", "team", answer.node, answer.grants)
                charged = fleet.quota_charges(f"pod-{number}")
                counts = sum(each.memory_mib for each in charged if each.vendor is NVIDIA)
                assert counts >= max(_at_one_time(answer.grants))
            else:
                refused += fleet.place(replace(request, namespace="free")) != answer
                ready = plan(request, fleet.rules, quotas.quota("team"))
                assert isinstance(ready, Plan)
                offers = [node.offer() for node in fleet.nodes.values()]
                assert all(isinstance(place_on(offer, ready), Rejection) for offer in offers)
            used = quotas.quota("team")
            assert used is not None
            assert used.memory_used_mib <= (memory_mib or 10**9)
            assert used.cores_used <= (cores or 10**9)
            if number % 4 == 3:
                fleet.remove_pod(f"pod-{draw.number(number)}")
    assert placed > 100
    assert refused > 50


def _at_one_time(pod: PodGrants) -> Iterator[int]:
    """MiB that a pod holds in each of its phases."""
    steady = 0
    for index, grants in enumerate(pod.containers):
        held = sum(grant.memory_mib for grant in grants if grant.vendor is NVIDIA)
        yield steady + held
        if pod.kind(index) is not ContainerKind.INIT:
            steady += held


# -- order of no account --------------------------------------------------------------------------
@COMPATS
@pytest.mark.parametrize("seed", range(6))
def test_answers_are_independent_of_the_order_of_nodes_and_pods(seed: int, compat: Compat) -> None:
    draw = Draw(seed)
    nodes = {f"n{number}": draw.devices(number) for number in range(4)}
    first = Fleet(Rules(compat=compat))
    for name, devices in nodes.items():
        first.set_node(name, devices)
    pods: list[tuple[str, str, Placed]] = []
    for number, request in enumerate(_requests(draw, 15)):
        answer = first.place(request)
        if isinstance(answer, Placed):
            pods.append((f"pod-{number}", request.namespace, answer))
            first.add_pod(f"pod-{number}", request.namespace, answer.node, answer.grants)
    second = Fleet(Rules(compat=compat))
    draw.random.shuffle(pods)
    for key, namespace, answer in pods:
        second.add_pod(key, namespace, answer.node, answer.grants)
    for name in draw.random.sample(sorted(nodes), len(nodes)):
        second.set_node(name, nodes[name])
    for request in _requests(draw, 10):
        assert first.place(request) == second.place(request)
        assert first.explain(request) == second.explain(request)


# -- never raises ---------------------------------------------------------------------------------
NUMBERS = st.integers(0, 2**31 - 1) | st.integers(0, 200)
TEXTS = st.text(max_size=8)
PLACES = st.builds(MigPlacement, start=NUMBERS, size=NUMBERS)
VENDORS = st.sampled_from([NVIDIA, NEURON, Vendor("other")])
PROFILES = st.builds(
    MigProfile,
    name=TEXTS,
    memory_mib=NUMBERS,
    cores=NUMBERS,
    slice_count=NUMBERS,
    placements=st.lists(PLACES, max_size=3).map(tuple),
)
TEMPLATES = st.builds(MigTemplate, name=TEXTS, memory_mib=NUMBERS, cores=NUMBERS, count=NUMBERS)
LAYOUTS = st.builds(
    MigLayout,
    profiles=st.lists(PROFILES, max_size=2).map(tuple),
    templates=st.lists(st.lists(TEMPLATES, max_size=2).map(tuple), max_size=2).map(tuple),
)
TYPES = st.sampled_from(["", "inf2.xlarge", "trn1.32xlarge", "odd"])
DETAILS = st.none() | LAYOUTS | st.builds(NeuronDetail, instance_type=TYPES)
DEVICES = st.builds(
    Device,
    uuid=st.sampled_from(["a", "b", ""]).map(Uuid),
    index=NUMBERS,
    vendor=VENDORS,
    model=TEXTS,
    mode=st.sampled_from(["", "mig", "hami-core", "odd"]),
    numa=st.none() | st.integers(0, 3),
    healthy=st.booleans(),
    slots=NUMBERS,
    memory_mib=NUMBERS,
    cores=NUMBERS,
    detail=DETAILS,
)
USAGES = st.builds(
    DeviceUsage,
    device=DEVICES,
    slots_used=NUMBERS,
    memory_used_mib=NUMBERS,
    cores_used=NUMBERS,
    parts=st.none()
    | st.builds(
        MigUse,
        template=st.none() | st.integers(0, 3),
        slots=st.frozensets(st.integers(0, 9), max_size=3),
        placements=st.lists(PLACES, max_size=3).map(tuple),
    ),
)
ASKS = st.builds(
    Ask,
    vendor=VENDORS,
    count=st.integers(1, 2**31 - 1) | st.integers(1, 4),
    memory_mib=st.none() | NUMBERS,
    memory_percent=st.none() | st.integers(0, 100),
    cores=NUMBERS,
    detail=st.none() | st.just(WHOLE_DEVICES),
)
POLICIES = st.none() | TEXTS | st.sampled_from(["mutex", "topology-aware", "numa,binpack", ","])
CARD_WISHES = st.builds(
    CardWishes,
    use_types=st.lists(TEXTS, max_size=2).map(tuple),
    modes=st.none() | st.frozensets(TEXTS, max_size=2),
    uuids=st.builds(UuidWish, use=st.none() | st.frozensets(TEXTS)),
    is_numa_bound=st.booleans(),
)
WISHES = st.builds(
    PodWishes,
    cards=st.lists(st.tuples(VENDORS, CARD_WISHES), max_size=2).map(tuple),
    gpu_policy=POLICIES,
    node_policy=POLICIES,
    scoring_weights=st.none() | TEXTS | st.just("slot=1,core=2,memory=3"),
)


@settings(deadline=None)
@given(st.lists(USAGES, max_size=4), ASKS, WISHES, st.sampled_from([V2_8, V2_10]))
def test_fit_answers_whatever_a_node_registers(
    cards: list[DeviceUsage], wanted: Ask, wishes: PodWishes, compat: Compat
) -> None:
    policy = wishes.gpu_policy or ""
    answer = fit(
        cards, context(wanted, wishes.of(wanted.vendor), compat, policy=policy), policy=policy
    )
    assert isinstance(answer, Placement | Rejection)
    if isinstance(answer, Placement):
        devices = [usage.device for usage in cards]
        assert len(answer.taken) == rules_of(wanted.vendor).cards_wanted(wanted, devices)


@settings(deadline=None)
@given(st.lists(DEVICES, max_size=4), ASKS, ASKS, WISHES, st.sampled_from([V2_8, V2_10]))
def test_fleet_answers_whatever_a_node_registers(
    devices: list[Device], first: Ask, other: Ask, wishes: PodWishes, compat: Compat
) -> None:
    fleet = Fleet(Rules(compat=compat))
    fleet.set_node("n", devices)
    request = _pod(first, other, wishes)
    answer = fleet.place(request)
    reasons = fleet.explain(request)
    if isinstance(answer, Placed):
        assert isinstance(reasons, dict)
        assert "n" not in reasons
        fleet.add_pod("p", "ns", "n", answer.grants)
        fleet.remove_pod("p")
        assert fleet.place(request) == answer


def _pod(first: Ask, other: Ask, wishes: PodWishes) -> PodRequest:
    containers = Draw(0).request().containers[:1]
    return PodRequest(
        namespace="ns",
        containers=tuple(
            replace(containers[0], kind=kind, asks=(wanted,))
            for kind, wanted in ((ContainerKind.INIT, first), (ContainerKind.APP, other))
        ),
        wishes=wishes,
    )


# -- the Allocate check agrees with the placement -------------------------------------------------
Change = Callable[[Grant], Grant]


@COMPATS
@SEEDS
def test_what_is_placed_the_allocate_check_accepts(seeds: range, compat: Compat) -> None:
    checked = 0
    for seed in seeds:
        draw = Draw(seed)
        fleet = _fleet(draw, compat)
        for number, request in enumerate(_requests(draw, 30)):
            answer = fleet.place(request)
            if not isinstance(answer, Placed):
                continue
            checked += _check_pod(fleet.nodes[answer.node].usage.cards, request, answer, compat)
            fleet.add_pod(f"pod-{number}", request.namespace, answer.node, answer.grants)
    assert checked > 100


def _check_pod(
    cards: Mapping[Uuid, DeviceUsage], request: PodRequest, answer: Placed, compat: Compat
) -> int:
    """Serve the pod's containers in kubelet's order."""
    checked = 0
    pod = answer.grants
    for index, container in enumerate(request.containers):
        own = replace(pod, containers=pod.containers[:index], kinds=pod.kinds[:index])
        for wanted in container.asks:
            grants = tuple(
                grant for grant in pod.containers[index] if grant.vendor is wanted.vendor
            )
            objection = check_reservation(cards, grants, wanted, request.wishes, compat, own=own)
            assert objection is None, (objection, container)
            checked += 1
    return checked


def _one_over(usage: DeviceUsage, wanted: Ask) -> list[DeviceUsage]:
    """The card with each thing one short of what the ask needs."""
    device = usage.device
    short = [
        replace(usage, slots_used=device.slots),
        replace(usage, device=replace(device, healthy=False)),
    ]
    memory = wanted.memory_mib_on(device.memory_mib)
    if memory:
        short.append(replace(usage, memory_used_mib=device.memory_mib - memory + 1))
    if wanted.cores:
        short.append(replace(usage, cores_used=device.cores - wanted.cores + 1))
    return short


@given(
    st.integers(1, 16384),
    st.integers(0, 99),
    st.tuples(st.integers(0, 9), st.integers(0, 16384), st.integers(0, 99)),
    st.sampled_from([V2_8, V2_10]),
)
def test_each_limit_one_step_over_is_refused_by_fit_and_by_the_check(
    memory_mib: int, cores: int, used: Any, compat: Compat
) -> None:
    wanted, usage = ask(1, memory_mib, cores), card(0, used)
    given_grant = Grant(uuid=usage.device.uuid, vendor=NVIDIA, memory_mib=memory_mib, cores=cores)

    def both(usage: DeviceUsage, grant: Grant) -> tuple[bool, bool]:
        fits = isinstance(fit([usage], context(wanted, NO_CARD_WISHES, compat)), Placement)
        cards = {usage.device.uuid: usage}
        return fits, check_reservation(cards, (grant,), wanted, PodWishes(), compat) is None

    fits, accepted = both(usage, given_grant)
    assert fits == accepted
    for short in _one_over(usage, wanted):
        assert both(short, given_grant) == (False, False)
    changes: list[Change] = [
        lambda grant: replace(grant, memory_mib=grant.memory_mib + 1),
        lambda grant: replace(grant, cores=grant.cores + 1),
        lambda grant: replace(grant, memory_mib=0),
        lambda grant: replace(grant, uuid=Uuid("GPU-9")),
    ]
    for change in changes:
        assert both(usage, change(given_grant))[1] is False
