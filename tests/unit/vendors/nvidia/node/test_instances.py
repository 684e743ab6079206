"""Which resources a node has whose MIG instances others have made, and with which cards."""

from __future__ import annotations

from hami_node.model import Device
from hami_node.vendors.nvidia.mode import MigStrategy
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.nvidia.spec import NVIDIA_SPEC
from tests.fakes.cards import card, uuid
from tests.fakes.mig_cards import divided, instance

MIXED = NvidiaSettings(mig_strategy=MigStrategy.MIXED)
SINGLE = NvidiaSettings(mig_strategy=MigStrategy.SINGLE)
SMALL, LARGE = instance(9, "1g.5gb", 2), instance(1, "3g.20gb", 4)
CARDS = (divided(0, SMALL, LARGE), card(1), divided(2))


def offered(cards: tuple[Device, ...], settings: NvidiaSettings) -> dict[str, list[Device]]:
    """The cards by resource, as a daemon of these settings has them."""
    assert NVIDIA_SPEC.served is not None
    settled = NVIDIA_SPEC.served.settled(settings, cards)
    resources = NVIDIA_SPEC.served.resources(settled, cards)
    return {each.name: list(each.offered(cards, settled)) for each in resources}


def shown(cards: tuple[Device, ...], settings: NvidiaSettings) -> dict[str, list[tuple[int, int]]]:
    """Number and slots of the cards of each resource, healthy ones only."""
    return {
        name: [(it.index, it.slots) for it in found if it.healthy]
        for name, found in offered(cards, settings).items()
    }


def test_mixed_has_a_resource_for_each_profile_and_shares_the_other_cards() -> None:
    assert shown(CARDS, MIXED) == {
        "nvidia.com/gpu": [(1, 10)],
        "nvidia.com/mig-1g.5gb": [(0, 1)],
        "nvidia.com/mig-3g.20gb": [(0, 1)],
    }


def test_mixed_shows_a_card_without_instances_to_people_alone() -> None:
    (empty,) = [it for it in offered(CARDS, MIXED)["nvidia.com/gpu"] if it.index == 2]
    assert (empty.slots, empty.healthy, empty.device_ids) == (0, False, [])


def test_single_has_all_instances_under_the_name_of_whole_cards() -> None:
    cards = (divided(0, SMALL), divided(1, SMALL))
    assert shown(cards, SINGLE) == {"nvidia.com/gpu": [(0, 1), (1, 1)]}
    renamed = NvidiaSettings(mig_strategy=MigStrategy.SINGLE, resource_count="a.b/gpu")
    assert list(shown(cards, renamed)) == ["a.b/gpu"]


def test_single_without_a_divided_card_is_no_strategy() -> None:
    assert shown((card(0),), SINGLE) == {"nvidia.com/gpu": [(0, 10)]}


def test_single_waits_for_cards_before_it_says_what_they_are() -> None:
    assert offered((), SINGLE) == {}


def test_cards_that_are_left_alone_are_in_no_resource() -> None:
    hidden = NvidiaSettings(mig_strategy=MigStrategy.MIXED, filter_uuids=(uuid(0),))
    assert shown(CARDS, hidden) == {"nvidia.com/gpu": [(1, 10)]}
    by_number = NvidiaSettings(mig_strategy=MigStrategy.MIXED, filter_indexes=(0, 1, 2))
    assert offered(CARDS, by_number) == {"nvidia.com/gpu": []}


def test_scaling_is_for_shared_cards_and_never_for_instances() -> None:
    scaled = NvidiaSettings(mig_strategy=MigStrategy.MIXED, memory_scaling=2.0, split_count=3)
    found = offered(CARDS, scaled)
    assert [it.memory_mib for it in found["nvidia.com/gpu"] if it.healthy] == [81920]
    assert [it.memory_mib for it in found["nvidia.com/mig-1g.5gb"]] == [40960]
