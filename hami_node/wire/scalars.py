"""Numbers and booleans inside comma-separated annotations, read as strictly as HAMi reads them."""

from __future__ import annotations

import re
from typing import Final

from hami_node.errors import WireError

MAX_INT32: Final = 2**31 - 1
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}")
_BOOLS: Final = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "FALSE", "false", "False"), False
)


def parse_whole(text: str, key: str, *, minimum: int = 0) -> int:
    """Read a whole decimal number of at most 32 bits: no blanks, underscores or other bases.

    Raises:
        WireError: `text` is anything else, or below `minimum`; it names `key`.
    """
    if not _WHOLE.fullmatch(text):
        raise WireError(key, text, "not a whole decimal number")
    value = int(text)
    if not minimum <= value <= MAX_INT32:
        raise WireError(key, text, f"not between {minimum} and {MAX_INT32}")
    return value


def parse_bool(text: str, key: str) -> bool:
    """Read one of Go's spellings of a boolean.

    Raises:
        WireError: it is none of them; it names `key`.
    """
    try:
        return _BOOLS[text]
    except KeyError:
        raise WireError(key, text, "not a boolean") from None
