"""The pod annotation with the version of what limits each container. For people; nobody acts on it.

The pod's author can write anything into it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from hami_node.errors import WireError
from hami_node.wire import names
from hami_node.wire.values import decode_json, encode_json_text

MAX_CONTAINERS: Final = 64
"""More than any pod with cards has; a longer text is somebody else's."""
MAX_VERSION_CHARS: Final = 128
_DECODER: Final[msgspec.json.Decoder[dict[str, str]]] = msgspec.json.Decoder(dict[str, str])


def limiters_of(annotations: Mapping[str, str]) -> dict[str, str]:
    """The versions by container; {} for anything that the daemon has not written."""
    text = annotations.get(names.POD_LIMITERS)
    if not text:
        return {}
    try:
        found = decode_json(_DECODER, text, names.POD_LIMITERS)
    except WireError:
        return {}
    is_short = all(len(version) <= MAX_VERSION_CHARS for version in found.values())
    return found if is_short and len(found) <= MAX_CONTAINERS else {}


def with_limiter(annotations: Mapping[str, str], container: str, version: str) -> str:
    """The annotation's text once this container has this version, sorted."""
    found = limiters_of(annotations) | {container: version}
    return encode_json_text(dict(sorted(found.items())))
