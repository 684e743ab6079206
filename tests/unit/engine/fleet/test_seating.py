"""Cards are dealt out to containers in any way: a node is only refused where there is none."""

from __future__ import annotations

import random
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_node.engine.fleet import seating
from hami_node.engine.fleet.seating import Seating
from hami_node.engine.fleet.summaries import Room
from hami_node.engine.fleet.together import Share

ROOMS = st.lists(
    st.builds(
        Room,
        st.sampled_from([4000, 8000, 16000]),
        st.sampled_from([0, 30, 70, 100]),
        st.booleans(),
        st.sampled_from([0, 1]),
        st.sampled_from([1, 2, 10]),
        st.sampled_from([0, 1]),
    ),
    max_size=4,
)
SHARES = st.lists(
    st.builds(
        lambda count, memory_mib, cores, idle, kinds: Share(
            count=count,
            memory_by_kind={kind: memory_mib for kind in kinds},
            cores=cores,
            idle_kinds=idle,
            is_alone=False,
        ),
        st.integers(1, 2),
        st.sampled_from([0, 4000, 5000, 9000]),
        st.sampled_from([0, 30, 70, 100]),
        st.sampled_from([0, 0, 1, 3]),
        st.sampled_from([(0,), (0, 1)]),
    ),
    min_size=2,
    max_size=3,
)


def holds(room: Room, shares: list[Share]) -> bool:
    if not shares:
        return True
    if room.cores <= 0 or len(shares) > room.slots:
        return False
    if any(room.kind not in share.memory_by_kind for share in shares):
        return False
    if any(share.idle_kinds >> room.kind & 1 for share in shares):
        return room.is_idle and len(shares) == 1 and fits(room, shares)
    return fits(room, shares)


def fits(room: Room, shares: list[Share]) -> bool:
    return (
        sum(share.memory_by_kind[room.kind] for share in shares) <= room.memory_mib
        and sum(share.cores for share in shares) <= room.cores
    )


def any_way(rooms: list[Room], shares: list[Share], *, is_bound: bool) -> bool:
    """By trying every choice of cards for every container."""
    numbers = range(len(rooms))
    choices = [
        [
            chosen
            for chosen in combinations(numbers, share.count)
            if not is_bound or len({rooms[number].numa for number in chosen}) == 1
        ]
        for share in shares
    ]
    return any(
        all(
            holds(
                rooms[number],
                [s for s, taken in zip(shares, dealt, strict=True) if number in taken],
            )
            for number in numbers
        )
        for dealt in product(*choices)
    )


@settings(max_examples=400)
@given(ROOMS, SHARES, st.booleans())
def test_no_node_is_refused_on_which_there_is_a_way(
    rooms: list[Room], shares: list[Share], is_bound: bool
) -> None:
    asked = Seating(shares, is_bound=is_bound)
    answer = asked.may_fit(rooms)
    assert answer or not any_way(rooms, shares, is_bound=is_bound)
    assert asked.may_fit(list(reversed(rooms))) == answer


def share(count: int, memory_mib: int, cores: int) -> Share:
    memory = {0: memory_mib}
    return Share(count=count, memory_by_kind=memory, cores=cores, idle_kinds=0, is_alone=False)


def idle(count: int, numa: int = 0) -> list[Room]:
    return [Room(16000, 100, True, 0, 10, numa) for _ in range(count)]


@pytest.mark.parametrize(
    ("shares", "rooms", "is_bound", "may_fit"),
    [
        pytest.param([(2, 4000, 30), (4, 4000, 71)], idle(5), False, False, id="one card too few"),
        pytest.param([(2, 4000, 30), (4, 4000, 71)], idle(6), False, True, id="enough cards"),
        pytest.param([(1, 4000, 50), (1, 4000, 50)], idle(1), False, True, id="beside each other"),
        pytest.param([(1, 9000, 50), (1, 9000, 50)], idle(1), False, False, id="memory together"),
        pytest.param([(2, 1, 60), (2, 1, 60)], idle(2) + idle(2, 1), True, True, id="numa each"),
        pytest.param([(3, 1, 60), (2, 1, 60)], idle(4) + idle(1, 1), True, False, id="numa short"),
        pytest.param([(3, 1, 60), (2, 1, 60)], idle(4) + idle(1, 1), False, True, id="not bound"),
    ],
)
def test_cards_are_dealt_out(
    shares: list[tuple[int, int, int]], rooms: list[Room], is_bound: bool, may_fit: bool
) -> None:
    asked = Seating([share(*each) for each in shares], is_bound=is_bound)
    assert asked.may_fit(rooms) is may_fit


