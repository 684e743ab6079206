"""Ledgers without a disk, and entries for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hami_node.record.file import Loaded, RecordFile, State
from hami_node.record.ledger import Entry, Ledger
from tests.fakes.cards import uuid


class MemoryFile(RecordFile):
    """A record file that is a variable; `error` is raised by the next writes."""

    def __init__(self, loaded: Loaded | None = None) -> None:
        super().__init__(Path("/nowhere"), "grants")
        self.loaded = loaded or Loaded(state=State.MISSING, problem="it is missing")
        self.error: Exception | None = None
        self.saves = 0

    def load(self) -> Loaded:
        return self.loaded

    def save(self, payload: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.saves += 1
        self.loaded = Loaded(state=State.WHOLE, payload=payload)

    def sync(self) -> None:
        """Nothing to do."""


def a_ledger(*entries: Entry, file: MemoryFile | None = None) -> Ledger:
    """A ledger with these entries."""
    ledger = Ledger(file or MemoryFile())
    ledger.adopt(entries)
    return ledger


def an_entry(pod: str = "p", container: str = "main", **fields: Any) -> Entry:
    """1000 MiB of card 0 for a container of a pod in `default`."""
    given: dict[str, Any] = {
        "pod_uid": f"uid-{pod}",
        "namespace": "default",
        "pod": pod,
        "container": container,
        "vendor": "NVIDIA",
        "resource": "nvidia.com/gpu",
        "grants": f"{uuid(0)},NVIDIA,1000,0:;",
        "lender": container,
        "device_ids": (f"{uuid(0)}-0",),
    }
    return Entry(**(given | fields))
