"""Lets each vendor remove the files of containers that have ended, and shows what they take."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Final

from hami_node.errors import KubeletError
from hami_node.logs import kv
from hami_node.node.parts import ClusterParts, NodeParts
from hami_node.node.probes import SILENCE_LIMIT_S
from hami_node.ports import EventNote, HeldContainer
from hami_node.vendors.on_node.upkeep import FilesFound, FilesInUse

log = logging.getLogger(__name__)

INTERVAL_S: Final = 600.0
START_CHECK_S: Final = 0.05
STUCK_EVENT: Final = "ContainerFilesLeft"
MAX_SHOWN: Final = 5


class FileKeeper:
    """`run` is the thread's body. It wakes when containers have ended, and rarely besides."""

    def __init__(self, parts: NodeParts, cluster: ClusterParts, recorded: threading.Event) -> None:
        """Wire the sources. Before `recorded` is set it is not known who holds what."""
        self._cluster, self._clock, self._recorded = cluster, parts.clock, recorded
        self._owners = parts.vendor_cards
        self._wake = threading.Event()
        self._told: tuple[str, ...] = ()

    def wake(self) -> None:
        """Containers have ended."""
        self._wake.set()

    def run(self, stop: threading.Event) -> None:
        """Tidy until stopped."""
        while not stop.is_set():
            if not self._recorded.wait(START_CHECK_S):
                continue
            wait_s = self.tidy()
            if self._wake.wait(wait_s):
                self._wake.clear()

    def tidy(self) -> float:
        """One pass; seconds until the next one."""
        used = self._used()
        found = [
            owner.upkeep.tidy(used, self._clock.monotonic())
            for owner in self._owners
            if owner.upkeep is not None
        ]
        stuck = tuple(reason for each in found for reason in each.stuck)
        self._cluster.metrics.set_container_files(
            sum(each.folders for each in found), sum(each.used_bytes for each in found), len(stuck)
        )
        if stuck != self._told:
            self._told = stuck
            self._tell(stuck)
        return min(self._waits(found), default=INTERVAL_S)

    def _waits(self, found: Sequence[FilesFound]) -> list[float]:
        return [min(each.next_s, INTERVAL_S) for each in found if each.next_s is not None]

    def _used(self) -> FilesInUse | None:
        """Whose files stay; None while the API server or kubelet's list can't be read."""
        view = self._cluster.view
        age_s = view.last_contact_age_s()
        if not view.is_synced() or age_s is None or age_s > SILENCE_LIMIT_S:
            return None
        try:
            listed = self._cluster.kubelet.list()
        except KubeletError as e:
            log.debug("files_not_tidied", extra=kv(error=str(e)))
            return None
        by_name = self._uids_by_name()
        uids = self._held()
        for item in listed:
            if not self._has_cards(item):
                continue
            named = by_name.get((item.namespace, item.pod))
            if not named:
                return None  # kubelet's list names no uid: it may be anybody's
            uids |= named
        entries = self._cluster.ledger.entries()
        return FilesInUse(
            uids=frozenset(uids),
            is_held=lambda uid: uid in self._held(),
            answers=tuple(entry.answer for entry in entries),
        )

    def _has_cards(self, item: HeldContainer) -> bool:
        names = (each.name for owner in self._owners for each in owner.resources)
        return any(item.device_ids.get(name) for name in names)

    def _held(self) -> set[str]:
        """The uids on record, and of the pods that the API server has and that have not ended."""
        live = {pod.uid for pod in self._cluster.live.pods() if not pod.is_over}
        return live | {entry.pod_uid for entry in self._cluster.ledger.entries()}

    def _uids_by_name(self) -> dict[tuple[str, str], set[str]]:
        found: dict[tuple[str, str], set[str]] = {}
        for pod in self._cluster.live.pods():
            found.setdefault((pod.namespace, pod.name), set()).add(pod.uid)
        for entry in self._cluster.ledger.entries():
            found.setdefault((entry.namespace, entry.pod), set()).add(entry.pod_uid)
        return found

    def _tell(self, stuck: Sequence[str]) -> None:
        """Say what can't be removed: in the log and on the node."""
        node = self._cluster.view.node()
        if not stuck or node is None:
            return
        shown = "; ".join(stuck[:MAX_SHOWN])
        log.warning("container_files_left", extra=kv(count=len(stuck), files=shown))
        self._cluster.notify(
            EventNote(
                kind="Node",
                namespace="",
                name=node.name,
                uid=node.uid,
                reason=STUCK_EVENT,
                message=f"{len(stuck)} files of ended containers can't be removed without rights "
                f"that hami-node does not have; remove them as an administrator: {shown}",
            )
        )
