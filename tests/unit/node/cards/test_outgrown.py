"""Cards that would be other resources now: another process is asked for, once they settle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from hami_node.model import Device
from hami_node.node.cards.outgrown import SETTLE_S, Outgrown
from hami_node.vendors.nvidia.mode import MigStrategy
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.nvidia.spec import NVIDIA_SPEC
from hami_node.vendors.spec import ServedCards
from tests.fakes.cards import card
from tests.fakes.clock import FakeClock
from tests.fakes.mig_cards import divided, instance

SERVED = cast(ServedCards[Any], NVIDIA_SPEC.served)
SMALL, LARGE = instance(9, "1g.5gb", 2), instance(1, "3g.20gb", 4)


class Node:
    """A process that found these cards first."""

    def __init__(self, strategy: MigStrategy, *first: Device) -> None:
        self.clock = FakeClock()
        self.outgrown = Outgrown(self.clock)
        own = NvidiaSettings(mig_strategy=strategy)
        self.outgrown.begin(own, first)
        settled = SERVED.settled(own, first)
        self.names = {each.name for each in SERVED.resources(settled, first)}

    def why(self, *now: Device) -> str:
        """After a scan that found these cards."""
        return self.outgrown.why(SERVED, self.names, now)

    def settle(self, *now: Device) -> str:
        """After they have stayed for long enough."""
        self.why(*now)
        self.clock.advance(SETTLE_S)
        return self.why(*now)


def test_new_profile_takes_another_process_once_nothing_changes_any_more() -> None:
    node = Node(MigStrategy.MIXED, divided(0, SMALL))
    assert node.why(divided(0, SMALL, LARGE)) == ""
    node.clock.advance(SETTLE_S - 1)
    assert node.why(divided(0, SMALL, LARGE)) == ""
    more = instance(3, "2g.10gb", 0)
    assert node.why(divided(0, SMALL, LARGE, more)) == ""
    node.clock.advance(SETTLE_S - 1)
    assert node.why(divided(0, SMALL, LARGE, more)) == ""
    node.clock.advance(1)
    why = node.why(divided(0, SMALL, LARGE, more))
    assert "nvidia.com/mig-2g.10gb, nvidia.com/mig-3g.20gb" in why


def test_profile_that_goes_or_comes_back_needs_nothing() -> None:
    node = Node(MigStrategy.MIXED, divided(0, SMALL, LARGE))
    assert node.settle(divided(0, SMALL)) == ""
    assert node.settle(divided(0, SMALL, LARGE)) == ""
    assert node.settle(divided(0)) == ""


def test_single_whose_cards_change_their_mode_needs_another_process() -> None:
    assert "nvidia.com/gpu" in Node(MigStrategy.SINGLE, card(0)).settle(divided(0, SMALL))
    assert "nvidia.com/gpu" in Node(MigStrategy.SINGLE, divided(0, SMALL)).settle(card(0))
    assert "nvidia.com/gpu" in Node(MigStrategy.SINGLE).settle(divided(0, SMALL))


def test_other_strategies_never_need_another_process() -> None:
    assert Node(MigStrategy.NONE, card(0)).settle(divided(0, SMALL)) == ""
    assert Node(MigStrategy.MIXED, card(0)).settle(card(0), replace(card(1), healthy=False)) == ""
