"""Link scores of real machines: 10 to 60 for the PCIe way, 100 more for each NVLink."""

from __future__ import annotations

from collections.abc import Callable

from hami_node.model import PairScores, Uuid

Link = Callable[[int, int], int]
"""Score of a pair; called with the lower card first."""

NVLINKS_DGX1 = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def _tree(*levels: int) -> Link:
    """PCIe tree: cards with the same `card // level` hang on one bridge; the first match counts."""

    def link(a: int, b: int) -> int:
        same = (60 - 10 * i for i, level in enumerate(levels) if a // level == b // level)
        return next(same, 10)

    return link


def _dgx1(a: int, b: int) -> int:
    return 100 * NVLINKS_DGX1.get((a, b), 0) + _tree(2, 4)(a, b)


def _two_boards(a: int, b: int) -> int:
    return _dgx1(a % 8, b % 8) if a // 8 == b // 8 else 10


def _bridged(a: int, b: int) -> int:
    return _tree(2, 4, 8)(a, b) + (400 if (a, b) in ((0, 9), (3, 4)) else 0)


def _torus(a: int, b: int) -> int:
    rows, columns = abs(a // 4 - b // 4), abs(a % 4 - b % 4)
    return 100 if min(rows, 4 - rows) + min(columns, 4 - columns) == 1 else 10


LAYOUTS: dict[str, tuple[int, Link]] = {
    "DGX-1 V100 cube mesh": (8, _dgx1),
    "two DGX-1 boards": (16, _two_boards),
    "HGX 8 NVSwitch": (8, lambda *_: 1810),
    "DGX-2 NVSwitch": (16, lambda *_: 610),
    "DGX-2, one link down": (16, lambda a, b: 510 if (a, b) == (3, 11) else 610),
    "PCIe 8, two sockets": (8, _tree(2, 4)),
    "PCIe 16, two sockets": (16, _tree(2, 4, 8)),
    "PCIe 16, 8 + 8, no switches": (16, _tree(8)),
    "PCIe 16, uneven sockets": (16, lambda a, b: 20 if (a < 5) == (b < 5) else 10),
    "PCIe 16, NVLink bridges": (16, _bridged),
    "PCIe 16, bridged pairs": (16, lambda a, b: _tree(4, 8)(a, b) + (400 if b == a + 8 else 0)),
    "torus 4x4": (16, _torus),
}


def scores_of(size: int, link: Link) -> tuple[tuple[Uuid, ...], PairScores]:
    """Cards and their pair scores in both directions."""
    cards = tuple(Uuid(f"GPU-{number:02}") for number in range(size))
    half = {(a, b): link(a, b) for a in range(size) for b in range(a + 1, size)}
    return cards, {
        cards[a]: {cards[b]: half[min(a, b), max(a, b)] for b in range(size) if b != a}
        for a in range(size)
    }
