"""Devices that containers hold and that are on no card any more: people are told, once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from hami_node.ports import Clock, EventNote
from hami_node.record.ledger import Entry

EVENT: Final = "DeviceVanished"
SURE_S: Final = 15.0
"""A driver that is unwell for a moment shows fewer devices, too."""


class Vanished:
    """Asked again and again; used by one thread at a time."""

    def __init__(self, clock: Clock, notify: Callable[[EventNote], None]) -> None:
        """`notify` writes an Event, later."""
        self._clock, self._notify = clock, notify
        self._since_s: dict[tuple[str, str, str], float] = {}
        self._told: set[tuple[str, str, str]] = set()

    def look(self, entries: Iterable[Entry], lost: dict[str, frozenset[str]]) -> None:
        """Take what is on record, and by resource the IDs in it that are offered no more."""
        now_s = self._clock.monotonic()
        found = {
            (entry.pod_uid, entry.container, name): entry
            for entry in entries
            for name in lost.get(entry.resource, frozenset()).intersection(entry.device_ids)
        }
        self._since_s = {key: self._since_s.get(key, now_s) for key in found}
        self._told &= found.keys()
        for key, entry in found.items():
            if key not in self._told and now_s - self._since_s[key] >= SURE_S:
                self._told.add(key)
                self._notify(_note(entry, key[2]))


def _note(entry: Entry, device_id: str) -> EventNote:
    return EventNote(
        kind="Pod",
        namespace=entry.namespace,
        name=entry.pod,
        uid=entry.pod_uid,
        reason=EVENT,
        message=(
            f"container {entry.container} was given {device_id} of {entry.resource}, which is no "
            "device of this node any more: whoever manages the devices has removed or recreated "
            "it; delete the pod, so that it gets another"
        ),
    )
