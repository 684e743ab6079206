"""What others have reported about an object."""

from __future__ import annotations

from typing import Final

from hami_node.cluster.paths import CORE, segment
from hami_node.verify.findings import words
from hami_node.verify.read.objects import Event
from hami_node.verify.read.reading import Reader

_MOST: Final = 3


def warnings_about(reader: Reader, namespace: str, name: str) -> tuple[str, ...]:
    """The last different warnings about an object, the oldest first; () where none can be read."""
    path = f"{CORE}/namespaces/{segment(namespace)}/events"
    found = reader.every(path, Event, fields=f"involvedObject.name={name}")
    told = sorted((one for one in found.items if one.type != "Normal"), key=lambda one: one.when)
    said = dict.fromkeys(words(f"{one.reason}: {one.message}") for one in reversed(told))
    return tuple(reversed(list(said)[:_MOST]))
