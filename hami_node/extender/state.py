"""The cluster as decisions see it: cards of nodes, grants of pods, reservations in the making.

Fed by the watches. A reservation counts from the moment of the decision: the watch may show the pod
as it was before for a while, and that must not give its cards away.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from hami_node.engine.filters import Rejection
from hami_node.engine.fleet import Fleet, NoNode, Placed
from hami_node.engine.place import PodRequest, Refused
from hami_node.engine.quota import Limits, QuotaBook
from hami_node.engine.usage import Charge, DeviceUsage
from hami_node.extender import holdings
from hami_node.extender.counted import (
    Counted,
    Marks,
    has_grants,
    is_overfull,
    reservation_marks,
    version_of,
)
from hami_node.extender.decisions import Busy, Reserved
from hami_node.extender.node_book import NodeBook
from hami_node.extender.rules import ExtenderRules
from hami_node.logs import kv
from hami_node.model import Device, Node, Pod, Uuid, Vendor
from hami_node.ports import Clock

log = logging.getLogger(__name__)

UNBOUND_S: Final = 300.0
"""A reservation of a pod that is not bound counts for so long: as long as a node lock."""
MAX_GONE: Final = 20_000
"""Pods deleted or ended that are remembered: an answer about one may come late."""


class ClusterState:
    """Thread-safe; one decision at a time."""

    def __init__(self, rules: ExtenderRules, clock: Clock, unbound_s: float = UNBOUND_S) -> None:
        """Start empty; an unbound reservation counts for `unbound_s` seconds."""
        self.rules = rules
        self._clock, self._unbound_s = clock, unbound_s
        self._lock = threading.RLock()
        self._fleet = Fleet(rules.engine, QuotaBook(rules.config.memory_factor))
        self._pods: dict[str, Counted] = {}
        self._book = NodeBook(self._fleet, rules.names)
        self._gone: dict[str, None] = {}
        self._last_token = 0

    # -- what the watches say ----------------------------------------------------------------------
    def node_changed(self, before: Node | None, after: Node | None) -> None:
        """Take a change of one node."""
        with self._lock:
            if after is not None:
                self._book.put(after)
            elif before is not None:
                self._book.remove(before.name)

    def give_up(self, node: str, vendor: Vendor, why: str) -> None:
        """Offer nothing of a vendor on a node until `take_back`: its daemon has gone silent."""
        with self._lock:
            self._book.give_up(node, vendor, why)

    def take_back(self, node: str, vendor: Vendor) -> None:
        """The daemon was heard again."""
        with self._lock:
            self._book.take_back(node, vendor)

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """Take a change of one pod from the watch."""
        with self._lock:
            if after is not None:
                self._gone.pop(after.uid, None)
                self._count(after)
                if after.is_over:
                    self._remember_gone(after.uid)
            elif before is not None:
                self._remember_gone(before.uid)
                self._drop(before.uid)

    def learned(self, pod: Pod) -> None:
        """Take a pod as the API server answered with it; it may have been deleted since."""
        with self._lock:
            if pod.uid not in self._gone:
                self._count(pod)

    def set_quota(self, namespace: str, name: str, limits: Limits | None) -> None:
        """Take a change of one ResourceQuota; None removes it."""
        with self._lock:
            self._fleet.quotas.set_limits(namespace, name, limits)

    def sweep(self, present: Collection[str], version: int = 0) -> None:
        """Drop reservations of pods that were not bound in time, and pods that are gone.

        A pod that came and went while the watch was broken is never told as deleted.

        Args:
            present: uids of the pods that the watch shows.
            version: it shows them all as of this resourceVersion, or later.
        """
        with self._lock:
            now_s = self._clock.monotonic()
            for uid, counted in list(self._pods.items()):
                self._drop_if_late(counted)
                if uid in present or counted.token or counted.is_binding:
                    continue
                is_shown = 0 < version_of(counted.pod) <= version
                if is_shown or now_s - counted.born_s > self._unbound_s:
                    self._drop(uid)

    def leftovers(self) -> tuple[Pod, ...]:
        """Pods that carry a reservation which no longer counts."""
        with self._lock:
            return tuple(
                counted.pod
                for counted in self._pods.values()
                if counted.is_void and not (counted.token or counted.is_binding)
                if not (counted.pod.node_name or counted.pod.is_being_deleted)
            )

    # -- decisions -------------------------------------------------------------------------------
    def reserve(
        self, pod: Pod, request: PodRequest, candidates: Collection[str] | None
    ) -> Reserved | NoNode | Refused | Busy:
        """Free what the pod held, choose its node and cards and charge them, in one step."""
        with self._lock:
            if pod.uid in self._gone:
                return Refused(why=f"pod {pod.key} is deleted or has ended")
            counted = self._pods.get(pod.uid) or self._new(replace(pod, resource_version=""))
            if counted.pod.node_name:
                return Refused(why=f"pod {pod.key} is bound to node {counted.pod.node_name}")
            if counted.is_binding or counted.is_doubtful:
                return Busy(f"pod {pod.key} is being bound to node {counted.node}")
            if has_grants(pod):
                counted.disown(reservation_marks(pod))
            self._forget(counted)
            answer = self._fleet.place(request, candidates)
            if not isinstance(answer, Placed):
                return answer
            self._last_token += 1
            counted.token = self._last_token
            counted.node, counted.since_s = answer.node, self._clock.monotonic()
            self._fleet.add_pod(pod.uid, pod.namespace, answer.node, answer.grants)
            return Reserved(
                token=counted.token, placed=answer, devices=self._devices_of(answer.node)
            )

    def is_current(self, uid: str, token: int) -> bool:
        """True while this reservation is the pod's last."""
        with self._lock:
            counted = self._pods.get(uid)
            return counted is not None and counted.token == token

    def committed(self, uid: str, token: int, answer: Pod) -> bool:
        """The API server has stored this reservation, as part of `answer`; False if it is void."""
        with self._lock:
            counted = self._pods.get(uid)
            if counted is None:
                return False
            marks = reservation_marks(answer)
            if counted.token != token:
                self._void(counted, marks)
                return False
            counted.token = 0
            counted.own(marks)
            self._count(max(answer, counted.pod, key=version_of))
            return True

    def undo(self, uid: str, token: int, written: Marks = ()) -> None:
        """The reservation was not stored, or is given up; `written` are its marks, if it may be."""
        with self._lock:
            counted = self._pods.get(uid)
            if counted is None:
                return
            if counted.token == token:
                self._forget(counted)
            if written:
                self._void(counted, written)

    @contextmanager
    def binding(self, uid: str) -> Iterator[bool]:
        """While a pod is bound it is not filtered, and its reservation lasts.

        Gives False where another call binds it, or filters it, just now.
        """
        with self._lock:
            counted = self._pods.get(uid)
            is_free = counted is None or not (counted.is_binding or counted.token)
            if counted is not None and is_free:
                counted.is_binding = True
        try:
            yield is_free
        finally:
            if counted is not None and is_free:
                with self._lock:
                    counted.is_binding = False

    def bound(self, uid: str, node: str) -> None:
        """The pod was bound, which the watch may show later."""
        with self._lock:
            counted = self._pods.get(uid)
            if counted is not None:
                self._count(replace(counted.pod, node_name=counted.pod.node_name or node))

    def doubt(self, uid: str) -> None:
        """Nobody knows whether the pod was bound: keep its cards until that can be told."""
        with self._lock:
            counted = self._pods.get(uid)
            if counted is not None and not counted.pod.node_name:
                counted.is_doubtful = True

    def is_doubtful(self, uid: str) -> bool:
        """True while nobody knows whether the pod was bound."""
        with self._lock:
            counted = self._pods.get(uid)
            return counted is not None and counted.is_doubtful

    def settle(self, uid: str, now: Pod) -> None:
        """End a doubt by what the API server has under the pod's name now."""
        with self._lock:
            if (counted := self._pods.get(uid)) is not None:
                counted.is_doubtful = False
            self.learned(now)

    def release(self, uid: str) -> None:
        """Free what a pod holds that could not be bound."""
        with self._lock:
            counted = self._pods.get(uid)
            if counted is not None and not counted.pod.node_name:
                self._forget(counted)

    def explain(
        self, request: PodRequest, candidates: Iterable[str] | None = None
    ) -> Mapping[str, Rejection] | Refused:
        """Why each node can't take the pod; nodes that can are left out."""
        with self._lock:
            return self._fleet.explain(request, candidates)

    # -- questions -------------------------------------------------------------------------------
    def latest(self, uid: str) -> Pod | None:
        """The newest known state of a pod that holds cards or was filtered."""
        with self._lock:
            counted = self._pods.get(uid)
            return None if counted is None else counted.pod

    def node(self, name: str) -> Node | None:
        """A node as the watch has it."""
        with self._lock:
            return self._book.nodes.get(name)

    def nodes(self) -> tuple[Node, ...]:
        """All nodes as the watch has them."""
        with self._lock:
            return tuple(self._book.nodes.values())

    def why_not_offered(self, node: str) -> str:
        """Why a node offers no card, for people."""
        with self._lock:
            offer = self._book.offers.get(node)
            return "the node is not known" if offer is None else offer.why_empty

    def reservation_of(self, uid: str) -> str:
        """The node that holds a pod's reservation; "" without one."""
        with self._lock:
            return self._fleet.node_of(uid) or ""

    def overcommitted(self, uid: str) -> tuple[str, ...]:
        """The cards below a pod's grants that hold more than they have, or are gone or sick."""
        with self._lock:
            node = self._fleet.node_of(uid)
            seat = self._fleet.nodes.get(node) if node is not None else None
            if seat is None:
                return ()
            cards, charges = seat.usage.cards, seat.usage.charges(uid)
            return tuple(sorted(one.uuid for one in charges if is_overfull(cards.get(one.uuid))))

    def catch_up(self) -> None:
        """Do now what the next decision would do first; after a list that is much."""
        with self._lock:
            self._fleet.catch_up()

    def sizes(self) -> tuple[int, int]:
        """(nodes that offer cards, pods that hold cards)."""
        with self._lock:
            return self._book.offering, self._fleet.pod_count

    def usage(self) -> dict[str, Mapping[Uuid, DeviceUsage]]:
        """Every card of every node with what is taken of it."""
        with self._lock:
            return {name: seat.usage.cards for name, seat in sorted(self._fleet.nodes.items())}

    def cards_of(self, node: str) -> Mapping[Uuid, DeviceUsage]:
        """The cards of a node with what is taken of them; none for an unknown node."""
        with self._lock:
            seat = self._fleet.nodes.get(node)
            return {} if seat is None else seat.usage.cards

    def largest_mib(self, nodes: Iterable[str]) -> dict[str, int]:
        """All memory of the largest NVIDIA card of each of these nodes, MiB; 0 without one."""
        with self._lock:
            return self._book.largest_mib(nodes)

    def charges(self) -> dict[str, tuple[str, tuple[Charge, ...]]]:
        """Node and charges of every pod that holds something, by uid."""
        with self._lock:
            return {
                uid: (name, seat.usage.charges(uid))
                for name, seat in self._fleet.nodes.items()
                for uid in seat.usage.pods
            }

    # -- inside ------------------------------------------------------------------------------------
    def _devices_of(self, node: str) -> dict[Uuid, Device]:
        cards = self._fleet.nodes[node].usage.cards
        return {uuid: card.device for uuid, card in cards.items()}

    def _new(self, pod: Pod) -> Counted:
        counted = Counted(pod=pod, born_s=self._clock.monotonic())
        self._pods[pod.uid] = counted
        return counted

    def _count(self, pod: Pod) -> None:
        """Charge a pod as its annotations say, unless a newer state of it is known."""
        counted = self._pods.get(pod.uid)
        if counted is None:
            if pod.is_over or not has_grants(pod):
                return
            counted = self._new(pod)
        if counted.is_outdated(pod):
            return
        counted.pod = pod
        if pod.node_name:
            counted.is_doubtful = False
        if counted.token and not pod.node_name and not pod.is_over:
            return  # the decision under way counts
        marks = holdings.marks_of(pod)
        if counted.marks != marks:
            counted.token, counted.marks = 0, marks
            self._charge(counted)

    def _charge(self, counted: Counted) -> None:
        pod = counted.pod
        holding = holdings.holding_of(pod, self.rules.names)
        if pod.is_over:
            del self._pods[pod.uid]
        if holding is not None and not holding.is_bound and counted.is_void:
            holding = None
        if holding is None:
            self._fleet.remove_pod(pod.uid)
            counted.node, counted.since_s = "", None
            return
        self._fleet.add_pod(pod.uid, pod.namespace, holding.node, holding.grants)
        counted.node = holding.node
        if holding.is_bound:
            counted.since_s, counted.void = None, ()
        elif counted.since_s is None:
            counted.since_s = self._clock.monotonic()
        self._drop_if_late(counted)

    def _drop_if_late(self, counted: Counted) -> None:
        age_s = counted.age_s(self._clock.monotonic(), self._clock.now())
        if age_s is not None and age_s > self._unbound_s:
            log.info("reservation_expired", extra=kv(pod=counted.pod.key, node=counted.node))
            self._forget(counted)

    def _void(self, counted: Counted, marks: Marks) -> None:
        """A reservation that a later call, or a failure, has overtaken counts no more."""
        if counted.pod.node_name:
            return
        counted.disown(marks)
        if not counted.token and counted.node and counted.is_void:
            self._forget(counted)

    def _forget(self, counted: Counted) -> None:
        """Free what the pod holds; what it carries now counts no more."""
        if has_grants(counted.pod):
            counted.disown(reservation_marks(counted.pod))
        self._fleet.remove_pod(counted.pod.uid)
        counted.node, counted.since_s, counted.token, counted.marks = "", None, 0, ()
        counted.is_doubtful = False

    def _drop(self, uid: str) -> None:
        self._pods.pop(uid, None)
        self._fleet.remove_pod(uid)

    def _remember_gone(self, uid: str) -> None:
        self._gone[uid] = None
        if len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]
