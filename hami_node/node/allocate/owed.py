"""What a call owes the API server when its answer leaves: bind phase, node lock, Event.

kubelet does not wait for these. Each debt is on record until it is paid, so it survives a restart
of the daemon; and it names its pod by uid, and the lock by its exact text, so it is never paid to
another pod of the same name.
"""

from __future__ import annotations

import logging
import random
import threading
from dataclasses import replace
from typing import Final

import msgspec

from hami_node.errors import Conflict, KubeError, NotFound, RecordError
from hami_node.logs import kv
from hami_node.node.allocate.debt import Debt, phase_patch
from hami_node.node.allocate.lock_keeper import LockKeeper
from hami_node.ports import Clock, Kube
from hami_node.record.file import Loaded, RecordFile, State
from hami_node.record.writer import RecordWriter

log = logging.getLogger(__name__)

NAME: Final = "owed"
MAX_DEBTS: Final = 1024
"""Pods; the oldest is given up for a newer one."""
FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 60.0
LOAD_PAUSE_S: Final = 5.0
"""How long a disk that hangs is left alone."""


class _Payload(msgspec.Struct):
    debts: tuple[Debt, ...]


_DECODER: Final = msgspec.json.Decoder(_Payload)


class OwedWrites:
    """Debts by pod uid. Thread-safe; `run` pays them in its own thread."""

    def __init__(self, *, kube: Kube, locks: LockKeeper, file: RecordFile, clock: Clock) -> None:
        """Take over the debts on record, or when its disk answers."""
        self._kube, self._locks, self._clock = kube, locks, clock
        self._mutex = threading.Lock()
        self._wake = threading.Event()
        self._record = RecordWriter(file, is_synced_later=True)
        self._debts: dict[str, Debt] = {}
        self._is_loaded = False
        self._failures = 0
        self._take_over()

    def add(self, debt: Debt) -> None:
        """Owe this as well. Never raises, never waits for the API server."""
        if not debt.is_any:
            return
        with self._mutex:
            before = self._debts.pop(debt.uid, None)
            self._debts[debt.uid] = debt if before is None else before.joined(debt)
            if len(self._debts) > MAX_DEBTS:
                lost = self._debts.pop(next(iter(self._debts)))
                log.error("owed_given_up", extra=kv(pod=lost.key, phase=lost.phase))
            self._save()
        self._wake.set()

    def forgive(self, uid: str) -> None:
        """The pod is served after all: no failure is owed to it."""
        with self._mutex:
            debt = self._debts.get(uid)
            if debt is not None:
                self._keep(debt, replace(debt, phase="", reason="", message=""))

    def wake(self) -> None:
        """Pay now, or notice the end."""
        self._wake.set()

    def run(self, stop: threading.Event) -> None:
        """Pay whenever something is owed, until stopped and woken; failures are tried again."""
        while not stop.is_set():
            wait_s = self.pay(stop)
            self._clock.wait(self._wake, wait_s)
            self._wake.clear()

    def pay(self, stop: threading.Event) -> float | None:
        """Try each debt once; how long to wait until the next try, None if nothing is left."""
        with self._mutex:
            if not self._is_loaded:
                self._take_over()
                self._save()
        has_failed = False
        for debt in tuple(self._debts.values()):
            if stop.is_set():
                break
            left, error = self._paid(debt)
            with self._mutex:
                self._keep(debt, left)
            if error is not None:
                log.warning("owed_not_written", extra=kv(pod=debt.key, error=str(error)))
                has_failed = True
                if not error.status:
                    break  # the API server can't be reached: nor would it be for the others
        self._failures = self._failures + 1 if has_failed else 0
        if not has_failed:
            return None if self._is_loaded else LOAD_PAUSE_S
        longest_s = min(FIRST_PAUSE_S * 2.0 ** min(self._failures, 16), LONGEST_PAUSE_S)
        return longest_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, hides nothing

    def _keep(self, seen: Debt, left: Debt) -> None:
        """Replace what was paid of a debt by what is left of it, if nothing was added meanwhile."""
        now = self._debts.get(seen.uid)
        if now is None or left is seen:
            return
        remaining = left if now is seen else now.without(seen, left)
        if remaining.is_any:
            self._debts[seen.uid] = remaining
        else:
            del self._debts[seen.uid]
        self._save()

    def _paid(self, debt: Debt) -> tuple[Debt, KubeError | None]:
        """What is left of a debt, and why. Its parts do not depend on each other."""
        error: KubeError | None = None
        steps = (
            (debt.phase, self._phase_written),
            (debt.lock, self._lock_removed),
            (debt.reason, self._event_written),
        )
        for is_owed, write in steps:
            if not is_owed:
                continue
            try:
                debt = write(debt)
            except KubeError as e:
                error = error or e
        return debt, error

    def _lock_removed(self, debt: Debt) -> Debt:
        self._locks.remove(debt.lock)
        return replace(debt, lock="")

    def _phase_written(self, debt: Debt) -> Debt:
        """A pod that is gone, or is another of that name, has no phase to write."""
        try:
            patch = phase_patch(self._kube, debt)
            if patch is None:
                raise NotFound("another pod of that name", 404)
            self._kube.json_patch_pod(debt.namespace, debt.name, patch)
        except NotFound:
            log.info("phase_not_needed", extra=kv(pod=debt.key, phase=debt.phase))
        except Conflict as e:
            if e.status == 409 or not debt.has_annotations:
                raise  # the pod was written meanwhile: read it, or try, again
        return replace(debt, phase="")

    def _event_written(self, debt: Debt) -> Debt:
        try:
            self._kube.create_event(debt.event)
        except KubeError as e:
            if e.is_transient:
                raise
            log.warning("event_not_written", extra=kv(pod=debt.key, error=str(e)))
        return replace(debt, reason="", message="")

    def _take_over(self) -> None:
        """Owe what is on record, beside what is owed already."""
        try:
            found = _decoded(self._record.load())
        except RecordError:  # which was logged
            return
        for debt in found:
            now = self._debts.get(debt.uid)
            self._debts[debt.uid] = debt if now is None else debt.joined(now)
        self._is_loaded = True

    def _save(self) -> None:
        """Written, the debts outlive this process; they are paid either way."""
        if self._is_loaded:  # or those on record would be lost
            self._record.put(msgspec.json.encode(_Payload(tuple(self._debts.values()))))


def _decoded(loaded: Loaded) -> tuple[Debt, ...]:
    if loaded.state not in (State.WHOLE, State.MISSING):
        log.warning("owed_lost", extra=kv(why=loaded.problem))
    if loaded.payload is None:
        return ()
    try:
        return _DECODER.decode(loaded.payload).debts
    except msgspec.MsgspecError as e:
        log.warning("owed_not_understood", extra=kv(error=str(e)))
        return ()
