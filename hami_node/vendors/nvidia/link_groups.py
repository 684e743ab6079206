"""Which cards to take by their links: the worst linked single card and the best linked set.

The combinations of a whole machine are never all tried: it is cut where all links across are equal
(`_split`), as between sockets or on a switch; parts of up to 8 cards have all their subsets
tabulated at once (`_tabulate`), and only a larger part without such a cut is searched, by branch
and bound (`_Search`). That search alone could take minutes, so it has a number of steps: within it
the answer is exact, beyond it the best that was found.

Ties: the combination that comes first when cards are listed in visit order. To have no ties at all,
a set's value is one integer, `pair sum << n | mask`, where the mask holds the card at position 0 as
its highest bit: among sets of equal size and sum the lexicographically first has the largest mask.
Values of disjoint sets add up, and the mask of the answer is read from the low bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hami_node.engine.card_rules import LinkSteps
from hami_node.model import PairScores, Uuid

SMALL_GROUP = 8
"""Up to so many cards, all subsets together cost less than finding symmetry would."""

Links = list[list[int]]
"""Square symmetric matrix in visit order, every score shifted left by the number of cards."""

Values = list[int]
"""Best value of 0, 1, 2, ... cards of one group."""


def link_score(card: Uuid, other: Uuid, scores: PairScores) -> int:
    """Score of a pair; the larger where both directions are given, 0 where none is."""
    there = scores.get(card, {}).get(other)
    back = scores.get(other, {}).get(card)
    if there is None or back is None:
        return there or back or 0
    return max(there, back)


def worst_single(candidates: Sequence[Uuid], scores: PairScores) -> int:
    """Position of the card whose links to the other candidates sum up lowest.

    This keeps well linked cards for requests of several cards. The first in visit order wins a tie.
    A divided card is there several times, and has no link to itself.

    Raises:
        ValueError: there is no candidate.
    """
    times = Counter(candidates)
    totals = {
        card: sum(
            link_score(card, other, scores) * count
            for other, count in times.items()
            if other != card
        )
        for card in times
    }
    return candidates.index(min(times, key=totals.__getitem__))


def best_set(
    candidates: Sequence[Uuid], count: int, scores: PairScores, steps: LinkSteps | None = None
) -> tuple[int, ...]:
    """Positions of the `count` cards with the highest sum of pair scores, ascending.

    A tie goes to the combination that is first in visit order. Under 1 ms for 8 of 16 cards on
    real machines; without any symmetry in the scores it costs more, up to all of `steps`, and then
    it is the best that was found.

    Raises:
        ValueError: count is not within 1 and the number of candidates.
    """
    size = len(candidates)
    if not 1 <= count <= size:
        raise ValueError(f"{count} of {size} cards can't be chosen")
    if count == size:
        return tuple(range(size))
    steps = LinkSteps() if steps is None else steps
    values = _best_values(_links(candidates, scores), tuple(range(size)), (count, count), steps)
    value = values[count]
    return tuple(position for position in range(size) if value >> (size - 1 - position) & 1)


def _links(candidates: Sequence[Uuid], scores: PairScores) -> Links:
    """Symmetric link matrix, shifted left to leave room for the mask."""
    size = len(candidates)
    rows = [[0] * size for _ in candidates]
    given = [scores.get(uuid, {}) for uuid in candidates]
    for a, card in enumerate(candidates):
        for b in range(a):
            there, back = given[a].get(candidates[b]), given[b].get(card)
            score = max(there, back) if there is not None and back is not None else there or back
            rows[a][b] = rows[b][a] = (score or 0) << size
    return rows


def _best_values(
    links: Links, members: tuple[int, ...], wanted: tuple[int, int], steps: LinkSteps
) -> Values:
    """Best value for each number of cards within `wanted`, lowest and highest, out of a group.

    Entries below the lowest may be wrong; callers don't read them.
    """
    low, high = wanted
    if len(members) <= SMALL_GROUP:
        return _tabulate(links, members)
    parts, link = _split(links, members)
    if len(parts) == 1:
        search = _Search(links, members, steps)
        return [search.best_value(count) if count >= low else 0 for count in range(high + 1)]
    values, seen = [0], 0
    for part in parts:
        seen += len(part)
        others = len(members) - len(part)
        of_part = (max(0, low - others), min(high, len(part)))
        own = _best_values(links, part, of_part, steps)
        floor = max(0, low - (len(members) - seen))
        values = _join(values, own, link, floor, min(high, seen))
    return values


def _tabulate(links: Links, members: tuple[int, ...]) -> Values:
    """Best values of a small group, from the values of all its subsets.

    The table doubles with every card, so each subset costs one addition and one comparison.
    """
    values, counts = [0], [0]
    for seen, card in enumerate(members):
        row, gains = links[card], [_weight(links, card)]
        for other in members[:seen]:
            link = row[other]
            gains += [gain + link for gain in gains] if link else gains
        values += map(int.__add__, values, gains)
        counts += [count + 1 for count in counts]
    best = [min(values)] * (len(members) + 1)
    for count, value in zip(counts, values, strict=True):
        best[count] = max(best[count], value)
    return best


def _weight(links: Links, position: int) -> int:
    """Mask bit of a card: the earlier in visit order, the higher."""
    return 1 << (len(links) - 1 - position)


def _split(links: Links, members: tuple[int, ...]) -> tuple[list[tuple[int, ...]], int]:
    """Cut a group into parts such that every pair across parts has the same link score.

    Switched machines fall apart into single cards, trees of PCIe bridges into their branches.
    Only scores of the first member can be that score. A single part means: no such cut.
    """
    first = members[0]
    for link in sorted({links[first][other] for other in members[1:]}):
        parts, left = [], set(members)
        while left:
            start = min(left)
            left.discard(start)
            part, border = [start], [start]
            while border:
                row = links[border.pop()]
                near = [other for other in left if row[other] != link]
                left.difference_update(near)
                part += near
                border += near
            parts.append(tuple(sorted(part)))
            if not left and len(parts) == 1:
                break
        if len(parts) > 1:
            return parts, link
    return [members], 0


def _join(some: Values, more: Values, link: int, low: int, high: int) -> Values:
    """Best values over two disjoint groups whose cross pairs all score `link`."""
    joined = [0] * (high + 1)
    for total in range(low, high + 1):
        fewest, most = max(0, total - len(more) + 1), min(total, len(some) - 1)
        joined[total] = max(
            some[taken] + more[total - taken] + link * taken * (total - taken)
            for taken in range(fewest, most + 1)
        )
    return joined


class _Search:
    """Branch and bound over one group. Values are doubled, so that the bound stays an integer."""

    def __init__(self, links: Links, members: tuple[int, ...], steps: LinkSteps) -> None:
        """Order the cards by the sum of their links: good sets are then met early."""
        self._steps = steps
        order = sorted(members, key=lambda card: (-sum(links[card][m] for m in members), card))
        self._rows = [[2 * links[card][other] for other in order] for card in order]
        self._weights = [2 * _weight(links, card) for card in order]
        self._reach: dict[tuple[int, int], list[int]] = {}

    def best_value(self, count: int) -> int:
        """Highest value of any `count` cards of the group that is found within the steps."""
        if count == 0:
            return 0
        return self._extend(0, self._weights, count, 0, self._greedy(count)) // 2

    def _greedy(self, count: int) -> int:
        """Value of a good set: start with the best linked card, add the best card each time."""
        gains, total, taken = self._weights, 0, 0
        left = set(range(len(self._rows)))
        for _ in range(count):
            total += gains[taken]
            left.discard(taken)
            gains = [gain + link for gain, link in zip(gains, self._rows[taken], strict=True)]
            taken = max(left, key=gains.__getitem__, default=taken)
        return total

    def _extend(self, start: int, gains: list[int], count: int, total: int, best: int) -> int:
        """Best value of a started set with `count` more cards from `start` on, or `best` if higher.

        Args:
            start: first card (in search order) that may still be taken.
            gains: what each card from `start` on would add to the started set.
            count: how many more cards are wanted, at least 1.
            total: value of the started set.
            best: highest value known.
        """
        if count == 1:
            return max(best, total + max(gains))
        for skipped in range(len(gains) - count + 1):
            rest = gains[skipped:]
            if total + self._most(start + skipped, rest, count) <= best or not self._steps.take(
                len(rest)
            ):
                break
            card = start + skipped
            more = list(map(int.__add__, rest[1:], self._rows[card][card + 1 :]))
            best = self._extend(card + 1, more, count - 1, total + rest[0], best)
        return best

    def _most(self, start: int, gains: list[int], count: int) -> int:
        """An upper bound for what `count` cards from `start` on can add.

        Each card adds its own gain and half of its links to the others; its best links are
        counted, whether or not they are possible together.
        """
        reach = self._reach.get((start, count))
        if reach is None:
            reach = self._reach[start, count] = [
                sum(sorted(row[start:card] + row[card + 1 :], reverse=True)[: count - 1]) // 2
                for card, row in enumerate(self._rows[start:], start)
            ]
        return sum(sorted(map(int.__add__, gains, reach))[-count:])
