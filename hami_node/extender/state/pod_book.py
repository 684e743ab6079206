"""The pods of the watch, and the grants of them that are charged."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from hami_node.engine.fleet.fleet import Fleet
from hami_node.extender.state.counted_pod import NOTHING, Counted, Marks, reservation_marks
from hami_node.logs import kv
from hami_node.metrics.cluster_use import PodUse
from hami_node.model import Pod
from hami_node.ports import Clock
from hami_node.vendors import holding as holdings
from hami_node.vendors.protocol import VendorProtocol

log = logging.getLogger(__name__)

MAX_GONE: Final = 20_000
"""Deleted or ended pods that are remembered: a response about such a pod may arrive late."""


class PodBook:
    """Every pod that holds cards or was filtered. Not thread-safe: its owner holds a lock."""

    def __init__(
        self, fleet: Fleet, vendors: Sequence[VendorProtocol], clock: Clock, unbound_s: float
    ) -> None:
        """Charge to `fleet`; an unbound reservation counts for `unbound_s` seconds."""
        self._fleet, self._vendors = fleet, vendors
        self._clock, self._unbound_s = clock, unbound_s
        self._pods: dict[str, Counted] = {}
        self._gone: dict[str, None] = {}

    def find(self, uid: str) -> Counted | None:
        """What is recorded about a pod; None if it never held cards nor was filtered."""
        return self._pods.get(uid)

    def find_or_add(self, pod: Pod) -> Counted:
        """The same; a new pod is recorded in a state that is replaced by any other."""
        return self._pods.get(pod.uid) or self._new(replace(pod, resource_version=""))

    def is_gone(self, uid: str) -> bool:
        """True if the pod was deleted or has ended, as far as that is remembered."""
        return uid in self._gone

    def put(self, pod: Pod) -> None:
        """Apply a pod as the watch shows it."""
        self._gone.pop(pod.uid, None)
        self.count(pod)
        if pod.is_over:
            self._remember_gone(pod.uid)

    def remove(self, uid: str) -> None:
        """The pod was deleted."""
        self._remember_gone(uid)
        self._drop(uid)

    def sweep(self, present: Collection[str], version: int) -> None:
        """Drop reservations of pods that were not bound in time, and pods that no longer exist.

        Args:
            present: uids of the pods that the watch shows.
            version: the resourceVersion that the watch has reached at least.
        """
        now_s = self._clock.monotonic()
        for uid, counted in list(self._pods.items()):
            self._drop_if_late(counted)
            if uid in present or counted.token or counted.is_binding:
                continue
            is_shown = 0 < counted.pod.version <= version
            if is_shown or now_s - counted.born_s > self._unbound_s:
                self._drop(uid)

    def in_use(self, nodes: Collection[str] | None) -> list[PodUse]:
        """What every pod holds, on these nodes; None for all."""
        return [
            PodUse(counted.pod, counted.node, counted.grants)
            for counted in self._pods.values()
            if counted.node and (nodes is None or counted.node in nodes)
        ]

    def leftovers(self) -> tuple[Pod, ...]:
        """Pods that carry a reservation which no longer counts."""
        return tuple(
            counted.pod
            for counted in self._pods.values()
            if counted.is_void(self._vendors) and not (counted.token or counted.is_binding)
            if not (counted.pod.node_name or counted.pod.is_being_deleted)
        )

    def count(self, pod: Pod) -> None:
        """Charge a pod by its annotations, unless a newer state of it is known."""
        counted = self._pods.get(pod.uid)
        if counted is None:
            if pod.is_over or not holdings.has_grants(pod, self._vendors):
                return
            counted = self._new(pod)
        if counted.is_outdated(pod):
            return
        counted.pod = pod
        if pod.node_name:
            counted.is_doubtful = False
        if counted.token and not pod.node_name and not pod.is_over:
            return  # the decision in progress counts
        marks = holdings.marks_of(pod, self._vendors)
        if counted.marks != marks:
            counted.token, counted.marks = 0, marks
            self._charge(counted)

    def void(self, counted: Counted, marks: Marks) -> None:
        """A reservation that a later call or a failure has superseded no longer counts."""
        if counted.pod.node_name:
            return
        counted.disown(marks)
        if not counted.token and counted.node and counted.is_void(self._vendors):
            self.forget(counted)

    def forget(self, counted: Counted) -> None:
        """Release what the pod holds; the reservation that it carries no longer counts."""
        if holdings.has_grants(counted.pod, self._vendors):
            counted.disown(reservation_marks(counted.pod, self._vendors))
        self._fleet.remove_pod(counted.pod.uid)
        counted.node, counted.since_s, counted.token, counted.marks = "", None, 0, ()
        counted.grants = NOTHING
        counted.is_doubtful = False

    def _new(self, pod: Pod) -> Counted:
        counted = Counted(pod=pod, born_s=self._clock.monotonic())
        self._pods[pod.uid] = counted
        return counted

    def _charge(self, counted: Counted) -> None:
        pod = counted.pod
        holding = holdings.holding_of(pod, self._vendors)
        if pod.is_over:
            del self._pods[pod.uid]
        if holding is not None and not holding.is_bound and counted.is_void(self._vendors):
            holding = None
        if holding is None:
            self._fleet.remove_pod(pod.uid)
            counted.node, counted.grants, counted.since_s = "", NOTHING, None
            return
        self._fleet.add_pod(pod.uid, pod.namespace, holding.node, holding.grants)
        counted.node, counted.grants = holding.node, holding.grants
        if holding.is_bound:
            counted.since_s, counted.void = None, ()
        elif counted.since_s is None:
            counted.since_s = self._clock.monotonic()
        self._drop_if_late(counted)

    def _drop_if_late(self, counted: Counted) -> None:
        age_s = counted.age_s(self._clock.monotonic(), self._clock.now())
        if age_s is not None and age_s > self._unbound_s:
            log.info("reservation_expired", extra=kv(pod=counted.pod.key, node=counted.node))
            self.forget(counted)

    def _drop(self, uid: str) -> None:
        self._pods.pop(uid, None)
        self._fleet.remove_pod(uid)

    def _remember_gone(self, uid: str) -> None:
        self._gone[uid] = None
        if len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]
