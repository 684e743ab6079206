from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from hami_node.errors import ConfigError
from hami_node.model import Device, Mode, Uuid
from hami_node.node.inventory import (
    Change,
    Inventory,
    Sharing,
    device_ids,
    diff,
    kubelet_list,
    refuse_oversize,
    shape,
    uuid_of,
)
from tests.fakes.cards import card, uuid

OFFERED = ("uuid", "index", "mode", "slots", "memory_mib", "cores", "healthy", "unhealthy_reason")


def physical(index: int = 0, **changes: object) -> Device:
    return card(index, slots=1, **changes)


@pytest.mark.parametrize(
    ("sharing", "one", "wanted"),
    [
        (Sharing(), physical(), card()),
        (Sharing(split_count=3), physical(), card(slots=3)),
        (Sharing(memory_scaling=1.5), physical(), card(memory_mib=61440)),
        (Sharing(memory_scaling=0.333), physical(memory_mib=1000), card(memory_mib=333)),
        (Sharing(core_scaling=2.5), physical(), card(cores=250)),
        (
            Sharing(split_count=7, memory_scaling=2, core_scaling=2),
            physical(mode=Mode.MIG, cores=100),
            card(mode=Mode.MIG, slots=7),
        ),
        (
            Sharing(),
            physical(healthy=False, unhealthy_reason="XID 48"),
            card(healthy=False, unhealthy_reason="XID 48"),
        ),
    ],
    ids=["default", "split", "memory-up", "memory-down", "cores", "mig-never-scaled", "unhealthy"],
)
def test_shape_settings_applied_gives_the_offered_card(
    sharing: Sharing, one: Device, wanted: Device
) -> None:
    (found,) = shape((one,), sharing)
    assert [getattr(found, name) for name in OFFERED] == [getattr(wanted, name) for name in OFFERED]


@pytest.mark.parametrize(
    ("sharing", "left"),
    [
        (Sharing(), [0, 1, 2]),
        (Sharing(hidden_uuids=frozenset({uuid(1)})), [0, 2]),
        (Sharing(hidden_indexes=frozenset({0, 2})), [1]),
        (Sharing(hidden_uuids=frozenset({uuid(0)}), hidden_indexes=frozenset({1})), [2]),
        (Sharing(hidden_uuids=frozenset({"GPU-nobody"})), [0, 1, 2]),
    ],
    ids=["none", "by-uuid", "by-index", "both", "unknown"],
)
def test_shape_filtered_cards_are_left_out(sharing: Sharing, left: list[int]) -> None:
    cards = tuple(physical(index) for index in range(3))
    assert [one.index for one in shape(cards, sharing)] == left


def test_shape_any_order_comes_out_sorted_by_index_and_uuid() -> None:
    twin = physical(1, uuid=Uuid("GPU-a"))
    cards = (physical(2), twin, physical(0), physical(1))
    found = shape(cards, Sharing())
    assert [one.uuid for one in found] == [uuid(0), uuid(1), Uuid("GPU-a"), uuid(2)]
    assert found == shape(cards[::-1], Sharing())


def test_device_ids_lead_back_to_their_card() -> None:
    ids = device_ids(card(3, slots=12))
    assert len(set(ids)) == 12
    assert {uuid_of(one) for one in ids} == {uuid(3)}


@pytest.mark.parametrize(
    ("numa", "tells", "nodes"),
    [(1, True, [1]), (0, True, [0]), (1, False, []), (None, True, [])],
    ids=["known", "zero", "not-told", "unknown"],
)
def test_kubelet_list_numa_node_is_told_only_when_known_and_wanted(
    numa: int | None, tells: bool, nodes: list[int]
) -> None:
    listed = kubelet_list((card(numa=numa, slots=1),), tells_numa=tells).devices
    assert [node.ID for node in listed[0].topology.nodes] == nodes


def test_kubelet_list_every_slot_of_a_bad_card_is_unhealthy() -> None:
    listed = kubelet_list((card(0, slots=2), card(1, slots=2, healthy=False))).devices
    assert [one.health for one in listed] == ["Healthy"] * 2 + ["Unhealthy"] * 2


def test_size_guard_list_just_below_the_limit_is_accepted_and_above_is_not() -> None:
    refuse_oversize((card(slots=60_000),))
    with pytest.raises(ConfigError, match="kubelet accepts 4194304; use at most ") as caught:
        refuse_oversize((card(slots=100_000),))
    assert caught.value.field == "nvidia.deviceSplitCount"
    assert caught.value.value == 100_000
    at_most = int(str(caught.value).rpartition("use at most ")[2])
    refuse_oversize((card(slots=at_most),))


def test_size_guard_identifier_too_long_for_kubelet_is_refused() -> None:
    refuse_oversize((card(uuid=Uuid("G" * 61), slots=10),))
    with pytest.raises(ConfigError, match="64 characters"):
        refuse_oversize((card(uuid=Uuid("G" * 61), slots=11),))


def test_size_guard_no_card_is_no_problem() -> None:
    refuse_oversize(())


BAD = card(0, healthy=False)


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ((), (), Change()),
        ((card(0),), (card(0),), Change()),
        ((), (card(0),), Change(added=(uuid(0),))),
        ((card(0),), (), Change(removed=(uuid(0),))),
        ((card(0),), (BAD,), Change(failed=(uuid(0),))),
        ((BAD,), (card(0),), Change(recovered=(uuid(0),))),
        ((card(0),), (card(0, slots=3),), Change(altered=(uuid(0),))),
        ((BAD,), (replace(BAD, unhealthy_reason="other"),), Change(altered=(uuid(0),))),
        ((card(0),), (replace(BAD, slots=3),), Change(failed=(uuid(0),))),
        ((card(0),), (card(1),), Change(added=(uuid(1),), removed=(uuid(0),))),
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
    old: tuple[Device, ...], new: tuple[Device, ...], wanted: Change
) -> None:
    assert diff(old, new) == wanted
    assert bool(wanted) == (old != new)


def test_inventory_same_cards_again_keep_the_version() -> None:
    inventory = Inventory()
    assert inventory.replace((card(),))
    version, cards = inventory.snapshot()
    assert not inventory.replace((card(),))
    assert inventory.snapshot() == (version, cards)


def test_inventory_change_wakes_who_waits() -> None:
    inventory, woken = Inventory(), threading.Event()

    def wait() -> None:
        inventory.wait_newer_or(0, lambda: False, 30.0)
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    inventory.replace((card(),))
    assert woken.wait(10.0)
    thread.join()


def test_inventory_stream_that_ended_is_woken_without_a_change() -> None:
    inventory, over, woken = Inventory(), threading.Event(), threading.Event()

    def wait() -> None:
        inventory.wait_newer_or(0, over.is_set, 30.0)
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    over.set()
    inventory.wake()
    assert woken.wait(10.0)
    thread.join()
