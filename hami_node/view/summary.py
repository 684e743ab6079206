"""The numbers at the top of the page, and what is wrong with the page itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from hami_node.cluster.watching.watches import Trouble
from hami_node.errors import Forbidden, KubeError, NotFound
from hami_node.text import cut
from hami_node.view.live_picture import LivePicture
from hami_node.view.rows import MAX_TEXT

Json = Mapping[str, Any]

_PASSING_S: Final = 3.0
"""A watch that is back within this time was never away."""


class Source(Protocol):
    """A watch, as far as the page says how it is."""

    def is_synced(self) -> bool:
        """True once listed."""

    def trouble(self) -> Trouble | None:
        """Why nothing new arrives; None while the server serves us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where the picture comes from: what it can't do without, and what it can."""

    needed: Mapping[str, Source]
    optional: Mapping[str, Source]


class Summaries:
    """Makes the summary; one thread calls it."""

    def __init__(
        self,
        picture: LivePicture,
        sources: Sources,
        now: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        """Sum up `picture`, which comes from these sources."""
        self._picture, self._sources = picture, sources
        self._now, self._monotonic = now, monotonic

    def late(self) -> frozenset[str]:
        """The nodes that should have reported since: time alone changes them."""
        now_s = self._now()
        with self._picture.lock:
            rows = tuple(self._picture.rows.values())
        return frozenset(row.name for row in rows if row.is_late(now_s))

    def make(self, left: int, late: int) -> Json:
        """The summary now; `left` nodes or changes are still to be read, `late` nodes are late."""
        now_s = self._now()
        with self._picture.lock:
            rows = tuple(self._picture.rows.values())
            waiting, lost = len(self._picture.waiting), len(self._picture.lost())
        return {
            "nodes": len(rows),
            "ready": sum(row.is_ready for row in rows),
            "late": late,
            "cards": sum(row.cards for row in rows),
            "sick": sum(row.sick for row in rows),
            "memory": [sum(r.used_mib for r in rows), sum(r.memory_mib for r in rows)],
            "slots": [sum(r.slots_used for r in rows), sum(r.slots for r in rows)],
            "holders": sum(row.holders for row in rows),
            "waiting": waiting,
            "problems": sum(len(row.problems) for row in rows) + lost,
            "left": left,
            "stale": self._stale(now_s),
            "missing": self._missing(),
        }

    def _stale(self, now_s: float) -> Json | None:
        """Since when the page shows the past, and why; None while it is live."""
        troubles = [
            trouble
            for source in self._sources.needed.values()
            if (trouble := source.trouble()) is not None
        ]
        if not troubles:
            return None
        first = min(troubles, key=lambda trouble: trouble.since_s)
        age_s = self._monotonic() - first.since_s
        if age_s < _PASSING_S and self._is_read():
            return None
        return {"since": round(now_s - age_s), "why": cut(str(first.error), MAX_TEXT)}

    def _is_read(self) -> bool:
        return all(source.is_synced() for source in self._sources.needed.values())

    def _missing(self) -> Sequence[str]:
        """What the user's rights do not allow; the page works without it."""
        found = []
        for name, source in self._sources.optional.items():
            trouble = source.trouble()
            if trouble is not None and isinstance(trouble.error, Forbidden | NotFound):
                found.append(f"{name}: {cut(str(trouble.error), MAX_TEXT)}")
        return found


def refusal_in_words(error: KubeError, what: str) -> str:
    """Why something is missing on the page."""
    if isinstance(error, Forbidden):
        return f"your rights do not allow {what}: {cut(str(error), MAX_TEXT)}"
    return f"the API server does not answer about {what}: {cut(str(error), MAX_TEXT)}"
