"""The pages of a list: of large objects a page has fewer, so that none fills the memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hami_node.cluster.calls import Query
from hami_node.cluster.transport.sender import PAGE_LIMIT
from hami_node.errors import AnswerTooLarge

PAGE_BYTES: Final = 32 << 20
"""500 usual pods have 5 MiB, 500 nodes 25; users may make pods of a MiB and more."""
_FEWER: Final = 8

SendPage = Callable[[Query, int | None], bytes]
"""Asks for a page with that query, of so many bytes at most."""


class Pages:
    """Of one list, one after another."""

    def __init__(self, send: SendPage, selector: Query) -> None:
        """Send through `send` what `selector` selects."""
        self._send, self._selector = send, selector
        self._limit = PAGE_LIMIT

    def fetch(self, token: str = "") -> bytes:
        """The page with this continue token; "" for the first.

        Raises:
            KubeError: it could not be fetched.
        """
        where: Query = (("continue", token),) if token else ()
        while True:
            query: Query = (*self._selector, ("limit", str(self._limit)), *where)
            try:
                body = self._send(query, PAGE_BYTES if self._limit > 1 else None)
            except AnswerTooLarge:
                self._limit = max(self._limit // _FEWER, 1)
                continue
            if 4 * len(body) < PAGE_BYTES:
                self._limit = min(self._limit * 2, PAGE_LIMIT)
            return body
