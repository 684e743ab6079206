"""The names of candidates: thousands in each call, of which a decision asks about one or two."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import msgspec

FEW_LOOKS: Final = 4
"""So often a name is searched in the bytes, which takes less time than to decode them all."""

_DECODER: Final = msgspec.json.Decoder(list[str])


class NodeNames(Collection[str]):
    """The names in a JSON list, each once; decoded when that is needed. For one thread."""

    __slots__ = ("_looks", "_names", "_raw")

    def __init__(self, raw: bytes) -> None:
        """Take valid JSON that `is_plain`."""
        self._raw, self._names, self._looks = raw, dict[str, None](), 0

    def __contains__(self, name: object) -> bool:
        """Whether it is one of them."""
        if not self._names and self._looks < FEW_LOOKS and isinstance(name, str):
            self._looks += 1
            return b'"%b"' % name.encode("utf-8", "replace") in self._raw
        return name in self._decoded()

    def __iter__(self) -> Iterator[str]:
        """In the order in which they were sent."""
        return iter(self._decoded())

    def __len__(self) -> int:
        """How many; until they are decoded, one that is there twice counts twice."""
        return len(self._names) or self._raw.count(b'"') // 2

    def _decoded(self) -> dict[str, None]:
        if not self._names:
            self._names = dict.fromkeys(_DECODER.decode(self._raw))
        return self._names


def is_plain(raw: bytes) -> bool:
    """Whether valid JSON is a list of simple strings, so that each is found by its bytes.

    With as many pairs of quotes as elements, and nothing inside that could be one, every element is
    a string, and none has a comma, a quote or an escape in it.
    """
    return (
        raw.startswith(b'["')
        and raw.isascii()
        and raw.count(b"[") == 1
        and not (b"\\" in raw or b"{" in raw)
        and raw.count(b'"') == 2 * (raw.count(b",") + 1)
    )
