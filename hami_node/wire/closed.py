"""Why cards of a node are unhealthy, or closed although they work, as its daemon says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from hami_node.model import Uuid
from hami_node.wire import names
from hami_node.wire.values import decode_json, encode_json_text

_DECODER: Final[msgspec.json.Decoder[dict[str, str]]] = msgspec.json.Decoder(dict[str, str])


def encode_closed(reasons: Mapping[Uuid, str]) -> str | None:
    """The annotation's text, sorted; None without any closed card."""
    return encode_json_text(dict(sorted(reasons.items()))) if reasons else None


def decode_closed(annotations: Mapping[str, str]) -> dict[str, str]:
    """The reasons by UUID.

    Raises:
        WireError: not such an object.
    """
    text = annotations.get(names.NODE_CLOSED_CARDS)
    return decode_json(_DECODER, text, names.NODE_CLOSED_CARDS) if text else {}
