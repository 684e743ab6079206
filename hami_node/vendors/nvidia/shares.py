"""Cards that are cut into equal shares: how many each, and what the resources are called. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Self

from hami_node.errors import ConfigError
from hami_node.model import Device
from hami_node.setting_types import WrittenValue
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.mode import Mode

MAX_SHARES: Final = 100
"""A share of a card's cores is at least 1 %: 0 would mean no limit."""
MAX_CARDS: Final = 256
MAX_NAME_CHARS: Final = 63
"""Of a resource's name, after its prefix."""
OTHERS: Final = "*"
"""In place of a card: every card that is not named."""

_NAMED: Final = re.compile(r"-1of([1-9][0-9]{0,2})\Z")


class CardShares(WrittenValue):
    """In how many equal shares each card is cut.

    Written as one number for all cards, or by number or UUID of the card: `{"0": 2, "*": 4}`, as
    text `0=2,*=4`. A card that is not named, where `*` is not either, is left alone.
    """

    def __init__(self, by_card: Mapping[str, int]) -> None:
        """`by_card`: the number of shares by a card's number or UUID, or by `*`."""
        self._by_card = MappingProxyType(dict(by_card))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CardShares) and self._by_card == other._by_card

    def __hash__(self) -> int:
        return hash(frozenset(self._by_card.items()))

    def __repr__(self) -> str:
        return f"CardShares({dict(self._by_card)})"

    @classmethod
    def read(cls, value: object) -> Self:
        """The value as written; see the class.

        Raises:
            ValueError: none of the forms, or a number of shares that can't be.
        """
        if isinstance(value, str):
            value = _from_text(value)
        if isinstance(value, int):
            value = {OTHERS: value}
        if not isinstance(value, Mapping) or not 1 <= len(value) <= MAX_CARDS:
            raise ValueError("no number and no numbers by card")
        found = {_card(key): _count(count) for key, count in value.items()}
        if len(found) < len(value):
            raise ValueError("a card is named twice")
        return cls(found)

    def plain(self) -> object:
        """As written, for people."""
        if self._by_card.keys() == {OTHERS}:
            return self._by_card[OTHERS]
        return dict(sorted(self._by_card.items()))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Every number of shares, each once."""
        return tuple(sorted(set(self._by_card.values())))

    def of(self, card: Device) -> int | None:
        """The number of shares of a card, by its UUID first; None for a card to be left alone."""
        keys = (card.uuid, str(card.index), OTHERS)
        return next((self._by_card[key] for key in keys if key in self._by_card), None)


def _from_text(text: str) -> object:
    if "=" not in text:
        return _number(text)
    pairs = [item.partition("=") for item in text.split(",") if item.strip()]
    cards = [card.strip() for card, _, _ in pairs]
    if len(set(cards)) < len(cards):
        raise ValueError("a card is named twice")
    return {card.strip(): _number(count) for card, _, count in pairs}


def _number(text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_SHARES))):
        raise ValueError("no number of shares")
    return int(text)


def _card(key: object) -> str:
    if isinstance(key, int) and not isinstance(key, bool) and key >= 0:
        return str(key)
    if not isinstance(key, str) or not key or key != key.strip():
        raise ValueError("no card")
    if key.isdecimal() and key != str(int(key)):
        raise ValueError("no number of a card")
    return key


def _count(count: object) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_SHARES:
        raise ValueError("no number of shares")
    return count


def share_resource(resource: str, shares: int) -> str:
    """The resource of a card's `shares`-th part; `resource` is that of whole cards."""
    return f"{resource}-1of{shares}"


def shares_in(name: str, resource: str) -> int:
    """In how many shares a card is cut that is offered under this name; 0 for any other name."""
    if not name.startswith(resource):
        return 0
    shares = shares_named(name)
    return shares if name == share_resource(resource, shares) else 0


def shares_named(name: str) -> int:
    """The number at the end of a resource that is named like a share; 0 for any other name."""
    found = _NAMED.search(name)
    shares = int(found[1]) if found is not None else 0
    return shares if shares <= MAX_SHARES else 0


def share_of(card: Device, count: int, shares: int) -> tuple[int, int]:
    """Memory in MiB and percent of the cores of `count` shares; all of them are the whole card."""
    return card.memory_mib * count // shares, card.cores * count // shares


def misnamed(resources: Mapping[str, str]) -> list[ConfigError]:
    """What is wrong with names of resources that a scheduler places, by their setting's field.

    A name is one of a share, of a MIG instance or of something that a scheduler places, on every
    node.
    """
    return [
        ConfigError("settings", field.replace("_", "-"), name, f"{why}; choose another")
        for field, name in resources.items()
        if (why := _meaning(name))
    ]


def _meaning(name: str) -> str:
    if shares_named(name):
        return "a name that ends in -1ofN is one of a fixed share"
    prefix = names.RESOURCE_MIG
    is_instance = name.startswith(prefix)
    return f"a name that begins with {prefix} is one of MIG instances" if is_instance else ""


def contradictions(
    shares: CardShares, resource: str, *, memory_scaling: float, core_scaling: float, mode: Mode
) -> list[ConfigError]:
    """What can't be together with fixed shares, which are parts of what a card really has."""
    most, longest = max(shares.sizes), share_resource(resource, max(shares.sizes))
    real = "shares are parts of what a card really has: with standalone at most 1"
    found = {
        "memory-scaling": (memory_scaling, real if memory_scaling > 1 else ""),
        "core-scaling": (core_scaling, real if core_scaling > 1 else ""),
        "operating-mode": (
            mode,
            "" if mode is Mode.HAMI_CORE else f"standalone shares cards as {Mode.HAMI_CORE} does",
        ),
        "standalone-shares": (
            most,
            "with this core-scaling a share would have less than 1 % of a card's cores"
            if int(100 * core_scaling) < most
            else "",
        ),
        "resource-count": (
            resource,
            f"{longest} is longer than Kubernetes allows"
            if len(longest.partition("/")[2]) > MAX_NAME_CHARS
            else "",
        ),
    }
    return [
        ConfigError("settings", flag, value, hint) for flag, (value, hint) in found.items() if hint
    ]
