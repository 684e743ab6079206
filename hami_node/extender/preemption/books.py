"""What decisions look at while room is kept for some pods."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from hami_node.engine.fleet.fleet import Fleet, IsTimeUp, NoNode, Placed, Unfinished
from hami_node.engine.fleet.kept import place_beside
from hami_node.engine.place import PodRequest, Refused
from hami_node.extender.preemption.kept_rooms import KeptRooms
from hami_node.extender.state.pod_book import PodBook
from hami_node.model import Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """The state's parts; to be used only while its lock is held."""

    lock: AbstractContextManager[object]
    fleet: Fleet
    pods: PodBook
    kept: KeptRooms

    @contextmanager
    def held(self) -> Iterator[Books]:
        """With the state's lock: one decision at a time."""
        with self.lock:
            yield self

    def place(
        self,
        pod: Pod,
        request: PodRequest,
        candidates: Collection[str] | None,
        is_time_up: IsTimeUp,
    ) -> Placed | NoNode | Refused | Unfinished:
        """Choose node and cards, and take no room that is kept for others; nothing is charged."""
        kept = self.kept.against(pod.uid, pod.priority)
        return place_beside(self.fleet, request, candidates, kept, is_time_up)
