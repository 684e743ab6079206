"""What the containers of a node use, as its daemon says: read when somebody looks at that node."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from hami_node.clock import Deadline
from hami_node.cluster.daemon_pages import ReadPage, daemons_in, read_pages
from hami_node.inspection.usage import Usage, Use
from hami_node.model import Pod
from hami_node.ports import Clock
from hami_node.text import cut
from hami_node.view.rows import MAX_TEXT

KEPT_S: Final = 10.0
"""For so long what was read is shown to everybody who asks."""
DEADLINE_S: Final = 4.0
MOST_KEPT: Final = 64
MOST_AT_ONCE: Final = 2
"""Daemons that are asked at a time: one that hangs keeps a thread."""
BUSY: Final = "what is used is being read for others: it comes in a moment"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Read:
    at_s: float
    answer: Mapping[str, Any]


class UsedReader:
    """Asks daemons through the API server's pod proxy, where the user's rights allow it."""

    def __init__(self, read: ReadPage, clock: Clock, namespace: str) -> None:
        """The daemons are in `namespace`: who may make pods there is trusted."""
        self._read, self._clock, self._namespace = read, clock, namespace
        self._lock = threading.Lock()
        self._free = threading.Semaphore(MOST_AT_ONCE)
        self._pods: dict[str, Pod] = {}
        self._kept: dict[str, _Read] = {}

    def note(self, before: Pod | None, after: Pod | None) -> None:
        """A pod has changed; for the watch's thread."""
        pod = after or before
        if pod is None or pod.namespace != self._namespace:
            return
        with self._lock:
            if after is None:
                self._pods.pop(pod.name, None)
            else:
                self._pods[pod.name] = after

    def used_on(self, node: str) -> Json:
        """What the node's containers and cards use; `note` says why it is not known."""
        now_s = self._clock.monotonic()
        with self._lock:
            kept = self._kept.get(node)
            pods = tuple(self._pods.values())
        if kept is not None and now_s - kept.at_s < KEPT_S:
            return dict(kept.answer)
        if not self._free.acquire(blocking=False):
            return {"cards": {}, "slices": [], "note": BUSY}
        try:
            answer = self._ask(pods, node)
        finally:
            self._free.release()
        with self._lock:
            self._kept[node] = _Read(now_s, answer)
            while len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        return answer

    def _ask(self, pods: tuple[Pod, ...], node: str) -> Json:
        daemons = daemons_in(pods, self._namespace, frozenset({node}))
        pages = read_pages(self._read, daemons, Deadline.after(DEADLINE_S, self._clock.monotonic))
        usage, notes = Usage(note=pages.note), [pages.note, *pages.unread.values()]
        for name, page in pages.by_node.items():
            usage.add_page(name, page)
        return {
            "cards": {
                cut(uuid, MAX_TEXT): _use(use)
                for (name, uuid), use in usage.cards.items()
                if name == node
            },
            "slices": [
                {"pod": f"{namespace}/{pod}", "container": container, "uuid": uuid, **_use(use)}
                for (namespace, pod, container, uuid), use in usage.slices.items()
            ],
            "note": cut("; ".join(filter(None, notes)), MAX_TEXT),
        }


def _use(use: Use) -> Json:
    return {"memory": use.memory_mib, "cores": use.core_percent}
