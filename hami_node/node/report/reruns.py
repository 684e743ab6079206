"""Init containers that kubelet runs again where others have got their share: people are told."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from hami_node.engine.usage import DeviceUsage, PodGrants
from hami_node.logs import kv
from hami_node.model import Pod, Uuid
from hami_node.ports import EventNote
from hami_node.vendors.holding import rerun_in_words

log = logging.getLogger(__name__)

EVENT: Final = "InitContainersRunAgain"


class Reruns:
    """Asked again and again, by one thread."""

    def __init__(self, notify: Callable[[EventNote], None]) -> None:
        """`notify` writes an Event, later."""
        self._notify = notify
        self._told: Collection[str] = ()

    def look(
        self,
        pods: Iterable[Pod],
        holders: Mapping[str, PodGrants],
        cards: Mapping[Uuid, DeviceUsage],
    ) -> int:
        """How many pods do so now; each is told when that begins."""
        held = ((pod, holders[pod.uid]) for pod in pods if pod.uid in holders)
        found = {pod.uid: (pod, rerun_in_words(pod, grants, cards)) for pod, grants in held}
        found = {uid: told for uid, told in found.items() if told[1]}
        for uid in found.keys() - self._told:
            pod, why = found[uid]
            log.error("init_containers_run_again", extra=kv(pod=pod.key, why=why))
            self._notify(EventNote.about(pod, EVENT, why))
        self._told = frozenset(found)
        return len(found)
