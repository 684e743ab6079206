"""The MIG instances that this node has made or is about to make, each with its owner, on record.

    (nothing) -> intended -> gpu-instance -> named -> (nothing)
                                               `---> lost -> (nothing)

It is written before an instance is made, after each half of it is, and after each half is
destroyed, so after a kill the record is at most one call behind the card.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hami_node.errors import RecordError
from hami_node.logs import kv
from hami_node.model import Uuid
from hami_node.ports import Record
from hami_node.vendors.nvidia.driver import BOOT_ID, read_boot_id
from hami_node.vendors.nvidia.node.mig.reconcile import Instance, Owner

log = logging.getLogger(__name__)


class _Kept(msgspec.Struct, frozen=True):
    """The record, as of that boot."""

    boot_id: str
    instances: tuple[Instance, ...]


class MigRecord:
    """Which owner has which instance. Any thread may read; a write waits for the disk."""

    def __init__(self, record: Record, boot_id: Path = BOOT_ID) -> None:
        """Take over the record. No instance survives a reboot: those of an earlier boot are lost.

        Args:
            record: what an earlier process has saved.
            boot_id: differs after each boot.
        """
        self._record = record
        self._lock = threading.Lock()
        self._writing = threading.Lock()  # held over the record's I/O, never inside the other
        boot, kept = read_boot_id(boot_id), _decoded(record.load())
        self._boot_id = boot or kept.boot_id
        self._is_behind = bool(boot and kept.boot_id) and boot != kept.boot_id
        found = [each.gone() if self._is_behind else each for each in kept.instances]
        self._instances = {each.owner: each for each in found if each is not None}
        if self._is_behind:
            log.warning("mig_instances_gone_by_boot", extra=kv(count=len(kept.instances)))

    def all(self) -> Mapping[Owner, Instance]:
        """Every instance. Never waits."""
        with self._lock:
            return dict(self._instances)

    def of(self, owner: Owner) -> Instance | None:
        """The instance of that owner. Never waits."""
        with self._lock:
            return self._instances.get(owner)

    def on(self, card: Uuid) -> tuple[Instance, ...]:
        """The instances of a card, sorted by owner. Never waits."""
        found = self.all()
        return tuple(found[owner] for owner in sorted(found) if found[owner].card == card)

    def intend(self, instance: Instance) -> None:
        """Put on record what is about to be done.

        Raises:
            RecordError: it can't be written; then nothing has changed, and nothing may be done.
        """
        with self._writing:
            before = self._put(instance.owner, instance)
            try:
                self._save()
            except RecordError:
                self._put(instance.owner, before)
                raise

    def learn(self, owner: Owner, instance: Instance | None) -> None:
        """Put on record what has happened; None: there is nothing left.

        Raises:
            RecordError: it can't be written; it is remembered, and written with the next.
        """
        with self._writing:
            if self._put(owner, instance) != instance or self._is_behind:
                self._save()

    def flush(self) -> None:
        """Write what could not be written before.

        Raises:
            RecordError: it still can't.
        """
        with self._writing:
            if self._is_behind:
                self._save()

    def _put(self, owner: Owner, instance: Instance | None) -> Instance | None:
        """Returns what was there before."""
        with self._lock:
            before = self._instances.pop(owner, None)
            if instance is not None:
                self._instances[owner] = instance
            return before

    def _save(self) -> None:
        self._is_behind = True
        instances = self.all()
        kept = _Kept(
            boot_id=self._boot_id,
            instances=tuple(instances[owner] for owner in sorted(instances)),
        )
        self._record.save(msgspec.json.encode(kept))
        self._is_behind = False


def _decoded(payload: bytes | None) -> _Kept:
    if payload is None:
        return _Kept(boot_id="", instances=())
    try:
        return msgspec.json.decode(payload, type=_Kept)
    except msgspec.DecodeError as e:
        log.error("mig_record_unreadable", extra=kv(reason=str(e)))  # noqa: TRY400  no bug
        return _Kept(boot_id="", instances=())
