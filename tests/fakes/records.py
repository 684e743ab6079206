"""A record in memory that outlives the object that uses it, and can refuse."""

from __future__ import annotations

from hami_node.errors import RecordError


class FakeRecord:
    """`ports.Record`."""

    def __init__(self, payload: bytes | None = None) -> None:
        self.payload = payload
        self.saves = 0
        self._is_full = self.is_hanging = False
        self._wanted: bytes | None = None

    @property
    def is_full(self) -> bool:
        return self._is_full

    @is_full.setter
    def is_full(self, is_full: bool) -> None:
        self._is_full = is_full
        if self._wanted is not None:
            self.put(self._wanted)

    def load(self) -> bytes | None:
        if self.is_hanging:
            raise RecordError("the disk has not answered: check the disk")
        return self.payload

    def save(self, payload: bytes) -> None:
        if self.is_full:
            raise RecordError("no space left on device: check the disk")
        self.saves += 1
        self.payload = payload

    def put(self, payload: bytes) -> None:
        self._wanted = payload
        if not self._is_full:
            self._wanted = None
            self.save(payload)