def test_more_ways_than_are_followed_refuse_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = [share(2, 1, 60), share(2, 1, 61)]
    assert not Seating(shares, is_bound=False).may_fit(idle(3))
    assert Seating(shares, is_bound=False).is_asked
    monkeypatch.setattr(seating, "MOST_WAYS", 3)
    assert not Seating(shares, is_bound=False).is_asked
    monkeypatch.setattr(seating, "MOST_WAYS", 64)
    monkeypatch.setattr(seating, "MOST_OPEN", 1)
    assert Seating(shares, is_bound=False).may_fit(idle(3))
    assert Seating(shares, is_bound=True).may_fit(idle(3))


def test_work_for_one_node_has_an_end_and_then_refuses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Containers of different sizes on sixteen cards took half a second."""
    shares = [share(count, 3000 + 4000 * count, 9) for count in range(2, 8)]
    rooms = [Room(9000 + 4000 * n, 20 + 5 * n, False, 0, 10, n // 4) for n in range(16)]
    most = seating.MOST_STEPS

    def steps(limit: int) -> int:
        monkeypatch.setattr(seating, "MOST_STEPS", limit)
        asked = Seating(shares, is_bound=True)
        answer = asked.may_fit(rooms)
        assert answer or asked._left >= 0
        return limit - asked._left

    assert steps(100 * most) > 2 * most
    assert steps(most) > most, "the step that was one too many is not done"


@pytest.mark.parametrize("most_steps", [0, 10])
def test_with_too_few_steps_nothing_is_refused(
    monkeypatch: pytest.MonkeyPatch, most_steps: int
) -> None:
    monkeypatch.setattr(seating, "MOST_STEPS", most_steps)
    assert Seating([share(4, 8000, 50), share(5, 8000, 60)], is_bound=False).may_fit(idle(8))


def test_what_is_kept_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seating, "MOST_KEPT", 3)
    asked = Seating([share(2, 1, 60), share(1, 1, 61)], is_bound=True)
    for free_mib in range(20):
        assert not asked.may_fit([Room(free_mib, 100, True, 0, 10, 0), *idle(1, free_mib)])
        assert len(asked._cards) <= 3
        assert len(asked._nodes) <= 3
        assert len(asked._groups) <= 3


def test_nodes_of_which_no_two_are_alike_are_left_to_placing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pod of nine containers was searched for in 660 attempts of 16 ms, and is in 81."""
    shares = [share(count, 3000 + 4000 * count, 9) for count in range(2, 8)]
    asked, nodes = Seating(shares, is_bound=True), 200
    spent: list[int] = []
    take = Seating._take

    def counted(self: Seating, steps: int) -> None:
        spent.append(steps)
        take(self, steps)

    monkeypatch.setattr(Seating, "_take", counted)
    draw = random.Random(1)
    for _ in range(nodes):
        free = [(draw.randrange(9000, 80000), draw.randrange(1, 100)) for _ in range(16)]
        asked.may_fit([Room(*each, False, 0, 10, at // 4) for at, each in enumerate(free)])
    most = seating.MOST_AHEAD + nodes * len(shares) * seating.STEPS_A_SHARE
    assert sum(spent) <= most + 2 * seating.MOST_STEPS


def test_nodes_that_are_alike_are_passed_over_however_many_are_not() -> None:
    asked = Seating([share(4, 8000, 50), share(5, 8000, 60)], is_bound=False)
    assert not asked.may_fit(idle(8))
    asked._spare = -1_000_000
    assert not asked.may_fit(idle(8))
    assert asked.may_fit([*idle(7), Room(9000, 55, False, 0)])
