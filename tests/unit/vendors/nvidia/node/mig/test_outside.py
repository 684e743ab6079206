"""Somebody else who divides the cards: labels of MIG Manager, and instances that come and go."""

from __future__ import annotations

import pytest

from hami_node.model import Device, Node
from hami_node.vendors.divided import PartState, PartView
from hami_node.vendors.nvidia.node.mig.outside import QUIET_S, Outside
from tests.fakes.cards import card, uuid
from tests.fakes.clock import FakeClock
from tests.fakes.mig_cards import divided, instance

CONFIG, STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
DEPLOYED = "nvidia.com/gpu.deploy.mig-manager"


def labelled(**labels: str) -> Node:
    keys = {"config": CONFIG, "state": STATE, "deployed": DEPLOYED}
    return Node(name="n1", labels={keys[key]: value for key, value in labels.items()})


class Watched:
    """Cards and a record that a test changes, and what is noticed."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.outside = Outside(self.clock)
        self.own: list[PartView] = []

    def see(self, *cards: Device) -> str:
        self.outside.look(cards, self.own)
        return self.outside.hands_off()

    def read(self, **labels: str) -> str:
        self.outside.read_labels(labelled(**labels))
        return self.outside.hands_off()

    def has(self, number: int, name: str, start: int, state: PartState = PartState.LIVE) -> None:
        found = instance(number, name, start)
        assert found.device is not None
        self.own.append(
            PartView(
                card=uuid(0),
                kind=name,
                start=start,
                size=found.placement.size,
                state=state,
                numbers=(number, 0),
                uuid=found.device.uuid,
                pod_uid=f"uid-{number}",
            )
        )


@pytest.fixture
def watched() -> Watched:
    return Watched()


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({}, ""),
        ({"config": "all-disabled", "state": "success"}, ""),
        ({"config": "all-enabled", "state": "success"}, ""),
        ({"config": "all-enabled", "state": "failed"}, ""),
        ({"config": "all-enabled", "state": "pending"}, "mig.config.state=pending"),
        ({"config": "all-disabled", "state": "rebooting"}, "mig.config.state=rebooting"),
        ({"config": "all-1g.5gb", "state": "success"}, "mig.config=all-1g.5gb"),
        ({"config": "custom"}, "mig.config=custom"),
        ({"config": "custom", "state": "pending", "deployed": "false"}, ""),
        ({"config": "custom", "deployed": "true"}, "mig.config=custom"),
    ],
)
def test_labels_of_mig_manager_tell_whether_it_divides_the_cards(
    watched: Watched, labels: dict[str, str], words: str
) -> None:
    found = watched.read(**labels)
    assert bool(found) is bool(words)
    assert words in found


def test_default_label_of_gpu_operator_keeps_the_mode_and_nothing_else(watched: Watched) -> None:
    """Every node with MIG has it, and it says no more than that nobody has asked for MIG."""
    assert watched.read(config="all-disabled", state="success") == ""
    assert "all-enabled" in watched.outside.mode_wish()
    watched.read(config="all-disabled")
    assert watched.outside.mode_wish() == "", "no manager has ever run here"
    watched.read(config="all-disabled", state="success", deployed="false")
    assert watched.outside.mode_wish() == ""


def test_hands_off_while_somebody_else_lays_out_the_cards(watched: Watched) -> None:
    assert watched.read(config="all-enabled", state="success") == ""
    assert watched.see(divided()) == ""
    assert "all-2g.10gb" in watched.read(config="all-2g.10gb", state="success")
    assert "pending" in watched.read(config="all-2g.10gb", state="pending")
    assert "pending" in watched.see(divided(0, instance(3, "2g.10gb", 0)))
    assert "all-2g.10gb" in watched.read(config="all-2g.10gb", state="success")
    assert "pending" in watched.read(config="all-enabled", state="pending")
    watched.see(divided())
    assert "GPU instance 3 came or went" in watched.read(config="all-enabled", state="success")
    assert watched.outside.next_s() == QUIET_S
    watched.clock.advance(QUIET_S)
    assert watched.see(divided()) == ""
    assert watched.outside.next_s() is None


def test_one_instance_of_somebody_else_is_no_layout(watched: Watched) -> None:
    first, second = instance(3, "2g.10gb", 0), instance(9, "1g.5gb", 6)
    assert watched.see(divided(0, first)) == "", "what is there at first is nobody's change"
    assert watched.see(divided(0, first, second)) == ""
    watched.clock.advance(QUIET_S)
    assert watched.see(divided(0, second)) == ""
    watched.clock.advance(QUIET_S)
    assert watched.see(divided(0, second)) == ""


def test_own_instances_come_and_go_unnoticed(watched: Watched) -> None:
    assert watched.see(divided()) == ""
    watched.has(3, "2g.10gb", 0)
    assert watched.see(divided(0, instance(3, "2g.10gb", 0))) == ""
    watched.own.clear()
    assert watched.see(divided(0, instance(3, "2g.10gb", 0))) == "", "the scan is a little older"
    assert watched.see(divided()) == ""
    strangers = (instance(3, "2g.10gb", 0), instance(4, "2g.10gb", 2))
    assert watched.see(divided(0, *strangers)) != "", "the number was used again"


def test_own_instance_that_somebody_destroys_is_noticed(watched: Watched) -> None:
    watched.has(3, "2g.10gb", 0)
    assert watched.see(divided(0, instance(3, "2g.10gb", 0))) == ""
    watched.own.clear()
    watched.has(3, "2g.10gb", 0, PartState.LOST)
    assert "was destroyed" in watched.see(divided())
    watched.clock.advance(QUIET_S)
    assert watched.see(divided()) == "", "once"


def test_mode_that_goes_off_is_noticed_and_one_that_comes_on_is_not(watched: Watched) -> None:
    assert watched.see(divided(is_enabled=False)) == ""
    assert watched.see(divided()) == ""
    assert "switched off" in watched.see(divided(is_enabled=False))


@pytest.mark.parametrize("problem", [{"problem": "x"}, {"restriction": "y"}])
def test_card_that_is_read_in_part_says_nothing(watched: Watched, problem: dict[str, str]) -> None:
    assert watched.see(divided(0, instance(3, "2g.10gb", 0))) == ""
    assert watched.see(divided(**problem)) == ""  # type: ignore[arg-type]
    assert watched.see(divided(0, instance(3, "2g.10gb", 0))) == ""
    assert watched.see(card()) == "", "a card without MIG"
