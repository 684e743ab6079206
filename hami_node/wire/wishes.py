"""A pod's wishes and a node's cordon list, read from their annotations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hami_node.model import Uuid, UuidWish
from hami_node.wire import names

_NOTHING_CORDONED: Final[frozenset[Uuid]] = frozenset()
"""One for all nodes: an empty set made of something is a new object."""


def decode_words(text: str | None) -> tuple[str, ...]:
    """The words of a list separated by commas; blanks around and between them are ignored."""
    words = (word.strip() for word in (text or "").split(","))
    return tuple(word for word in words if word)


def decode_uuid_wish(annotations: Mapping[str, str], use: str, nouse: str) -> UuidWish:
    """Which cards are wished and not wished under these keys; an empty list is no wish.

    Source: HAMi device/devices.go:693-738.
    """
    wanted = decode_words(annotations.get(use))
    return UuidWish(
        use=frozenset(wanted) if wanted else None,
        nouse=frozenset(decode_words(annotations.get(nouse))),
    )


def decode_cordon(annotations: Mapping[str, str]) -> frozenset[Uuid]:
    """The cordoned cards of this node; never raises."""
    words = decode_words(annotations.get(names.NODE_CORDON))
    return frozenset(map(Uuid, words)) if words else _NOTHING_CORDONED
