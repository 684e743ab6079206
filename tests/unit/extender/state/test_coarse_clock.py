"""A clock whose readings many objects share."""

from hami_node.extender.state.counted_pod import STEP_S, CoarseClock
from tests.fakes.clock import FakeClock


def test_one_number_for_all_that_ask_within_a_step() -> None:
    """200,000 pods that are listed at once hold a few hundred numbers, not 400,000."""
    clock = FakeClock()
    coarse = CoarseClock(clock)
    first = coarse.monotonic()
    clock.advance(STEP_S / 2)
    assert coarse.monotonic() is first


def test_never_further_behind_than_a_step() -> None:
    """Waits of seconds are counted from it."""
    clock = FakeClock()
    coarse = CoarseClock(clock)
    for step_s in (STEP_S * 0.9, STEP_S * 0.9, STEP_S, 300.0, STEP_S / 3):
        before = coarse.monotonic()
        clock.advance(step_s)
        assert before <= coarse.monotonic() <= clock.monotonic()
        assert clock.monotonic() - coarse.monotonic() < STEP_S
