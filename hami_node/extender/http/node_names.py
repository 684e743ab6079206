"""The names of candidates, decoded once: nearly every call of kube-scheduler has the same list."""

from __future__ import annotations

from typing import Final

from hami_node.extender.caller_limits import MAX_NODES, check_count

REMEMBERED: Final = 4
"""Lists: one for each kind of pod that is scheduled just now, by its node selector."""
MAX_BYTES: Final = 1024 * 1024
"""A longer list, of 20,000 names, is decoded each time."""


class NodeNames:
    """The last few lists, by their bytes. Thread-safe: they are replaced as a whole."""

    def __init__(self) -> None:
        """Remember nothing."""
        self._known: tuple[tuple[bytes, tuple[str, ...]], ...] = ()

    def find(self, raw: bytes) -> tuple[str, ...] | None:
        """The same tuple as for equal bytes before; None where they are not remembered."""
        return next((names for known, names in self._known if known == raw), None)

    def keep(self, raw: bytes, given: list[str]) -> tuple[str, ...]:
        """The names, each once, of bytes that were decoded. Raises WireError for too many."""
        check_count("NodeNames", given, MAX_NODES)
        names = tuple(dict.fromkeys(given))
        if len(raw) <= MAX_BYTES:
            self._known = ((raw, names), *self._known[: REMEMBERED - 1])
        return names
