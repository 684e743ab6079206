"""Why each node can't take a pod: worked out once for nodes, and for cards, that are alike."""

from __future__ import annotations

from collections import Counter

from hami_node.engine.filters import (
    BEFORE_NUMA,
    FitContext,
    Reason,
    Rejection,
    after_numa,
    first_failing,
)
from hami_node.engine.outline import NOBODY
from hami_node.engine.place import ContainerAsks, Plan, place_on
from hami_node.engine.seat import Catalogue, Seat
from hami_node.model import Ask, Mode, Uuid, Vendor

_FITS = object()
_OTHER_VENDOR = object()


class Explainer:
    """Answers for one request, node by node; forget it after any change to the fleet."""

    def __init__(self, ready: Plan, catalogue: Catalogue) -> None:
        """Look at the request once."""
        self._plan = ready
        self._catalogue = catalogue
        self._nodes: dict[tuple[int, ...], Rejection | None] = {}
        self._cards: dict[int, object] = {}
        self._rules = (*BEFORE_NUMA, *after_numa(ready.compat))
        asking = [container for container in ready.request.containers if container.asks]
        self._is_single = len(asking) == 1 and len(asking[0].asks) == 1
        self._ask = None if not asking else _simple_ask(asking[0])

    def rejection(self, seat: Seat, *, is_named: bool) -> Rejection | None:
        """Why the node can't take the pod, or None when it can.

        `is_named` says that the request names one of its cards, so that it is like no other node.
        """
        if is_named:
            return self._full(seat)
        key = seat.states
        if key not in self._nodes:
            self._nodes[key] = self._counted(seat)
        return self._nodes[key]

    def _full(self, seat: Seat) -> Rejection | None:
        answer = place_on(seat.offer(), self._plan)
        return answer if isinstance(answer, Rejection) else None

    def _counted(self, seat: Seat) -> Rejection | None:
        """Count the reasons of cards known from other nodes, where that is all there is to it."""
        ask = self._ask
        if ask is None or self._plan.request.wishes.is_numa_bound or _has_mig(seat):
            return self._full(seat)
        answers = [self._card(state, ask) for state in seat.states]
        own = [answer for answer in answers if answer is not _OTHER_VENDOR]
        if ask.count > len(own):
            return Rejection(whole=Reason.TOO_FEW_CARDS)
        fitting = own.count(_FITS)
        if fitting >= ask.count and self._is_single and self._plan.quota is None:
            return None
        if fitting >= ask.count or (fitting and self._plan.quota is not None):
            return self._full(seat)
        counts = Counter(answer for answer in own if isinstance(answer, Reason))
        if fitting:
            is_each = self._plan.compat.reasons_count_cards
            counts[Reason.TOO_FEW_CARDS_FIT] = fitting if is_each else 1
        return Rejection.of(counts, len(own))

    def _card(self, state: int, ask: Ask) -> object:
        answer = self._cards.get(state)
        if answer is None:
            card, is_cordoned = self._catalogue.card(state)
            if card.device.vendor is not ask.vendor:
                answer = _OTHER_VENDOR
            else:
                ctx = self._context(ask, is_cordoned=is_cordoned)
                answer = first_failing(card, ctx, self._rules) or _FITS
            self._cards[state] = answer
        return answer

    def _context(self, ask: Ask, *, is_cordoned: bool) -> FitContext:
        quota = self._plan.quota
        cordoned: frozenset[Uuid] = frozenset({NOBODY}) if is_cordoned else frozenset()
        return self._plan.context(ask, cordoned, quota)


def _simple_ask(container: ContainerAsks) -> Ask | None:
    """The container's ask where reasons are counted card by card: NVIDIA's alone."""
    if len(container.asks) == 1 and container.asks[0].vendor is Vendor.NVIDIA:
        return container.asks[0]
    return None


def _has_mig(seat: Seat) -> bool:
    return any(card.device.mode == Mode.MIG for card in seat.usage.cards.values())
