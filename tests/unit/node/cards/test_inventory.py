from __future__ import annotations

from dataclasses import replace

import pytest

from hami_node.errors import ConfigError
from hami_node.model import Device, Uuid
from hami_node.node.cards.inventory import (
    InventoryChange,
    diff,
    kubelet_list,
    refuse_oversize,
)
from tests.fakes.cards import card, uuid

COUNT = "nvidia.deviceSplitCount"


@pytest.mark.parametrize(
    ("numa", "is_shown", "nodes"),
    [(1, True, [1]), (0, True, [0]), (1, False, []), (None, True, [])],
    ids=["known", "zero", "not-shown", "unknown"],
)
def test_kubelet_list_numa_node_is_shown_only_when_known_and_wanted(
    numa: int | None, is_shown: bool, nodes: list[int]
) -> None:
    listed = kubelet_list((card(numa=numa, slots=1),), shows_numa=is_shown).devices
    assert [node.ID for node in listed[0].topology.nodes] == nodes


def test_kubelet_list_every_slot_of_a_bad_card_is_unhealthy() -> None:
    listed = kubelet_list((card(0, slots=2), card(1, slots=2, healthy=False))).devices
    assert [device.health for device in listed] == ["Healthy"] * 2 + ["Unhealthy"] * 2


def test_size_guard_list_just_below_the_limit_is_accepted_and_above_is_not() -> None:
    refuse_oversize((card(slots=60_000),), COUNT)
    with pytest.raises(ConfigError, match="kubelet accepts 4194304; use at most ") as caught:
        refuse_oversize((card(slots=100_000),), COUNT)
    assert caught.value.field == COUNT
    assert caught.value.value == 100_000
    at_most = int(str(caught.value).rpartition("use at most ")[2])
    refuse_oversize((card(slots=at_most),), COUNT)


def test_size_guard_identifier_too_long_for_kubelet_is_refused() -> None:
    refuse_oversize((card(uuid=Uuid("G" * 61), slots=10),), COUNT)
    with pytest.raises(ConfigError, match="64 characters"):
        refuse_oversize((card(uuid=Uuid("G" * 61), slots=11),), COUNT)


BAD = card(0, healthy=False)


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ((), (), InventoryChange()),
        ((card(0),), (card(0),), InventoryChange()),
        ((), (card(0),), InventoryChange(added=(uuid(0),))),
        ((card(0),), (), InventoryChange(removed=(uuid(0),))),
        ((card(0),), (BAD,), InventoryChange(failed=(uuid(0),))),
        ((BAD,), (card(0),), InventoryChange(recovered=(uuid(0),))),
        ((card(0),), (card(0, slots=3),), InventoryChange(altered=(uuid(0),))),
        ((BAD,), (replace(BAD, unhealthy_reason="other"),), InventoryChange(altered=(uuid(0),))),
        ((card(0),), (replace(BAD, slots=3),), InventoryChange(failed=(uuid(0),))),
        ((card(0),), (card(1),), InventoryChange(added=(uuid(1),), removed=(uuid(0),))),
    ],
    ids=[
        "nothing",
        "same",
        "added",
        "removed",
        "failed",
        "recovered",
        "altered",
        "other-reason",
        "failed-and-altered",
        "swapped",
    ],
)
def test_diff_two_passes_name_what_changed(
    old: tuple[Device, ...], new: tuple[Device, ...], wanted: InventoryChange
) -> None:
    assert diff(old, new) == wanted
    assert bool(wanted) == (old != new)
