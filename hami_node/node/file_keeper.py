"""Lets each vendor remove the files of containers that have ended, and shows what they take."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client.metrics_core import Metric

from hami_node.logs import kv
from hami_node.metrics.daemon import DaemonMetrics
from hami_node.node.holdings.pod_names import NOBODY, PodNames
from hami_node.node.parts import ClusterParts, NodeParts
from hami_node.node.present import PresentPods
from hami_node.ports import EventNote
from hami_node.vendors.on_node.upkeep import ClosedFile, FilesFound, FilesInUse

log = logging.getLogger(__name__)

INTERVAL_S: Final = 60.0
STUCK_EVENT: Final = "ContainerFilesLeft"
CLOSED_EVENT: Final = "CacheFileClosed"
MAX_SHOWN: Final = 5


class FileKeeper:
    """A step of the loop: when containers have ended, and rarely besides."""

    def __init__(self, parts: NodeParts, cluster: ClusterParts) -> None:
        """Wire the sources."""
        self._cluster, self._clock = cluster, parts.clock
        self._owners = parts.vendor_cards
        self._present = PresentPods(cluster, parts.vendor_cards)
        self._told: tuple[str, ...] = ()
        self._names = PodNames(cluster.ledger, cluster.live.pods)
        self._closed: frozenset[ClosedFile] = frozenset()
        self._found: tuple[FilesFound, ...] | None = None

    def series(self, metrics: DaemonMetrics) -> Iterator[Metric]:
        """What containers have on the disk, and how much of it can't be removed: the last pass."""
        found = self._found
        if found is not None:
            yield metrics.value("container_files_folders", sum(each.folders for each in found))
            yield metrics.value("container_files_bytes", sum(each.used_bytes for each in found))
            yield metrics.value("container_files_stuck", sum(len(each.stuck) for each in found))

    def tidy(self) -> float:
        """One pass; seconds until the next one."""
        used = self._used()
        found = [
            owner.upkeep.tidy(used, self._clock.monotonic())
            for owner in self._owners
            if owner.upkeep is not None
        ]
        stuck = tuple(reason for each in found for reason in each.stuck)
        self._found = tuple(found)
        if stuck != self._told:
            self._told = stuck
            self._tell(stuck)
        self._tell_pods(frozenset(file for each in found for file in each.closed))
        return min(self._waits(found), default=INTERVAL_S)

    def _waits(self, found: Sequence[FilesFound]) -> list[float]:
        return [min(each.next_s, INTERVAL_S) for each in found if each.next_s is not None]

    def _used(self) -> FilesInUse | None:
        """Whose files stay; None while the API server or kubelet's list can't be read."""
        listed = self._present.listed()
        if listed is None:
            return None
        entries = self._cluster.ledger.entries()
        return FilesInUse(
            uids=frozenset(self._present.held() | listed),
            is_held=lambda uid: uid in self._present.held(),
            answers=tuple(entry.answer for entry in entries),
        )

    def _tell(self, stuck: Sequence[str]) -> None:
        """Say what can't be removed: in the log and on the node."""
        node = self._cluster.view.node()
        if not stuck or node is None:
            return
        shown = "; ".join(stuck[:MAX_SHOWN])
        log.warning("container_files_left", extra=kv(count=len(stuck), files=shown))
        why = (
            f"{len(stuck)} files of ended containers can't be removed without rights that "
            f"hami-node does not have; remove them as an administrator: {shown}"
        )
        self._cluster.notify(EventNote.about(node, STUCK_EVENT, why))

    def _tell_pods(self, closed: frozenset[ClosedFile]) -> None:
        """Say once whose file is out of our hands: such a pod can fill the node's disk."""
        names = self._names.by_uid()
        for file in closed - self._closed:
            uid, _, container = file.folder.partition("_")
            namespace, pod = names.get(uid, NOBODY)
            log.warning("cache_file_closed", extra=kv(folder=file.folder, problem=file.why))
            if pod:
                note = EventNote(
                    kind="Pod",
                    namespace=namespace,
                    name=pod,
                    uid=uid,
                    reason=CLOSED_EVENT,
                    message=f"the limiter's cache file of container {container} {file.why}: it may "
                    "fill the disk of the node, and what the container uses of its cards may be "
                    "unknown: find out which program closed it, and delete the pod",
                )
                self._cluster.notify(note)
        self._closed = closed
