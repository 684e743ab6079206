"""The last check before Allocate: what is accepted, and each limit one step over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hami_node.engine.check import check_reservation, is_covered
from hami_node.engine.compat import V2_8
from hami_node.engine.filters import Reason
from hami_node.engine.objection import Amounts, Doubt, Objection
from hami_node.engine.usage import DeviceUsage, PodGrants
from hami_node.model import Ask, ContainerKind, Grant, PodWishes, Uuid, UuidWish
from hami_node.vendors.nvidia.mig.layout import (
    TemplateSlot,
)
from tests.unit.engine.cards import ask, card, grant, wishes_for


def _cards(*cards: DeviceUsage) -> Mapping[Uuid, DeviceUsage]:
    return {usage.device.uuid: usage for usage in cards}


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
        pytest.param(
            [card(used=(1, 0, 0), cores=200)],
            [grant(cores=100)],
            ask(cores=100),
            id="100-of-200-cores-in-use",
        ),
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
            Objection(
                reason=Doubt.COUNT_DIFFERS,
                amounts=Amounts(left=1, asked=2, unit="cards", is_allowance=True),
            ),
            id="more-cards-than-asked",
        ),
        pytest.param(
            [card(0)],
            [grant("GPU-0")],
            ask(2),
            Objection(
                reason=Doubt.COUNT_DIFFERS,
                amounts=Amounts(left=2, asked=1, unit="cards", is_allowance=True),
            ),
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
                amounts=Amounts(left=4096, asked=4097, unit="MiB", is_allowance=True),
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
                amounts=Amounts(left=5406, asked=5407, unit="MiB", is_allowance=True),
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
                amounts=Amounts(left=30, asked=31, unit="percent", is_allowance=True),
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
                amounts=Amounts(left=4095, asked=4096, unit="MiB"),
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
                amounts=Amounts(left=29, asked=30, unit="percent"),
            ),
            id="free-cores-one-short",
        ),
        pytest.param(
            [card(used=(10, 0, 0))],
            [grant()],
            ask(),
            Objection(
                reason=Reason.NO_SLOT,
                uuid=Uuid("GPU-0"),
                index=0,
                amounts=Amounts(left=0, asked=1, unit="slots"),
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
            wishes_for(use_types=("h100",)),
            Reason.TYPE_MISMATCH,
            id="type-wish",
        ),
        pytest.param(
            [card()],
            [grant()],
            ask(),
            wishes_for(modes=frozenset({"mps"})),
            Reason.TYPE_MISMATCH,
            id="mode-wish",
        ),
        pytest.param(
            [card()],
            [grant()],
            ask(),
            wishes_for(uuids=UuidWish(nouse=frozenset({"GPU-0"}))),
            Reason.UUID_MISMATCH,
            id="uuid-wish",
        ),
        pytest.param(
            [card()],
            [grant(part=TemplateSlot(template=0, slot=0))],
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


def test_is_covered_ignores_live_use() -> None:
    full = card(used=(10, 16384, 100))
    assert is_covered(_cards(full), (grant(),), ask()) is None
    assert is_covered(_cards(full), (grant(memory_mib=4097),), ask()) is not None
