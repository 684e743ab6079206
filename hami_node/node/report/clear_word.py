"""An operator's word on the node object that cards need no reset any more.

Whoever may edit nodes may say it; pods can't.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from hami_node.logs import kv
from hami_node.model import Node, Uuid
from hami_node.vendors.on_node.publication import Publication
from hami_node.wire import names

log = logging.getLogger(__name__)

Clear = Callable[[Collection[Uuid] | None], tuple[Uuid, ...]]


class ClearWord(Publication):
    """Takes the word off the node, and acts on it once, however often that is tried.

    A word that came too late is for the next daemon.
    """

    def __init__(self, clears: Sequence[Clear]) -> None:
        """`clears` are `Backend.clear_errors` of all resources."""
        self._clears = tuple(clears)
        self._done: str | None = None

    def desired(self, node: Node, now: float) -> Mapping[str, str | None]:
        """The word is gone."""
        del now
        text = node.annotations.get(names.NODE_CLEAR_ERRORS)
        if text is not None and text != self._done:
            self._act(text)
        self._done = text
        return {names.NODE_CLEAR_ERRORS: None}

    def _act(self, text: str) -> None:
        words = {word.strip() for word in text.split(",")} - {""}
        named = None if names.CLEAR_ALL in words else frozenset(map(Uuid, words))
        cleared = {uuid for clear in self._clears for uuid in clear(named)}
        log.warning("card_errors_cleared", extra=kv(cards=sorted(cleared), by="an operator"))
        unknown = sorted((named or frozenset()) - cleared)
        if unknown:
            log.warning("card_errors_not_found", extra=kv(cards=[word[:64] for word in unknown]))
