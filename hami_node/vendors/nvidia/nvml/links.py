"""How well two cards are linked: PCI distance and NVLinks as a number per pair."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from hami_node.errors import DeviceLost, DriverUnavailable
from hami_node.logs import kv
from hami_node.model import PairScores, Uuid
from hami_node.ports import Clock
from hami_node.vendors.nvidia.nvml.calls import (
    INVALID_ARGUMENT,
    NOT_FOUND,
    NOT_OFFERED,
    NvmlCalls,
    of_one_card,
)

log = logging.getLogger(__name__)

NVLINK_SCORE: Final = 100
LINKS_RETRY_S: Final = 60.0
"""Longest pause between two readings of the links while a card does not answer about its own."""
_BEST_LEVEL_SCORE: Final = 60
_MAX_LINKS: Final = 36
_REMOTE_GPU: Final = 0
_REMOTE_SWITCH: Final = 2
_NO_LINK: Final = NOT_OFFERED | {INVALID_ARGUMENT, NOT_FOUND}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedCard:
    """A card whose links to the others are read."""

    index: int
    uuid: Uuid
    handle: Any
    pci_bus: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Links:
    """NVLinks of one card: how many end in a switch, and at which other cards' buses."""

    to_switch: int
    to_bus: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReading:
    """The scores of all pairs that answered, and why others did not."""

    scores: PairScores
    faults: tuple[str, ...] = ()


class LinkReader:
    """The scores of the cards in the list, read again only when the answering cards change."""

    def __init__(self, clock: Clock) -> None:
        """Knows of no card."""
        self._clock = clock
        self._is_first = True
        self._cards: tuple[LinkedCard, ...] = ()
        self._due_s = self._pause_s = 0.0
        self._scores: PairScores = {}

    def scores(self, calls: NvmlCalls, cards: tuple[LinkedCard, ...]) -> PairScores:
        """Those of these cards; never read in the first pass.

        The first list of cards must not wait for some hundred calls about links.
        """
        if self._is_first:
            self._is_first = False
            return self._scores
        positions = [(card.index, card.uuid) for card in cards]
        is_known = positions == [(card.index, card.uuid) for card in self._cards]
        if is_known or self._clock.monotonic() < self._due_s:
            return self._scores
        try:
            found = read_pair_scores(calls, cards)
        except DriverUnavailable as e:
            log.warning("nvml_links_unknown", extra=kv(reason=str(e)))
            return self._scores
        self._scores = found.scores
        if not found.faults:
            self._cards, self._pause_s = cards, 0.0
            return self._scores
        if not self._pause_s:
            log.warning("nvml_links_unknown", extra=kv(reason="; ".join(found.faults)))
        self._due_s = self._clock.monotonic() + self._pause_s
        self._pause_s = min(max(self._pause_s * 2, 1.0), LINKS_RETRY_S)
        return self._scores


def read_pair_scores(calls: NvmlCalls, cards: tuple[LinkedCard, ...]) -> LinkReading:
    """For every card the score of every other: 10 (across sockets) to 60 (same board) + 100 a link.

    A card that does not answer about its links has no scores; the others have theirs. Links
    through an NVSwitch count for every card on the switches.

    Check: nvidia-smi topo -m (NV# is the number of links). Source: HAMi's scores, P2P
    level 10 to 60 plus 100 per NVLink.

    Raises:
        DriverUnavailable: see `NvmlCalls.ask`.
    """
    links: dict[Uuid, _Links] = {}
    faults: dict[Uuid, str] = {}
    for card in cards:
        try:
            with of_one_card():
                links[card.uuid] = _read_links(calls, card)
        except DeviceLost as e:
            faults[card.uuid] = f"card {card.index}: {e}"
    scores: dict[Uuid, dict[Uuid, int]] = {}
    for i, card in enumerate(cards):
        for other in cards[i + 1 :]:
            if card.uuid in faults or other.uuid in faults:
                continue
            here, there = links[card.uuid], links[other.uuid]
            direct = max(here.to_bus.get(other.pci_bus, 0), there.to_bus.get(card.pci_bus, 0))
            switched = min(here.to_switch, there.to_switch)
            try:
                with of_one_card():
                    level = _level_score(calls, card, other)
            except DeviceLost as e:
                faults[card.uuid] = f"card {card.index}: {e}"
                continue
            score = level + NVLINK_SCORE * (direct + switched)
            scores.setdefault(card.uuid, {})[other.uuid] = score
            scores.setdefault(other.uuid, {})[card.uuid] = score
    return LinkReading(scores=scores, faults=tuple(faults.values()))


def _level_score(calls: NvmlCalls, card: LinkedCard, other: LinkedCard) -> int:
    """NVML's levels are 0 (same board) to 50 (across sockets); an unknown level scores 0."""
    level = calls.ask(
        "nvmlDeviceGetTopologyCommonAncestor",
        card.handle,
        other.handle,
        card=card.index,
        absent=_NO_LINK,
    )
    if level is None or not 0 <= level <= _BEST_LEVEL_SCORE:
        return 0
    return _BEST_LEVEL_SCORE - int(level)


def _read_links(calls: NvmlCalls, card: LinkedCard) -> _Links:
    to_switch, to_bus = 0, dict[str, int]()
    for link in range(_MAX_LINKS):
        args: tuple[Any, int] = (card.handle, link)
        state = calls.ask("nvmlDeviceGetNvLinkState", *args, card=card.index, absent=_NO_LINK)
        if state is None:
            break  # the card has no NVLinks, or no more
        if not state:
            continue
        remote = calls.ask(
            "nvmlDeviceGetNvLinkRemoteDeviceType", *args, card=card.index, absent=_NO_LINK
        )
        if remote == _REMOTE_SWITCH:
            to_switch += 1
        elif remote in (None, _REMOTE_GPU):
            pci = calls.ask(
                "nvmlDeviceGetNvLinkRemotePciInfo", *args, card=card.index, absent=_NO_LINK
            )
            if pci is not None:
                bus = (
                    pci.busId if isinstance(pci.busId, str) else pci.busId.decode(errors="replace")
                )
                to_bus[bus] = to_bus.get(bus, 0) + 1
    return _Links(to_switch=to_switch, to_bus=to_bus)
