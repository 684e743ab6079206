"""The last check before Allocate: what is accepted, and each limit one step over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hami_node.engine.check import Doubt, Objection, check_reservation, is_covered
from hami_node.engine.compat import V2_8
from hami_node.engine.filters import Reason
from hami_node.engine.usage import DeviceUsage, PodGrants
from hami_node.model import (
    Ask,
    ContainerKind,
    Grant,
    MigPlacement,
    MigReservation,
    PodWishes,
    Uuid,
    UuidWish,
    Vendor,
)
from tests.unit.engine.cards import ask, card, grant, mig_card, template_card

NEURON: dict[str, Any] = {
    "vendor": Vendor.AWS_NEURON,
    "mode": "",
    "cores": 3,
    "memory_mib": 0,
    "slots": 2,
}


def _cards(*cards: DeviceUsage) -> Mapping[Uuid, DeviceUsage]:
    return {one.device.uuid: one for one in cards}


def _check(
    cards: Sequence[DeviceUsage],
    grants: Sequence[Grant],
    wanted: Ask,
    wishes: PodWishes | None = None,
    **more: Any,
) -> Objection | None:
    return check_reservation(
        _cards(*cards), tuple(grants), wanted, wishes or PodWishes(), V2_8, **more
    )


@pytest.mark.parametrize(
    ("cards", "grants", "wanted"),
    [
        pytest.param([card()], [grant()], ask(), id="as-asked"),
        pytest.param([card()], [grant(memory_mib=1000, cores=10)], ask(), id="less-than-asked"),
        pytest.param([card(0), card(1)], [grant("GPU-1"), grant("GPU-0")], ask(2), id="two-cards"),
        pytest.param([card(used=(9, 12288, 70))], [grant()], ask(), id="exactly-what-is-left"),
        pytest.param(
            [card()],
            [grant(memory_mib=5406)],
            ask(memory_mib=None, memory_percent=33),
            id="percentage-truncated",
        ),
        pytest.param([card()], [grant(cores=100)], ask(cores=250), id="cores-clamped"),
        pytest.param(
            [card()], [grant(memory_mib=0, cores=0)], ask(1, None, 0), id="no-limits-asked"
        ),
        pytest.param([card(cores=200)], [grant(cores=100)], ask(cores=100), id="idle-exclusive"),
    ],
)
def test_accepts(cards: Any, grants: Any, wanted: Ask) -> None:
    assert _check(cards, grants, wanted) is None


@pytest.mark.parametrize(
    ("cards", "grants", "wanted", "expected"),
    [
        pytest.param(
            [card(0), card(1)],
            [grant("GPU-0"), grant("GPU-1")],
            ask(1),
            Objection(reason=Doubt.COUNT_DIFFERS, free=1, asked=2, unit="cards"),
            id="more-cards-than-asked",
        ),
        pytest.param(
            [card(0)],
            [grant("GPU-0")],
            ask(2),
            Objection(reason=Doubt.COUNT_DIFFERS, free=2, asked=1, unit="cards"),
            id="fewer-cards-than-asked",
        ),
        pytest.param(
            [card()],
            [grant("GPU-9")],
            ask(),
            Objection(reason=Doubt.UNKNOWN_CARD, uuid=Uuid("GPU-9")),
            id="unknown-card",
        ),
        pytest.param(
            [card()],
            [grant(), grant()],
            ask(2),
            Objection(reason=Doubt.CARD_TWICE, uuid=Uuid("GPU-0"), index=0),
            id="one-card-twice",
        ),
        pytest.param(
            [card()],
            [grant(memory_mib=4097)],
            ask(),
            Objection(
                reason=Doubt.MEMORY_ABOVE_ASK,
                uuid=Uuid("GPU-0"),
                index=0,
                free=4096,
                asked=4097,
                unit="MiB",
            ),
            id="memory-one-over",
        ),
        pytest.param(
            [card()],
            [grant(memory_mib=5407)],
            ask(memory_mib=None, memory_percent=33),
            Objection(
                reason=Doubt.MEMORY_ABOVE_ASK,
                uuid=Uuid("GPU-0"),
                index=0,
                free=5406,
                asked=5407,
                unit="MiB",
            ),
            id="percentage-one-over",
        ),
        pytest.param(
            [card()],
            [grant(cores=31)],
            ask(),
            Objection(
                reason=Doubt.CORES_ABOVE_ASK,
                uuid=Uuid("GPU-0"),
                index=0,
                free=30,
                asked=31,
                unit="percent",
            ),
            id="cores-one-over",
        ),
        pytest.param(
            [card(used=(1, 12289, 0))],
            [grant()],
            ask(),
            Objection(
                reason=Reason.TOO_LITTLE_MEMORY,
                uuid=Uuid("GPU-0"),
                index=0,
                free=4095,
                asked=4096,
                unit="MiB",
            ),
            id="free-memory-one-short",
        ),
        pytest.param(
            [card(used=(1, 0, 71))],
            [grant()],
            ask(),
            Objection(
                reason=Reason.TOO_FEW_CORES,
                uuid=Uuid("GPU-0"),
                index=0,
                free=29,
                asked=30,
                unit="percent",
            ),
            id="free-cores-one-short",
        ),
        pytest.param(
            [card(used=(10, 0, 0))],
            [grant()],
            ask(),
            Objection(
                reason=Reason.NO_SLOT, uuid=Uuid("GPU-0"), index=0, free=0, asked=1, unit="slots"
            ),
            id="no-slot",
        ),
        pytest.param(
            [card(healthy=False, unhealthy_reason="Xid 79")],
            [grant()],
            ask(),
            Objection(reason=Reason.NOT_HEALTHY, uuid=Uuid("GPU-0"), index=0, detail="Xid 79"),
            id="unhealthy",
        ),
    ],
)
def test_refuses_with_card_and_numbers(
    cards: Any, grants: Any, wanted: Ask, expected: Objection
) -> None:
    assert _check(cards, grants, wanted) == expected


@pytest.mark.parametrize(
    ("cards", "grants", "wanted", "wishes", "reason"),
    [
        pytest.param(
            [card()],
            [grant(memory_mib=0)],
            ask(),
            None,
            Doubt.MEMORY_WITHOUT_LIMIT,
            id="no-memory-limit",
        ),
        pytest.param(
            [card()], [grant(cores=0)], ask(), None, Doubt.CORES_WITHOUT_LIMIT, id="no-core-limit"
        ),
        pytest.param(
            [card()], [grant(memory_mib=-1)], ask(), None, Doubt.NEGATIVE, id="negative-memory"
        ),
        pytest.param(
            [card()], [grant(vendor="DCU")], ask(), None, Doubt.VENDOR_DIFFERS, id="other-vendor"
        ),
        pytest.param(
            [card(used=(1, 0, 0))],
            [grant(cores=100)],
            ask(cores=100),
            None,
            Reason.NOT_EXCLUSIVE,
            id="whole-card-in-use",
        ),
        pytest.param(
            [card(used=(1, 0, 0), cores=200)],
            [grant(cores=100)],
            ask(cores=100),
            None,
            Reason.NOT_EXCLUSIVE,
            id="whole-scaled-card-in-use",
        ),
        pytest.param(
            [card(used=(1, 0, 100))],
            [grant(cores=0)],
            ask(cores=0),
            None,
            Reason.NO_CORES_LEFT,
            id="no-cores-left",
        ),
        pytest.param(
            [card(used=(1, 0, 0))],
            [grant()],
            ask(),
            PodWishes(gpu_policy="binpack,mutex"),
            Reason.NOT_EXCLUSIVE,
            id="mutex",
        ),
        pytest.param(
            [card()],
            [grant()],
            ask(),
            PodWishes(use_types=("h100",)),
            Reason.TYPE_MISMATCH,
            id="type-wish",
        ),
        pytest.param(
            [card()],
            [grant()],
            ask(),
            PodWishes(modes=frozenset({"mps"})),
            Reason.TYPE_MISMATCH,
            id="mode-wish",
        ),
        pytest.param(
            [card()],
            [grant()],
            ask(),
            PodWishes(nvidia=UuidWish(nouse=frozenset({"GPU-0"}))),
            Reason.UUID_MISMATCH,
            id="uuid-wish",
        ),
        pytest.param(
            [card()],
            [grant("GPU-0[0-0]")],
            ask(),
            None,
            Doubt.CONTRADICTION,
            id="instance-of-a-whole-card",
        ),
    ],
)
def test_refuses_for_the_reason(
    cards: Any, grants: Any, wanted: Ask, wishes: PodWishes | None, reason: Reason | Doubt
) -> None:
    objection = _check(cards, grants, wanted, wishes)
    assert objection is not None
    assert objection.reason is reason


def _own(*containers: tuple[ContainerKind, Grant]) -> PodGrants:
    return PodGrants(
        containers=tuple((given,) for _, given in containers),
        kinds=tuple(kind for kind, _ in containers),
    )


@pytest.mark.parametrize(
    ("kind", "refused"),
    [(ContainerKind.INIT, False), (ContainerKind.SIDECAR, True), (ContainerKind.APP, True)],
)
def test_earlier_containers_of_the_pod_count_unless_they_have_ended(
    kind: ContainerKind, refused: bool
) -> None:
    own = _own((kind, grant(memory_mib=13000, cores=0)))
    objection = _check([card()], [grant()], ask(), own=own)
    assert (objection is not None) is refused


def test_earlier_containers_on_other_nodes_cards_are_left_out() -> None:
    own = _own((ContainerKind.APP, grant("GPU-9", 99999)))
    assert _check([card()], [grant()], ask(), own=own) is None


def test_grants_of_one_container_are_charged_together() -> None:
    grants = [grant("GPU-0[1-1]", 10240, 28), grant("GPU-0[1-1]", 10240, 28)]
    objection = _check([template_card()], grants, ask(2, 9000, 0))
    assert objection is not None
    assert objection.reason is Doubt.CONTRADICTION


def _reserved(place: int, start: int, size: int) -> MigReservation:
    return MigReservation(
        container_index=0,
        device_index=place,
        uuid=Uuid("GPU-0"),
        profile="x",
        placement=MigPlacement(start=start, size=size),
    )


def test_instances_are_accepted_where_they_are_real_and_free() -> None:
    assert _check([template_card()], [grant("GPU-0[1-1]", 10240, 28)], ask(1, 9000, 0)) is None
    grants = [grant("GPU-0", 9856, 29), grant("GPU-0", 9856, 29)]
    reserved = (_reserved(0, 0, 2), _reserved(1, 2, 2))
    assert _check([mig_card()], grants, ask(2, 9000, 0), reserved=reserved) is None


@pytest.mark.parametrize(
    ("target", "given", "reserved", "reason"),
    [
        (template_card(), grant("GPU-0[1-0]", 10240, 28), (), Doubt.NO_INSTANCE),
        (template_card(), grant("GPU-0[1-0]", 5120, 14), (), Doubt.NO_INSTANCE),
        (template_card(), grant("GPU-0", 10240, 28), (), Doubt.CONTRADICTION),
        (mig_card(), grant("GPU-0", 9856, 29), (), Doubt.CONTRADICTION),
        (mig_card(), grant("GPU-0", 9856, 29), (_reserved(0, 1, 2),), Doubt.NO_INSTANCE),
        (mig_card(healthy=False), grant("GPU-0", 9856), (_reserved(0, 0, 2),), Reason.NOT_HEALTHY),
    ],
    ids=["wrong-size", "below-the-ask", "no-slot", "no-reservation", "odd-placement", "unhealthy"],
)
def test_instances_are_refused(
    target: DeviceUsage, given: Grant, reserved: Any, reason: Reason | Doubt
) -> None:
    objection = _check([target], [given], ask(1, 9000, 0), reserved=reserved)
    assert objection is not None
    assert objection.reason is reason


def _neuron(mask: int, uuid: str = "n-0") -> Grant:
    return grant(uuid, 0, mask, vendor=Vendor.AWS_NEURON)


@pytest.mark.parametrize(
    ("used", "mask", "cores", "reason"),
    [
        (0, 0b11, 2, None),
        (0b01, 0b10, 1, None),
        (0b01, 0b01, 1, Doubt.CORES_TAKEN),
        (0, 0b100, 1, Doubt.CORES_TAKEN),
        (0, 0, 1, Doubt.CORES_TAKEN),
        (0, 0b11, 1, Doubt.CORES_ABOVE_ASK),
    ],
)
def test_neuron_cores(used: int, mask: int, cores: int, reason: Doubt | None) -> None:
    target = card(0, (used.bit_count(), 0, used), uuid=Uuid("n-0"), **NEURON)
    wanted = Ask(vendor=Vendor.AWS_NEURON, count=1, cores=cores)
    objection = _check([target], [_neuron(mask)], wanted)
    assert (objection.reason if objection else None) is reason


def test_neuron_device_that_is_unhealthy_is_refused() -> None:
    target = card(0, uuid=Uuid("n-0"), healthy=False, **NEURON)
    wanted = Ask(vendor=Vendor.AWS_NEURON, count=1, cores=1)
    objection = _check([target], [_neuron(1)], wanted)
    assert objection is not None
    assert objection.reason is Reason.NOT_HEALTHY


def test_is_covered_ignores_live_use() -> None:
    full = card(used=(10, 16384, 100))
    assert is_covered(_cards(full), (grant(),), ask()) is None
    assert is_covered(_cards(full), (grant(memory_mib=4097),), ask()) is not None
