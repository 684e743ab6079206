"""Numbers and booleans inside comma-separated annotations, read as strictly as HAMi reads them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from hami_node.errors import WireError

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
