"""What is taken of a card: collapse, add and remove, unknown cards, contradictions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.engine.usage import Charge, NodeUsage, PodGrants, collapse, united
from hami_node.model import ContainerGrants, ContainerKind, Grant, Uuid
from hami_node.vendors.neuron.cards import NEURON
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.mig.choice import (
    use_of,
)
from hami_node.vendors.nvidia.mig.layout import (
    TemplateSlot,
)
from tests.unit.engine.cards import device, grant, neuron_card

INIT, SIDECAR, APP = ContainerKind.INIT, ContainerKind.SIDECAR, ContainerKind.APP


def _pod(*containers: tuple[ContainerKind, ContainerGrants], **changes: Any) -> PodGrants:
    return PodGrants(
        containers=tuple(grants for _, grants in containers),
        kinds=tuple(kind for kind, _ in containers),
        **changes,
    )


def _one(memory_mib: int, cores: int, uuid: str = "GPU-0") -> ContainerGrants:
    return (grant(uuid, memory_mib, cores),)


def _sums(charges: tuple[Charge, ...]) -> list[tuple[str, int, int, int]]:
    return [(item.uuid, item.memory_mib, item.cores, item.slots) for item in charges]


@pytest.mark.parametrize(
    ("pod", "effective", "later"),
    [
        pytest.param(
            _pod((INIT, _one(8000, 50)), (APP, _one(3000, 20)), (APP, _one(4000, 20))),
            [("GPU-0", 8000, 50, 2)],
            [("GPU-0", 7000, 40, 2)],
            id="init-is-the-peak",
        ),
        pytest.param(
            _pod((INIT, _one(9000, 10)), (APP, _one(3000, 20))),
            [("GPU-0", 9000, 20, 1)],
            [("GPU-0", 3000, 20, 1)],
            id="each-amount-by-itself",
        ),
        pytest.param(
            _pod((INIT, _one(2000, 60)), (INIT, _one(5000, 10)), (APP, _one(1000, 20))),
            [("GPU-0", 5000, 60, 1)],
            [("GPU-0", 1000, 20, 1)],
            id="inits-run-one-after-another",
        ),
        pytest.param(
            _pod((INIT, _one(100, 1, "GPU-1")), (APP, _one(200, 2))),
            [("GPU-0", 200, 2, 1), ("GPU-1", 100, 1, 1)],
            [("GPU-0", 200, 2, 1)],
            id="cards-apart",
        ),
        pytest.param(
            _pod((APP, _one(100, 1)), (APP, _one(200, 2))),
            [("GPU-0", 300, 3, 2)],
            [("GPU-0", 300, 3, 2)],
            id="apps-add-up",
        ),
        pytest.param(
            _pod((SIDECAR, _one(1000, 10)), (INIT, _one(6000, 20)), (APP, _one(2000, 5))),
            [("GPU-0", 7000, 30, 2)],
            [("GPU-0", 3000, 15, 2)],
            id="init-beside-a-sidecar",
        ),
        pytest.param(
            _pod((INIT, _one(6000, 20)), (SIDECAR, _one(1000, 10)), (APP, _one(2000, 5))),
            [("GPU-0", 6000, 20, 2)],
            [("GPU-0", 3000, 15, 2)],
            id="sidecar-after-the-init",
        ),
        pytest.param(_pod((APP, ())), [], [], id="nothing"),
    ],
)
def test_collapse(
    pod: PodGrants,
    effective: list[tuple[str, int, int, int]],
    later: list[tuple[str, int, int, int]],
) -> None:
    assert _sums(collapse(pod)) == effective
    over = PodGrants(containers=pod.containers, kinds=pod.kinds, are_inits_over=True)
    assert _sums(collapse(over)) == later


def test_collapse_adds_up_the_parts_that_one_init_container_has_of_a_card() -> None:
    """They exist side by side: seven instances of 5 GiB counted as one."""
    two = tuple(replace(grant("GPU-0", 5000, 14), part=("1g", at)) for at in range(2))
    pod = _pod((SIDECAR, _one(1000, 1)), (INIT, two), (INIT, two[:1]), (APP, _one(2000, 2)))
    assert _sums(collapse(pod)) == [("GPU-0", 11000, 29, 3)]


def test_collapse_unites_neuron_masks() -> None:
    first, second = (grant("n-0", 0, mask, vendor=NEURON) for mask in (0b01, 0b10))
    (charge,) = collapse(_pod((APP, (first,)), (APP, (second,))))
    assert charge.cores == 0b11


def test_collapse_treats_containers_beyond_the_kinds_as_apps() -> None:
    pod = PodGrants(containers=(_one(1, 1), _one(2, 2)))
    assert _sums(collapse(pod)) == [("GPU-0", 3, 3, 2)]


def _used(usage: NodeUsage, uuid: str = "GPU-0") -> tuple[int, int, int]:
    card = usage.cards[Uuid(uuid)]
    return card.slots_used, card.memory_used_mib, card.cores_used


def test_add_counts_and_remove_takes_back() -> None:
    usage = NodeUsage([device(0), device(1)])
    before = dict(usage.cards)
    usage.add("a", _pod((APP, _one(4096, 30))))
    assert _used(usage) == (1, 4096, 30)
    assert usage.pods == ("a",)
    usage.remove("a")
    assert dict(usage.cards) == before
    assert not usage.pods


def test_add_of_the_same_pod_replaces() -> None:
    usage = NodeUsage([device(0)])
    usage.add("a", _pod((APP, _one(4096, 30))))
    usage.add("a", _pod((APP, _one(1000, 10))))
    assert _used(usage) == (1, 1000, 10)


def test_remove_of_an_unknown_pod_is_harmless() -> None:
    usage = NodeUsage([device(0)])
    usage.remove("nobody")
    assert _used(usage) == (0, 0, 0)


def test_cards_are_a_picture_that_later_changes_leave_alone() -> None:
    usage = NodeUsage([device(0)])
    picture = usage.cards
    usage.add("a", _pod((APP, _one(4096, 30))))
    assert picture[Uuid("GPU-0")].slots_used == 0


def test_grant_on_an_unknown_card_is_kept_and_counts_once_the_card_appears() -> None:
    usage = NodeUsage([device(0)])
    usage.add("a", _pod((APP, _one(4096, 30, "GPU-7"))))
    assert [(key, charge.uuid) for key, charge in usage.unknown] == [("a", "GPU-7")]
    usage.replace_devices([device(0), device(7)])
    assert usage.unknown == ()
    assert _used(usage, "GPU-7") == (1, 4096, 30)


def test_replaced_inventory_keeps_grants() -> None:
    usage = NodeUsage([device(0)])
    usage.add("a", _pod((APP, _one(4096, 30))))
    usage.replace_devices([device(0, healthy=False, memory_mib=8192)])
    card = usage.cards[Uuid("GPU-0")]
    assert (card.memory_used_mib, card.memory_free_mib, card.device.healthy) == (4096, 4096, False)
    usage.replace_devices([])
    assert [charge.memory_mib for _, charge in usage.unknown] == [4096]


def test_over_committed_card_shows_negative_room() -> None:
    usage = NodeUsage([device(0, slots=1)])
    usage.add("a", _pod((APP, _one(16384, 100)), (APP, _one(1, 1))))
    card = usage.cards[Uuid("GPU-0")]
    assert (card.slots_free, card.memory_free_mib, card.cores_free) == (-1, -1, -1)


def test_neuron_masks_of_two_pods_are_taken_back_one_by_one() -> None:
    usage = NodeUsage([neuron_card().device])
    for key, mask in (("a", 1), ("b", 3)):
        usage.add(key, _pod((APP, (grant("n-0", 0, mask, vendor=NEURON),))))
    usage.remove("b")
    card = usage.cards[Uuid("n-0")]
    assert (card.cores_used, card.cores_free) == (1, 2)


PARTS = st.sampled_from([None, TemplateSlot(template=0, slot=1), TemplateSlot(template=1, slot=1)])
GRANTS = st.builds(
    Grant,
    uuid=st.sampled_from(["GPU-0", "GPU-1", "GPU-9"]).map(Uuid),
    part=PARTS,
    vendor=st.just(NVIDIA),
    memory_mib=st.integers(0, 2**40),
    cores=st.integers(0, 200),
)
PODS = st.builds(
    PodGrants,
    containers=st.lists(st.lists(GRANTS, max_size=3).map(tuple), max_size=4).map(tuple),
    kinds=st.lists(st.sampled_from(ContainerKind), max_size=4).map(tuple),
    are_inits_over=st.booleans(),
)


PLAIN_PODS = st.builds(
    PodGrants,
    containers=st.lists(
        st.lists(GRANTS.map(lambda held: replace(held, part=None)), max_size=3).map(tuple),
        max_size=4,
    ).map(tuple),
)


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.none() | PLAIN_PODS | PODS), max_size=16),
    st.sampled_from(
        [
            {},
            {"mode": "mig"},
            {"vendor": NEURON, "mode": "", "cores": 3, "detail": neuron_card().device.detail},
        ]
    ),
)
def test_cards_after_any_changes_are_those_of_a_rebuild(
    changes: list[tuple[str, PodGrants | None]], kind: dict[str, Any]
) -> None:
    devices = [device(0, **kind), device(1, **kind)]
    usage, there = NodeUsage(devices), dict[str, PodGrants]()
    for key, pod in changes:
        there.pop(key, None)
        if pod is None:
            usage.remove(key)
        else:
            usage.add(key, pod)
            there[key] = pod
    rebuilt = NodeUsage(devices)
    for key, pod in there.items():
        rebuilt.add(key, pod)
    assert dict(usage.cards) == dict(rebuilt.cards)


@given(st.lists(PODS, max_size=6), st.randoms())
def test_sums_are_independent_of_the_order_of_pods(pods: list[PodGrants], draw: Any) -> None:
    shuffled = list(enumerate(pods))
    draw.shuffle(shuffled)
    first, other = NodeUsage([device(0), device(1)]), NodeUsage([device(1), device(0)])
    for number, pod in enumerate(pods):
        first.add(str(number), pod)
    for number, pod in shuffled:
        other.add(str(number), pod)
    for uuid, usage in first.cards.items():
        twin = other.cards[uuid]
        assert _used(first, uuid) == _used(other, uuid)
        assert use_of(usage).slots == use_of(twin).slots
        assert bool(usage.contradiction) == bool(twin.contradiction)


# -- united ----------------------------------------------------------------------------------------

_GRANTS = st.lists(
    st.builds(
        grant,
        st.sampled_from(["GPU-0", "GPU-1"]),
        st.integers(0, 9000),
        st.integers(0, 100),
    ),
    max_size=3,
).map(tuple)
_HELD = st.lists(st.tuples(st.sampled_from([INIT, SIDECAR, APP]), _GRANTS), max_size=4)


@given(_HELD, _HELD)
def test_united_grants_are_never_less_than_either(
    seen: list[tuple[ContainerKind, ContainerGrants]],
    now: list[tuple[ContainerKind, ContainerGrants]],
) -> None:
    first, second = _pod(*seen), _pod(*now)
    whole = {charge.uuid: charge for charge in collapse(united(first, second))}
    for charge in (*collapse(first), *collapse(second)):
        more = whole[charge.uuid]
        assert more.memory_mib >= charge.memory_mib
        assert more.cores >= charge.cores
        assert more.slots >= charge.slots


def test_united_of_containers_whose_kind_changes_with_an_edit_counts_all_as_apps() -> None:
    first = _pod((SIDECAR, _one(8000, 50)), (INIT, _one(8000, 50)))
    second = _pod((INIT, _one(8000, 50)), (INIT, _one(8000, 50)))
    for seen, now in ((first, second), (second, first)):
        (charge,) = collapse(united(seen, now))
        assert (charge.memory_mib, charge.cores) == (16000, 100)


def test_united_with_itself_is_the_same() -> None:
    pod = _pod((INIT, _one(8000, 50)), (APP, (*_one(3000, 20), *_one(3000, 20))))
    assert united(pod, pod) == pod


def test_united_cores_of_numbered_cores_are_both() -> None:
    def held(mask: int) -> PodGrants:
        return _pod((APP, (Grant(uuid=Uuid("N-0"), vendor=NEURON, memory_mib=0, cores=mask),)))

    assert _sums(collapse(united(held(1), held(2)))) == [("N-0", 0, 3, 1)]


def test_united_parts_of_a_divided_card_are_both() -> None:
    def held(slot: int) -> PodGrants:
        part = TemplateSlot(template=0, slot=slot)
        return _pod((APP, (replace(grant("GPU-0", 4864, 0), part=part),)))

    assert collapse(united(held(0), held(1)))[0].memory_mib == 2 * 4864


@pytest.mark.parametrize(
    ("containers", "wanted", "grants"),
    [
        ([(INIT, (0,)), (APP, (0,))], (0,), 1),
        ([(INIT, (0,)), (INIT, (0,)), (APP, (1,))], (0, 1), 2),
        ([(INIT, (0, 1)), (APP, (1,))], (0, 1), 2),
        ([(INIT, (0, 0)), (APP, (1,))], (0, 0, 1), 3),
        ([(SIDECAR, (0,)), (APP, (0,))], (0, 0), 2),
        ([(APP, (0, 0))], (0, 0), 2),
    ],
    ids=["lent", "one-after-another", "some", "twice-in-one", "beside-a-sidecar", "twice"],
)
def test_parts_of_init_containers_are_free_for_the_others_of_their_pod(
    containers: list[tuple[ContainerKind, tuple[int, ...]]], wanted: tuple[int, ...], grants: int
) -> None:
    def held(slot: int) -> Grant:
        return replace(grant("GPU-0", 1, 0), part=TemplateSlot(template=0, slot=slot))

    pod = _pod(*((kind, tuple(map(held, slots))) for kind, slots in containers))
    (charge,) = collapse(pod)
    parts = [part.slot for part in charge.parts if isinstance(part, TemplateSlot)]
    assert (tuple(parts), charge.grants) == (wanted, grants)
