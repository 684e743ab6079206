"""What HAMi's schedulers and plugins wrote on nodes in MIG mode, change by change.

Source: recordings of 2.7.1, 2.9.0 and 2.10.0 on a real API server, two A100 of 40 GB.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hami_node.vendors.nvidia import names as nvidia_names

RECORDINGS: Final = Path(__file__).parents[1] / "fixtures/recordings/mig"
CARDS: Final = (
    "GPU-12345678-1234-1234-1234-123456780000",
    "GPU-12345678-1234-1234-1234-123456780001",
)
ABUSE: Final = ("abuse", "abuse2")
"""Pods of other users that only claim to have instances."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a pod: what its annotations became, or that it was deleted."""

    name: str
    is_deleted: bool
    notes: Mapping[str, str]
    """All that were set so far."""
    is_reserved: bool
    """Its scheduler has just written the reservation."""


def timeline(file: str) -> list[dict[str, Any]]:
    """The changes of one recording, such as `v2.10.0`."""
    text = (RECORDINGS / f"{file}.json").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = json.loads(text)["timeline"]
    return found


def registers(file: str) -> Iterator[str]:
    """Every text that the plugin registered."""
    for change in timeline(file):
        if change.get("kind") == "node" and nvidia_names.NODE_REGISTER in change["set"]:
            yield change["set"][nvidia_names.NODE_REGISTER]


def pods(file: str) -> Iterator[Change]:
    """The changes of pods, without those of other users."""
    notes: dict[str, dict[str, str]] = {}
    for change in timeline(file):
        name = change.get("name", "")
        if change.get("kind") != "pod" or name in ABUSE:
            continue
        if change["event"] == "DELETED":
            notes.pop(name, None)
            yield Change(name, True, {}, False)
            continue
        notes.setdefault(name, {}).update(change["set"])
        text = change["set"].get(nvidia_names.POD_TO_ALLOCATE, "")
        is_reserved = nvidia_names.POD_ALLOCATED in change["set"] and bool(text.strip(";"))
        yield Change(name, False, dict(notes[name]), is_reserved)
