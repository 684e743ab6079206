"""A driver that takes its time holds up its own card, and nobody who only asks."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hami_node.errors import AllocationError
from hami_node.model import Uuid
from hami_node.vendors.divided import PartState
from tests.fakes.mig_driver import FakeCard
from tests.fakes.mig_node import MigNode, row
from tests.fakes.waiting import eventually
from tests.reliability import shows


@pytest.fixture
def node(tmp_path: Path) -> MigNode:
    return MigNode(tmp_path, {"GPU-0": FakeCard(), "GPU-1": FakeCard()})


@shows(
    "G9",
    fault="a driver's call about an instance of one card takes very long",
    happens="the other cards' pods are served, passes go on, and what is on record is shown; a "
    "second pod on that card is refused at its deadline",
)
def test_slow_call_on_one_card_holds_up_neither_other_cards_nor_readers(node: MigNode) -> None:
    free = threading.Event()
    node.driver.during["make_ci"] = free.wait
    slow = threading.Thread(target=node.serve, args=("a", row("1g.5gb", 0)), daemon=True)
    slow.start()
    try:
        eventually(lambda: Uuid("GPU-0") in node.keeper.in_use())
        eventually(lambda: [kept.state for kept in node.kept()] == [PartState.MAKING])
        del node.driver.during["make_ci"]
        node.serve("b", row("1g.5gb", 0, card="GPU-1"))
        node.keep()
        assert set(node.keeper.in_use()) == {"GPU-0"}
        assert "MIG instance is made" in node.keeper.in_use()[Uuid("GPU-0")]
        with pytest.raises(AllocationError, match="has taken too long to wait for"):
            node.ask("c", row("1g.5gb", 1), within_s=0.05)
    finally:
        free.set()
        slow.join()
    node.end("c")
    node.settle()
    node.assert_whole()
    assert node.keeper.in_use() == {}


def test_pass_leaves_a_card_alone_on_which_an_instance_is_made(node: MigNode) -> None:
    """It would take the half-made instance for one that was left behind."""
    free = threading.Event()
    node.driver.during["make_ci"] = free.wait
    slow = threading.Thread(target=node.serve, args=("a", row("1g.5gb", 0)), daemon=True)
    slow.start()
    try:
        eventually(lambda: [kept.state for kept in node.kept()] == [PartState.MAKING])
        node.keep()
        assert node.next_s == 1.0
        assert node.names() == ["1g.5gb@0?"]
    finally:
        free.set()
        slow.join()
    node.settle()
    node.assert_whole()


def test_many_pods_and_passes_at_once_end_as_one_after_the_other(node: MigNode) -> None:
    def live(card: str, start: int) -> None:
        for turn in range(5):
            pod = f"{card}-{start}-{turn}"
            node.serve(pod, row("1g.5gb", start, card=card))
            node.end(pod)

    stop = threading.Event()

    def look_after() -> None:
        while not stop.is_set():
            node.keep()

    keeper = threading.Thread(target=look_after, daemon=True)
    pods = [
        threading.Thread(target=live, args=(card, start), daemon=True)
        for card in ("GPU-0", "GPU-1")
        for start in range(4)
    ]
    node.keep()
    keeper.start()
    for thread in pods:
        thread.start()
    for thread in pods:
        thread.join()
    stop.set()
    keeper.join()
    node.serve("last", row("1g.5gb", 6))
    node.settle()
    node.assert_whole()
