"""A record in memory that outlives the object that uses it, and can refuse."""

from __future__ import annotations

from hami_node.errors import RecordError


class FakeRecord:
    """`ports.Record`."""

    def __init__(self, payload: bytes | None = None) -> None:
        self.payload = payload
        self.saves = 0
        self.is_full = False

    def load(self) -> bytes | None:
        return self.payload

    def save(self, payload: bytes) -> None:
        if self.is_full:
            raise RecordError("no space left on device: check the disk")
        self.saves += 1
        self.payload = payload
