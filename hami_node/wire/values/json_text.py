"""JSON in annotations: decode into typed structs, encode to one compact spelling."""

from __future__ import annotations

import json
from typing import TypeVar

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
