"""What people see of MIG cards: found by the driver, on record, and whose it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hami_node.model import Device
from hami_node.vendors.divided import DividedCard, PartState, PartView
from hami_node.vendors.nvidia.mig.layout import FoundInstance
from hami_node.vendors.nvidia.mig.shown import divided_cards
from tests.fakes.cards import uuid
from tests.fakes.mig_cards import divided, instance

LIVE = PartView(
    card=uuid(0), kind="2g.10gb", start=0, size=2, state=PartState.LIVE, numbers=(3, 0),
    uuid="MIG-00000003-0000-5000-8000-000000000000", pod_uid="uid-p", container="main",
)  # fmt: skip


def shown(*cards: Device, own: tuple[PartView, ...] = (), is_offered: bool = False) -> DividedCard:
    (found,) = divided_cards(cards, own, is_offered=is_offered)
    return found


@pytest.mark.parametrize(
    ("is_enabled", "is_pending", "words"),
    [(True, True, ("mig", "")), (True, False, ("mig", "off")), (False, True, ("off", "mig"))],
)
def test_mode_now_and_after_the_next_reset(
    is_enabled: bool, is_pending: bool, words: tuple[str, str]
) -> None:
    found = shown(divided(0, is_enabled=is_enabled, is_pending=is_pending))
    assert (found.mode, found.pending) == words


def test_profiles_with_their_places() -> None:
    kinds = {kind.name: kind for kind in shown(divided(0)).kinds}
    assert (kinds["2g.10gb"].size, kinds["2g.10gb"].starts) == (2, (0, 2, 4))
    assert kinds["7g.40gb"].memory_mib == 40192


def test_half_made_instance_of_others_is_foreign_wherever_instances_are_offered() -> None:
    half = FoundInstance(
        gpu_instance_id=3, profile="", profile_id=77, placement=instance(3, "2g.10gb", 0).placement
    )
    whole = instance(9, "1g.5gb", 2)
    found = shown(divided(0, half, whole), is_offered=True)
    assert [(part.kind, part.state, part.numbers) for part in found.parts] == [
        ("unknown", PartState.FOREIGN, (3,)),
        ("1g.5gb", PartState.OFFERED, (9, 0)),
    ]


def test_instance_of_others_that_a_container_holds_is_where_the_driver_says() -> None:
    held = replace(LIVE, kind="", start=0, size=0, numbers=(9, 0), uuid="")
    found = shown(divided(0, instance(9, "1g.5gb", 2)), own=(held,), is_offered=True)
    (part,) = found.parts
    assert (part.kind, part.start, part.size, part.state) == ("1g.5gb", 2, 1, PartState.LIVE)
    assert part.pod_uid == "uid-p"
    gone = shown(divided(0), own=(held,), is_offered=True)
    assert [part.state for part in gone.parts] == [PartState.LOST]
    unread = shown(divided(0, problem="NVML says no"), own=(held,), is_offered=True)
    assert unread.parts == (held,)
