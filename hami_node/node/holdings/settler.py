"""Keeps the ledger up to date between the calls of kubelet: pods end without an Allocate too."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from hami_node.errors import KubeError, KubeletError, NotFound
from hami_node.logs import kv
from hami_node.node.holdings.live_use import LiveUse
from hami_node.ports import Kube, PodResources
from hami_node.record.file import Loaded
from hami_node.record.ledger import Entry, Ledger

log = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0
MAX_ASKED: Final = 8
"""Pods that are read from the API server at once."""


class Settler:
    """A step of the loop."""

    def __init__(
        self,
        *,
        live: LiveUse,
        kube: Kube,
        resources: PodResources,
        on_settled: Callable[[], None] = lambda: None,
    ) -> None:
        """Wire the parts. `on_settled` is called after each pass that changed the ledger."""
        self._live, self._kube, self._resources = live, kube, resources
        self._on_settled = on_settled

    def begin(self) -> None:
        """Record what runs here already; to be called before the first Allocate is answered."""
        try:
            listed = self._resources.list()
        except KubeletError as e:
            log.warning("settled_without_list", extra=kv(error=str(e)))
            self._live.settle(None)
        else:
            self._live.settle(listed)

    def look(self) -> float:
        """Settle; seconds until it is done again, if nothing changes before."""
        if self.settle():
            self._on_settled()
        return INTERVAL_S

    def settle(self) -> bool:
        """One pass; True if the ledger has changed.

        kubelet and the API server are asked only about pods that the watch lacks.
        """
        has_changed = self._live.refresh()
        missing = {one.pod_uid for one in self._live.missing()}
        if not missing:
            return has_changed
        try:
            has_changed = self._live.settle(self._resources.list()) or has_changed
        except KubeletError as e:
            log.debug("not_settled", extra=kv(error=str(e)))
            return has_changed
        unsure = [one for one in self._live.unlisted() if one.pod_uid in missing]
        return notice_ended(self._live, self._kube, unsure) or has_changed


def notice_ended(live: LiveUse, kube: Kube, holders: Sequence[Entry]) -> bool:
    """Ask the API server about the pods of these entries; True if any of them has ended."""
    found = False
    for one in holders[:MAX_ASKED]:
        try:
            now = kube.read_pod(one.namespace, one.pod)
        except NotFound:
            now = None
        except KubeError as e:
            log.info("holder_not_read", extra=kv(pod=one.pod_key, error=str(e)))
            continue
        found = live.ended_as(one, now) or found
    return found


def complete_record(
    found: Loaded, ledger: Ledger, settler: Settler, on_rebuilt: Callable[[Loaded], None]
) -> None:
    """Add what the ledger lacks, before the first Allocate is answered.

    `found` is what was read of it; `on_rebuilt` is called with it where it had to be rebuilt.
    """
    read = len(ledger.entries())
    settler.begin()
    known = len(ledger.entries())
    if found.is_lost or (found.problem and known):
        on_rebuilt(found)
        log.warning("record_rebuilt", extra=kv(why=found.problem, read=read, added=known - read))
    else:
        log.info("record_read", extra=kv(read=read, added=known - read))
