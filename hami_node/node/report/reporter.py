"""Keep the node object up to date: compare it with the desired state, patch the difference.

The API server's answer to a patch counts only until the watch shows that or something newer, or
goes back to another history: after a restore from a backup nothing of what was remembered is true.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Final

from hami_node.logs import kv
from hami_node.model import Node
from hami_node.node.state import NodeState
from hami_node.vendors.on_node.publication import Publication

log = logging.getLogger(__name__)

SYNC_CHECK_S: Final = 0.5
FIRST_LIST_S: Final = 5.0
"""How long the first report waits for the record and kubelet's list."""
MIN_GAP_S: Final = 0.2
"""Between two patches without a heartbeat; doubled while somebody keeps reverting ours."""
MAX_GAP_S: Final = 30.0


class Reporter:
    """Publishes everything that this node reports. A step of the loop."""

    def __init__(self, node: NodeState, publications: Sequence[Publication]) -> None:
        """Nothing is reported yet."""
        self._state, self._clock = node, node.clock
        self._publications = publications
        self._last_heartbeat_s = self._not_before_s = -math.inf
        self._synced_s: float | None = None
        self._newest: tuple[Node, int] | None = None
        """Our last patch's answer, and the version that the watch showed before it."""
        self._gap_s = MIN_GAP_S
        self._reported_s: float | None = None

    @property
    def age_s(self) -> float | None:
        """Time since the node object was last up to date; None before it was once."""
        at_s = self._reported_s
        return None if at_s is None else self._clock.monotonic() - at_s

    def look(self) -> float:
        """One report if it may be made; seconds until the next heartbeat, or until it may.

        Raises:
            KubeError: the API server can't be reached or refuses.
        """
        now_s, wait_s = self._clock.monotonic(), self._wait_s()
        if wait_s > 0:
            return wait_s
        if not self.report():
            self._gap_s = MIN_GAP_S
        else:
            self._not_before_s = now_s + self._gap_s
            self._gap_s = min(self._gap_s * 2, MAX_GAP_S)
        return max(self._until_heartbeat_s(), MIN_GAP_S)

    def _wait_s(self) -> float:
        """Seconds until a report may be made."""
        state, now_s = self._state, self._clock.monotonic()
        if not state.view.is_synced():
            return SYNC_CHECK_S
        if self._synced_s is None:
            self._synced_s = now_s
        if not state.recorded.is_set() and self._reported_s is None:
            # Before record and list were read what they alone show to be held would look free.
            return self._synced_s + FIRST_LIST_S - now_s
        return self._not_before_s - now_s

    def report(self) -> bool:
        """One comparison; True if something besides the heartbeat was written.

        Raises:
            KubeError: the API server can't be reached or refuses.
        """
        node, state, now = self._node(), self._state, self._clock.now()
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
            shown = state.view.node()
            answer = state.kube.merge_patch_node(node.name, changes)
            self._newest = (answer, shown.version if shown is not None else 0)
        if wrote:
            log.info("node_reported", extra=kv(node=node.name, keys=sorted(changes)))
        if is_due:
            self._last_heartbeat_s = self._clock.monotonic()
        self._reported_s = self._clock.monotonic()
        return wrote

    def _until_heartbeat_s(self) -> float:
        interval_s = self._state.settings().report_interval_s
        return self._last_heartbeat_s + interval_s - self._clock.monotonic()

    def _node(self) -> Node:
        """The newest known state of the node: the watch's, or our own patch's response."""
        watched = self._state.view.node()
        if watched is None:
            return self._state.kube.read_node(self._state.settings().node_name)
        if self._newest is not None:
            newest, shown = self._newest
            if shown <= watched.version < newest.version:
                return newest
            self._newest = None
        return watched

    def sign_off(self) -> None:
        """Write the shutdown marks.

        Raises:
            KubeError: the API server can't be reached or refuses.
        """
        node = self._node()
        wanted: dict[str, str | None] = {}
        for publication in self._publications:
            wanted |= publication.shutdown(node)
        changes = _differences(node, wanted)
        if changes:
            self._state.kube.merge_patch_node(node.name, changes)
        log.info("node_signed_off", extra=kv(node=node.name, keys=sorted(changes)))


def _differences(node: Node, wanted: Mapping[str, str | None]) -> dict[str, str | None]:
    return {key: value for key, value in wanted.items() if node.annotations.get(key) != value}
