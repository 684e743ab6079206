"""Values inside annotations and objects: JSON, JSON pointers, quantities, numbers."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from functools import lru_cache
from typing import Final, TypeVar

import msgspec

from hami_node.errors import WireError

T = TypeVar("T")


def decode_json(decoder: msgspec.json.Decoder[T], raw: str | bytes, key: str) -> T:
    """Decode with a typed decoder.

    Raises:
        WireError: not JSON, not of that shape, not Unicode, or nested too deeply.
    """
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        shown = raw if isinstance(raw, str) else raw[:80].decode("utf-8", "replace")
        raise WireError(key, shown, str(error)) from error


def encode_json_text(value: object) -> str:
    """Compact JSON, members in the order given: the same value is the same text."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def pointer(*steps: str) -> str:
    """The JSON pointer that takes these steps; each may hold any character."""
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)


def annotation_pointer(key: str) -> str:
    """The JSON pointer to an annotation."""
    return pointer("metadata", "annotations", key)


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


MAX_INT32: Final = 2**31 - 1
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}")
_MOST_DIGITS: Final = 20
"""With the sign; nothing longer matches, and none is remembered."""
TRUE_WORDS: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
"""Go's spellings of true. Source: strconv.ParseBool."""
_FALSE_WORDS: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def parse_whole(text: str, key: str) -> int:
    """Read a whole decimal number of at most 32 bits: no blanks, underscores or other bases.

    Raises:
        WireError: `text` is anything else, or below 0; it names `key`.
    """
    value = _number_in(text) if len(text) <= _MOST_DIGITS else None
    if value is None:
        raise WireError(key, text, "not a whole decimal number")
    if not 0 <= value <= MAX_INT32:
        raise WireError(key, text, f"not between 0 and {MAX_INT32}")
    return value


@lru_cache(maxsize=8192)
def _number_in(text: str) -> int | None:
    """Thousands of cards and grants have the same few amounts: each is one object.

    Texts are remembered, so they have to be short.
    """
    return int(text) if _WHOLE.fullmatch(text) else None


def parse_bool(text: str, key: str) -> bool:
    """Read one of Go's spellings of a boolean.

    Raises:
        WireError: it is none of them; it names `key`.
    """
    is_true = text in TRUE_WORDS
    if not is_true and text not in _FALSE_WORDS:
        raise WireError(key, text, "not a boolean")
    return is_true


def is_true_word(text: str) -> bool:
    """True for Go's spellings of true, and for nothing else."""
    return text in TRUE_WORDS
