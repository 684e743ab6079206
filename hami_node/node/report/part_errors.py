"""Driver errors that name a part of a card: said to the pod that has it, and counted for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from hami_node.logs import kv
from hami_node.metrics.labels import OTHER
from hami_node.metrics.parts import PartErrorReading
from hami_node.model import Pod
from hami_node.node.vendor_cards import VendorCards
from hami_node.ports import Clock, EventNote, PartError
from hami_node.vendors.divided import DividedCards, PartState, PartView

log = logging.getLogger(__name__)

EVENT: Final = "CardPartError"
PAUSE_S: Final = 600.0
"""Between two Events about one error of one part: a program can cause any number of them."""
MAX_KINDS: Final = 500
"""Errors that are counted apart; those beyond are counted together, as nobody's."""


class PartErrors:
    """Finds out whom an error concerns. One thread looks, any may read the counts."""

    def __init__(
        self,
        owners: Sequence[VendorCards],
        *,
        pods: Callable[[], Iterable[Pod]],
        notify: Callable[[EventNote], None],
        clock: Clock,
    ) -> None:
        """`pods`: those of this node."""
        self._owners, self._pods = tuple(owners), pods
        self._notify, self._clock = notify, clock
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, PartErrorReading], int] = {}
        self._told_s: dict[tuple[str, PartErrorReading], float] = {}

    def counts(self) -> Mapping[PartErrorReading, int]:
        """How often each error has occurred in each part that exists; and in parts of nobody."""
        with self._lock:
            found: dict[PartErrorReading, int] = {}
            for (_, reading), count in self._counts.items():
                found[reading] = found.get(reading, 0) + count
            return found

    def look(self) -> None:
        """Take what has come since the last look."""
        came = [(owner, owner.backend.part_errors()) for owner in self._owners]
        if not self._counts and not any(errors for _, errors in came):
            return
        pods = {pod.uid: pod for pod in self._pods()}
        existing: set[str] = set()
        for owner, errors in came:
            divided = owner.divided()
            existing.update(part.uuid for part in divided.parts)
            for error in errors:
                self._enter(owner, error, divided, pods)
        self._forget(existing)

    def _enter(
        self, owner: VendorCards, error: PartError, divided: DividedCards, pods: Mapping[str, Pod]
    ) -> None:
        is_ignored = error.code in owner.harmless_errors
        about = [part for part in divided.parts if _is_about(error, part)]
        for part in about:
            pod = pods.get(part.pod_uid)
            reading = _reading(error, is_ignored=is_ignored, part=part, pod=pod)
            self._count(part.uuid, reading, error)
            if pod is not None and not is_ignored and self._is_news(part.uuid, reading):
                self._notify(_note(error, part, divided, pod))
        if not about:
            reading = _reading(error, is_ignored=is_ignored)
            self._count("", reading, error)
            if self._is_news("", reading):
                log.warning(
                    "part_error_of_nobody",
                    extra=kv(uuid=error.card, code=error.code, why=error.why),
                )

    def _count(self, part: str, reading: PartErrorReading, error: PartError) -> None:
        key = part, reading
        with self._lock:
            if key not in self._counts and len(self._counts) >= MAX_KINDS:
                key = "", _reading(error, is_ignored=False)._replace(xid=OTHER)
            self._counts[key] = self._counts.get(key, 0) + error.count

    def _is_news(self, part: str, reading: PartErrorReading) -> bool:
        now_s, key = self._clock.monotonic(), (part, reading)
        last_s = self._told_s.get(key)
        if last_s is not None and now_s - last_s < PAUSE_S:
            return False
        if len(self._told_s) >= MAX_KINDS:
            self._told_s.clear()
        self._told_s[key] = now_s
        return True

    def _forget(self, existing: set[str]) -> None:
        """Series of parts that are gone disappear; errors of nobody's parts stay counted."""
        existing.add("")
        with self._lock:
            self._counts = {key: count for key, count in self._counts.items() if key[0] in existing}
        self._told_s = {key: at_s for key, at_s in self._told_s.items() if key[0] in existing}


def _is_about(error: PartError, part: PartView) -> bool:
    """Numbers are used again, so that the UUID counts too, where both have one."""
    if part.card != error.card or part.state is PartState.LOST or not error.numbers:
        return False
    is_same = not error.uuid or not part.uuid or error.uuid == part.uuid
    return is_same and part.numbers[: len(error.numbers)] == error.numbers


def _reading(
    error: PartError, *, is_ignored: bool, part: PartView | None = None, pod: Pod | None = None
) -> PartErrorReading:
    return PartErrorReading(
        namespace=pod.namespace if pod else "",
        pod=pod.name if pod else "",
        container=part.container if part and pod else "",
        uuid=error.card,
        part=part.uuid if part else "",
        xid=str(error.code),
        ignored="true" if is_ignored else "false",
    )


def _note(error: PartError, part: PartView, divided: DividedCards, pod: Pod) -> EventNote:
    index = next(card.index for card in divided.cards if card.uuid == part.card)
    of = f"container {part.container}, {part.kind} {part.uuid} of card {index}"
    return EventNote.about(pod, EVENT, f"{of}: {error.why}")
