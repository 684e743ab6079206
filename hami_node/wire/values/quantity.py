"""Kubernetes quantities as text: `4096`, `1.5k`, `8Ki`, `500m`, `2e3`."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from hami_node.errors import WireError

MAX_QUANTITY: Final = 2**63 - 1
_FORM: Final = re.compile(
    r"([+-]?)(?=\.?\d)(\d*)(?:\.(\d*))?"
    r"(?:(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE])|[eE]([+-]?\d{1,5}))?",
    re.ASCII,
)
_PLAIN: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_SUFFIXES: Final[dict[str, Fraction]] = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    **{name: Fraction(1000 ** (i + 1)) for i, name in enumerate("kMGTPE")},
    **{f"{name}i": Fraction(1024 ** (i + 1)) for i, name in enumerate("KMGTPE")},
}
_LONGEST: Final = 100
_WIDEST_EXPONENT: Final = 40


def parse_quantity(text: str, key: str) -> Fraction:
    """The exact value of a quantity; values beyond 2^63-1 are cut to it, as upstream does.

    Raises:
        WireError: not a quantity; it names `key` and what to write.
    """
    found = _FORM.fullmatch(text) if len(text) <= _LONGEST else None
    if not found:
        raise WireError(key, text, "not a Kubernetes quantity such as 4096, 8Ki or 500m")
    sign, whole, decimals, suffix, exponent = found.groups()
    decimals = decimals or ""
    value = Fraction(int(whole + decimals or "0"), 10 ** len(decimals))
    if suffix:
        value *= _SUFFIXES[suffix]
    elif exponent and value:
        # A huge exponent is cut before it costs time: such values need no distinction.
        power = max(-_LONGEST - _WIDEST_EXPONENT, min(int(exponent), _LONGEST + _WIDEST_EXPONENT))
        value *= Fraction(10) ** power
    value = min(value, Fraction(MAX_QUANTITY))
    return -value if sign == "-" else value


def parse_whole_quantity(text: str, key: str) -> int:
    """The value of a quantity that has to be a whole number.

    Raises:
        WireError: not a quantity, or not whole; it names `key` and what to write.
    """
    if _PLAIN.fullmatch(text):
        return int(text)
    value = parse_quantity(text, key)
    if value.denominator != 1:
        raise WireError(key, text, "has to be a whole number")
    return value.numerator
