"""Pods that differ from the record, and init containers that run again on cards of others."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from hami_node.logs import kv
from hami_node.node.state import NodeState
from hami_node.node.strangers import Drift
from hami_node.ports import EventNote
from hami_node.vendors.holding import rerun_in_words

log = logging.getLogger(__name__)

RERUN_EVENT: Final = "InitContainersRunAgain"


class PodRounds:
    """A step of the loop; what was seen last is read by others, who never wait.

    Attributes:
        drifted: pods whose annotations say otherwise than the ledger.
        rerunning: uids of pods whose init containers run again.
    """

    def __init__(self, node: NodeState) -> None:
        """Nothing has been looked at yet."""
        self._node, self._drift = node, Drift(node.ledger, node.served)
        self.drifted = 0
        self.rerunning: Collection[str] = ()

    def look(self) -> None:
        """One look at every pod; each new finding is logged, and an Event on its pod."""
        node = self._node
        pods, holders, usage = node.live.pods(), node.live.holders(), node.live.cards(node.cards())
        self.drifted = self._drift.look(pods)
        found = set[str]()
        for pod in pods:
            why = rerun_in_words(pod, holders[pod.uid], usage) if pod.uid in holders else ""
            if not why:
                continue
            found.add(pod.uid)
            if pod.uid not in self.rerunning:
                log.error("init_containers_run_again", extra=kv(pod=pod.key, why=why))
                node.notify(EventNote.about(pod, RERUN_EVENT, why))
        self.rerunning = found
