"""Calls while the lead changes, in an event loop of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from hami_node.errors import NotLeading
from hami_node.extender.http import held_calls
from hami_node.extender.http.held_calls import Advice, HeldCalls, SentOn


class Lead:
    """Advice in a given order, the last for ever; work succeeds once it was AGAIN."""

    def __init__(self, *advice: Advice) -> None:
        self._advice, self.asked, self.worked = advice, 0, 0
        self.calls = HeldCalls(self.advise)

    def advise(self) -> Advice:
        self.asked += 1
        assert self.calls.running == 0, "a call that is held does not run"
        return self._advice[min(self.asked, len(self._advice)) - 1]

    async def work(self) -> str:
        self.worked += 1
        assert self.calls.running == 1
        if self.asked == 0 or self._advice[min(self.asked, len(self._advice)) - 1] is not (
            Advice.AGAIN
        ):
            raise NotLeading("not now")
        return "done"

    def answer(self) -> str:
        try:
            return asyncio.run(self.calls.answer(self.work))
        finally:
            assert self.calls.running == 0


def test_call_is_worked_on_as_soon_as_the_term_begins() -> None:
    lead = Lead(Advice.WAIT, Advice.WAIT, Advice.AGAIN)
    assert (lead.answer(), lead.worked) == ("done", 2)


def test_call_is_sent_on_once_another_replica_stands_there() -> None:
    lead = Lead(Advice.WAIT, Advice.ELSEWHERE)
    with pytest.raises(SentOn):
        lead.answer()
    assert lead.worked == 1


@pytest.mark.parametrize("advice", [(Advice.REFUSE,), (Advice.WAIT, Advice.REFUSE)], ids=str)
def test_call_is_refused_where_nothing_will_change(advice: tuple[Advice, ...]) -> None:
    with pytest.raises(NotLeading, match="not now"):
        Lead(*advice).answer()


def test_call_is_held_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_calls, "HOLD_S", 0.1)
    with pytest.raises(NotLeading):
        Lead(Advice.WAIT).answer()


def test_term_that_ends_again_and_again_holds_no_call_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_calls, "HOLD_S", 0.1)
    calls = HeldCalls(lambda: Advice.AGAIN)

    async def work() -> str:
        raise NotLeading("not now")

    with pytest.raises(NotLeading):
        asyncio.run(calls.answer(work))


def test_other_failures_are_passed_on() -> None:
    calls = HeldCalls(lambda: Advice.WAIT)

    def failing() -> Callable[[], None]:
        raise ValueError("bug")

    async def work() -> None:
        failing()

    with pytest.raises(ValueError, match="bug"):
        asyncio.run(calls.answer(work))
    assert calls.running == 0
