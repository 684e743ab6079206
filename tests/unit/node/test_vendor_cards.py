"""Cards that would be other resources now: another process is asked for, once they settle."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hami_node.config.settings import make_settings
from hami_node.model import Device
from hami_node.node.vendor_cards import SETTLE_S
from hami_node.vendors.nvidia.mode import MigStrategy
from hami_node.vendors.nvidia.spec import NVIDIA_SPEC
from tests.fakes.backend import FakeBackend
from tests.fakes.cards import card
from tests.fakes.mig_cards import divided, instance
from tests.fakes.nodes import FakeNode, moved

SMALL, LARGE = instance(9, "1g.5gb", 2), instance(1, "3g.20gb", 4)


class Node(FakeNode):
    """A process that found these cards first."""

    def __init__(self, strategy: MigStrategy, *first: Device) -> None:
        self.backend = FakeBackend(*first)
        block = NVIDIA_SPEC.settings
        named = {"plugin_dir": Path("/nowhere"), "mig_strategy": strategy}
        super().__init__(make_settings(named, (block,)), moved(NVIDIA_SPEC, self.backend))
        (self.owner,) = self.vendor_cards
        self.owner.find_cards()
        self.in_force = self.owner.settled(self.in_force)
        self.owner.offer()

    def why(self, *now: Device) -> str:
        """After a scan that found these cards."""
        if now != self.backend.cards:
            self.backend.cards = now
            self.owner.scan()
        return self.owner.why_restart()

    def settle(self, *now: Device) -> str:
        """After they have stayed for long enough."""
        self.why(*now)
        self.time.advance(SETTLE_S)
        return self.why(*now)


def test_new_profile_takes_another_process_once_nothing_changes_any_more() -> None:
    node = Node(MigStrategy.MIXED, divided(0, SMALL))
    assert node.why(divided(0, SMALL, LARGE)) == ""
    node.time.advance(SETTLE_S - 1)
    assert node.why(divided(0, SMALL, LARGE)) == ""
    more = instance(3, "2g.10gb", 0)
    assert node.why(divided(0, SMALL, LARGE, more)) == ""
    node.time.advance(SETTLE_S - 1)
    assert node.why(divided(0, SMALL, LARGE, more)) == ""
    node.time.advance(1)
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
