"""What is taken of a card: collapse, add and remove, unknown cards, contradictions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_node.engine.usage import Charge, NodeUsage, PodGrants, collapse, split_mig_uuid
from hami_node.model import (
    ContainerGrants,
    ContainerKind,
    Grant,
    MigPlacement,
    MigReservation,
    Uuid,
    Vendor,
)
from tests.unit.engine.cards import A100_PROFILES, A100_TEMPLATES, device, grant

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
    return [(one.uuid, one.memory_mib, one.cores, one.slots) for one in charges]


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


def test_collapse_unites_neuron_masks() -> None:
    first, second = (grant("n-0", 0, mask, vendor=Vendor.AWS_NEURON) for mask in (0b01, 0b10))
    (charge,) = collapse(_pod((APP, (first,)), (APP, (second,))))
    assert charge.cores == 0b11


def test_collapse_treats_containers_beyond_the_kinds_as_apps() -> None:
    pod = PodGrants(containers=(_one(1, 1), _one(2, 2)))
    assert _sums(collapse(pod)) == [("GPU-0", 3, 3, 2)]


@pytest.mark.parametrize(
    ("text", "card", "instance"),
    [
        ("GPU-0", "GPU-0", None),
        ("GPU-0[1-3]", "GPU-0", (1, 3)),
        ("GPU-0[1-3", "GPU-0[1-3", None),
        ("GPU-0[a-3]", "GPU-0[a-3]", None),
        ("GPU-0[1]", "GPU-0[1]", None),
        ("GPU-0[1-²]", "GPU-0[1-²]", None),
        ("GPU-0[1-99999999999]", "GPU-0[1-99999999999]", None),
        ("", "", None),
    ],
)
def test_split_mig_uuid(text: str, card: str, instance: tuple[int, int] | None) -> None:
    assert split_mig_uuid(text) == (card, instance)


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
    neuron = device(0, uuid=Uuid("n-0"), vendor=Vendor.AWS_NEURON, cores=3, mode="")
    usage = NodeUsage([neuron])
    for key, mask in (("a", 1), ("b", 3)):
        usage.add(key, _pod((APP, (grant("n-0", 0, mask, vendor=Vendor.AWS_NEURON),))))
    usage.remove("b")
    card = usage.cards[Uuid("n-0")]
    assert (card.cores_used, card.cores_free) == (1, 2)


MIG_28 = device(0, mode="mig", mig_templates=A100_TEMPLATES)
MIG_210 = device(0, mode="mig", mig_profiles=A100_PROFILES)


def _reserved(start: int, size: int) -> MigReservation:
    return MigReservation(
        container_index=0,
        device_index=0,
        uuid=Uuid("GPU-0"),
        profile="x",
        placement=MigPlacement(start=start, size=size),
    )


def test_template_instances_are_marked() -> None:
    usage = NodeUsage([MIG_28])
    usage.add("a", _pod((APP, _one(10240, 28, "GPU-0[1-1]"))))
    card = usage.cards[Uuid("GPU-0")]
    assert (card.mig_template, card.mig_slots, card.contradiction) == (
        1,
        frozenset({1}),
        "",
    )
    assert usage.charges("a")[0].uuid == "GPU-0"


def test_profile_instances_are_marked() -> None:
    usage = NodeUsage([MIG_210])
    usage.add("a", _pod((APP, _one(9856, 29)), mig=(_reserved(2, 2),)))
    card = usage.cards[Uuid("GPU-0")]
    assert card.mig_placements == (MigPlacement(start=2, size=2),)
    assert not card.contradiction


@pytest.mark.parametrize(
    ("card", "pods"),
    [
        pytest.param(device(0), [_pod((APP, _one(1, 1, "GPU-0[0-0]")))], id="not-in-mig-mode"),
        pytest.param(MIG_28, [_pod((APP, _one(1, 1)))], id="whole-card-in-mig-mode"),
        pytest.param(MIG_210, [_pod((APP, _one(1, 1)))], id="no-reservation"),
        pytest.param(
            MIG_28,
            [_pod((APP, _one(1, 1, "GPU-0[0-0]"))), _pod((APP, _one(1, 1, "GPU-0[1-1]")))],
            id="two-geometries",
        ),
        pytest.param(MIG_28, [_pod((APP, _one(1, 1, "GPU-0[0-0]")))] * 2, id="slot-twice"),
        pytest.param(
            MIG_210,
            [
                _pod((APP, _one(1, 1)), mig=(_reserved(0, 4),)),
                _pod((APP, _one(1, 1)), mig=(_reserved(2, 2),)),
            ],
            id="placements-overlap",
        ),
    ],
)
def test_contradicting_grants_close_the_card_until_they_go(
    card: Any, pods: list[PodGrants]
) -> None:
    usage = NodeUsage([card])
    for number, pod in enumerate(pods):
        usage.add(str(number), pod)
    assert usage.cards[Uuid("GPU-0")].contradiction
    usage.remove(str(len(pods) - 1))
    assert not usage.cards[Uuid("GPU-0")].contradiction


UUIDS = st.sampled_from(["GPU-0", "GPU-1", "GPU-9", "GPU-0[0-1]", "GPU-0[1-1]"])
GRANTS = st.builds(
    Grant,
    uuid=UUIDS.map(Uuid),
    vendor=st.just(Vendor.NVIDIA),
    memory_mib=st.integers(0, 2**40),
    cores=st.integers(0, 200),
)
PODS = st.builds(
    PodGrants,
    containers=st.lists(st.lists(GRANTS, max_size=3).map(tuple), max_size=4).map(tuple),
    kinds=st.lists(st.sampled_from(ContainerKind), max_size=4).map(tuple),
    are_inits_over=st.booleans(),
)


@given(st.lists(PODS, max_size=6), st.lists(PODS, max_size=6), st.randoms())
def test_remove_undoes_add_exactly(stay: list[PodGrants], go: list[PodGrants], draw: Any) -> None:
    usage = NodeUsage([device(0), device(1)])
    for number, pod in enumerate(stay):
        usage.add(f"stay-{number}", pod)
    before = (dict(usage.cards), usage.unknown)
    keys = [f"go-{number}" for number in range(len(go))]
    for key, pod in zip(keys, go, strict=True):
        usage.add(key, pod)
    draw.shuffle(keys)
    for key in keys:
        usage.remove(key)
    assert (dict(usage.cards), usage.unknown) == before


@given(st.lists(PODS, max_size=6), st.randoms())
def test_sums_are_independent_of_the_order_of_pods(pods: list[PodGrants], draw: Any) -> None:
    shuffled = list(enumerate(pods))
    draw.shuffle(shuffled)
    one, other = NodeUsage([device(0), device(1)]), NodeUsage([device(1), device(0)])
    for number, pod in enumerate(pods):
        one.add(str(number), pod)
    for number, pod in shuffled:
        other.add(str(number), pod)
    for uuid, usage in one.cards.items():
        twin = other.cards[uuid]
        assert _used(one, uuid) == _used(other, uuid)
        assert usage.mig_slots == twin.mig_slots
        assert bool(usage.contradiction) == bool(twin.contradiction)
