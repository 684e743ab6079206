"""Lets each vendor remove the files of containers that have ended, and shows what they take."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.metrics_core import Metric

from hami_node.logs import kv
from hami_node.model import Pod
from hami_node.node.holdings.pod_names import NOBODY, PodNames
from hami_node.node.present import PresentPods
from hami_node.node.state import NodeState
from hami_node.ports import EventNote
from hami_node.vendors.on_node.upkeep import ClosedFile, FilesFound, FilesInUse

log = logging.getLogger(__name__)

INTERVAL_S: Final = 60.0
STUCK_EVENT: Final = "ContainerFilesLeft"
CLOSED_EVENT: Final = "CacheFileClosed"
MAX_SHOWN: Final = 5


class FileKeeper:
    """A step of the loop: when containers have ended, and rarely besides."""

    def __init__(self, node: NodeState) -> None:
        """Nothing is found yet."""
        self._node, self._present = node, PresentPods(node)
        self._told: tuple[str, ...] = ()
        self._closed: frozenset[ClosedFile] = frozenset()
        self._found: list[FilesFound] | None = None

    def series(self) -> Iterator[Metric]:
        """What containers have on the disk, and how much of it can't be removed: the last pass."""
        found, metrics = self._found, self._node.metrics
        if found is not None:
            yield metrics.value("container_files_folders", sum(each.folders for each in found))
            yield metrics.value("container_files_bytes", sum(each.used_bytes for each in found))
            yield metrics.value("container_files_stuck", sum(len(each.stuck) for each in found))

    def look(self) -> float:
        """One pass; seconds until the next one."""
        used, now_s = self._used(), self._node.clock.monotonic()
        upkeeps = [owner.upkeep for owner in self._node.vendor_cards]
        found = [upkeep.tidy(used, now_s) for upkeep in upkeeps if upkeep is not None]
        self._found = found
        self._tell_stuck(tuple(reason for each in found for reason in each.stuck))
        self._tell_closed(frozenset(file for each in found for file in each.closed))
        return min([INTERVAL_S, *(each.next_s for each in found if each.next_s is not None)])

    def _used(self) -> FilesInUse | None:
        """Whose files stay; None while the API server or kubelet's list can't be read."""
        listed = self._present.listed()
        if listed is None:
            return None
        return FilesInUse(
            uids=frozenset(self._present.held() | listed),
            is_held=lambda uid: uid in self._present.held(),
            answers=tuple(entry.answer for entry in self._node.ledger.entries()),
        )

    def _tell_stuck(self, stuck: Sequence[str]) -> None:
        """Say what can't be removed: in the log and on the node, when that has changed."""
        before, self._told = self._told, tuple(stuck)
        if not stuck or before == self._told:
            return
        shown = "; ".join(stuck[:MAX_SHOWN])
        log.warning("container_files_left", extra=kv(count=len(stuck), files=shown))
        self._node.notify_node(
            STUCK_EVENT,
            f"{len(stuck)} files of ended containers can't be removed without rights that "
            f"hami-node does not have; remove them as an administrator: {shown}",
        )

    def _tell_closed(self, closed: frozenset[ClosedFile]) -> None:
        """Say once whose file is out of our hands: such a pod can fill the node's disk."""
        new, names = closed - self._closed, PodNames(self._node.ledger, self._node.live.pods)
        known = names.by_uid() if new else {}
        for file in new:
            uid, _, container = file.folder.partition("_")
            namespace, name = known.get(uid, NOBODY)
            log.warning("cache_file_closed", extra=kv(folder=file.folder, problem=file.why))
            if name:
                why = (
                    f"the limiter's cache file of container {container} {file.why}: it may fill "
                    "the disk of the node, and what the container uses of its cards may be "
                    "unknown: find out which program closed it, and delete the pod"
                )
                pod = Pod(uid=uid, namespace=namespace, name=name)
                self._node.notify(EventNote.about(pod, CLOSED_EVENT, why))
        self._closed = closed
