"""Keep the node object up to date: compare it with the desired state, patch the difference.

The API server's answer to a patch counts only until the watch shows that or something newer, or
goes back to another history: after a restore from a backup nothing of what was remembered is true.
Every wait ends on stop, on a change and on the next heartbeat.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from hami_node.errors import KubeError
from hami_node.logs import kv
from hami_node.model import Node
from hami_node.ports import Clock, Kube, Watched
from hami_node.vendors.on_node.publication import Publication

log = logging.getLogger(__name__)

RETRY_S: Final = 5.0
MIN_GAP_S: Final = 0.2
"""Between two patches without a heartbeat; doubled while somebody keeps reverting ours."""
MAX_GAP_S: Final = 30.0


class Reporter:
    """Publishes everything that this node reports. `run` is the thread's body."""

    def __init__(
        self,
        *,
        node_name: str,
        kube: Kube,
        watched: Watched,
        publications: Sequence[Publication],
        clock: Clock,
        interval_s: Callable[[], float] = lambda: 30.0,
    ) -> None:
        """Wire the parts.

        `interval_s` is the time between two heartbeats, as the settings in force have it.
        """
        self._node_name = node_name
        self._kube = kube
        self._watched = watched
        self._publications = publications
        self._clock = clock
        self._interval_s = interval_s
        self._wake = threading.Event()
        self._last_heartbeat_s: float | None = None
        self._newest: tuple[Node, int] | None = None
        """Our last patch's answer, and the version that the watch showed before it."""
        self._gap_s = MIN_GAP_S
        self._reported_s: float | None = None

    def wake(self) -> None:
        """Something changed: compare now."""
        self._wake.set()

    @property
    def age_s(self) -> float | None:
        """Time since the node object was last up to date; None before it was once."""
        at_s = self._reported_s
        return None if at_s is None else self._clock.monotonic() - at_s

    def run(self, stop: threading.Event) -> None:
        """Report until stopped, then write the shutdown marks."""
        while not stop.is_set():
            self._wake.clear()
            try:
                wrote = self.report()
                wait_s = max(self._until_heartbeat_s(), 0.05)
            except KubeError as e:
                log.warning("report_failed", extra=kv(error=str(e), retry_s=RETRY_S))
                wrote, wait_s = False, RETRY_S
            self._gap_s = min(self._gap_s * 2, MAX_GAP_S) if wrote else MIN_GAP_S
            self._clock.wait(stop, min(self._gap_s if wrote else 0.0, wait_s))
            self._wait(stop, wait_s)
        self._sign_off()

    def _wait(self, stop: threading.Event, wait_s: float) -> None:
        deadline = self._clock.monotonic() + wait_s
        while not stop.is_set():
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0 or self._clock.wait(self._wake, min(left_s, 1.0)):
                return

    def report(self) -> bool:
        """One comparison; True if something besides the heartbeat was written.

        Raises:
            KubeError: the API server can't be reached or refuses.
        """
        node = self._node()
        now = self._clock.now()
        wanted: dict[str, str | None] = {}
        for publication in self._publications:
            wanted |= publication.desired(node, now)
        changes = _differences(node, wanted)
        wrote = bool(changes)
        is_due = self._until_heartbeat_s() <= 0
        if is_due:
            for publication in self._publications:
                changes |= publication.heartbeat(node, now)
        if changes:
            shown = self._watched.node()
            answer = self._kube.merge_patch_node(self._node_name, changes)
            self._newest = (answer, shown.version if shown is not None else 0)
        if wrote:
            log.info("node_reported", extra=kv(node=self._node_name, keys=sorted(changes)))
        if is_due:
            self._last_heartbeat_s = self._clock.monotonic()
        self._reported_s = self._clock.monotonic()
        return wrote

    def _until_heartbeat_s(self) -> float:
        if self._last_heartbeat_s is None:
            return 0.0
        return self._last_heartbeat_s + self._interval_s() - self._clock.monotonic()

    def _node(self) -> Node:
        """The newest known state of the node: the watch's, or our own patch's response."""
        watched = self._watched.node()
        if watched is None:
            return self._kube.read_node(self._node_name)
        if self._newest is not None:
            newest, shown = self._newest
            if shown <= watched.version < newest.version:
                return newest
            self._newest = None
        return watched

    def _sign_off(self) -> None:
        try:
            node = self._node()
            wanted: dict[str, str | None] = {}
            for publication in self._publications:
                wanted |= publication.shutdown(node)
            changes = _differences(node, wanted)
            if changes:
                self._kube.merge_patch_node(self._node_name, changes)
            log.info("node_signed_off", extra=kv(node=self._node_name, keys=sorted(changes)))
        except KubeError as e:
            log.warning("sign_off_failed", extra=kv(error=str(e)))


def _differences(node: Node, wanted: Mapping[str, str | None]) -> dict[str, str | None]:
    return {key: value for key, value in wanted.items() if node.annotations.get(key) != value}
