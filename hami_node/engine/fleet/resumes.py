"""Where a search goes on that was put off before it had an answer."""

from __future__ import annotations

from typing import Final

from hami_node.engine.fleet.summaries import Key
from hami_node.engine.place import PodRequest

MOST_REQUESTS: Final = 4_096
"""Requests of which this is known; of more, the oldest start over."""


class Resumes:
    """By request, whatever is left of its quota and however much else is forgotten of it.

    Requests may be large and are not kept, only their hashes: should two be equal, one search
    begins at another node than it would, and no answer is wrong. Not thread-safe.
    """

    def __init__(self) -> None:
        """Start without searches."""
        self._stopped: dict[int, Key] = {}
        self._after: dict[int, Key] = {}

    def after(self, request: PodRequest) -> Key | None:
        """The key after which the next search begins; None for the best node."""
        return self._after.get(hash(request)) if self._after else None

    def stop(self, request: PodRequest, at: Key | None) -> None:
        """A search ran out of time at this key."""
        if at is not None:
            _note(self._stopped, hash(request), at)

    def put_off(self, request: PodRequest) -> None:
        """The next search begins where the last one stopped."""
        number = hash(request)
        at = self._stopped.pop(number, None)
        if at is not None:
            _note(self._after, number, at)

    def end(self, request: PodRequest) -> None:
        """A search came to an answer."""
        if self._stopped or self._after:
            number = hash(request)
            self._stopped.pop(number, None)
            self._after.pop(number, None)


def _note(keys: dict[int, Key], number: int, key: Key) -> None:
    keys.pop(number, None)
    keys[number] = key
    if len(keys) > MOST_REQUESTS:
        del keys[next(iter(keys))]
