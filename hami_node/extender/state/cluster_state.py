"""The cluster as decisions see it: cards of nodes, grants of pods, reservations not yet stored.

Updated by the watches. A reservation counts from the moment of the decision: for a while the watch
may show the pod without it, and its cards must not be granted again meanwhile.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter, length_hint
from typing import Final

from hami_node.engine.filters import Rejection
from hami_node.engine.fleet.effort import Effort
from hami_node.engine.fleet.fleet import Fleet, NoNode, Placed, Unfinished
from hami_node.engine.place import PodRequest, Refused
from hami_node.engine.quota import Limits, QuotaBook
from hami_node.engine.usage import Charge, DeviceUsage
from hami_node.extender.preemption.kept_rooms import Books, KeptRooms
from hami_node.extender.rules import ExtenderRules
from hami_node.extender.state.carried import Carried
from hami_node.extender.state.decisions import (
    Busy,
    NoRoom,
    Reserved,
    Snapshot,
    snapshot_of,
    unfinished,
)
from hami_node.extender.state.node_back_off import FORGET_S, NodeBackOff
from hami_node.extender.state.node_book import NodeBook
from hami_node.extender.state.pod_book import Counted, PodBook, is_overfull, reservation_marks
from hami_node.extender.state.slices import Slice, Slices, explain_steps, pause
from hami_node.logs import kv
from hami_node.metrics.cluster_use import ClusterUse
from hami_node.model import Device, Node, Pod, Uuid, Vendor
from hami_node.ports import Clock
from hami_node.vendors.offer import registered_cards
from hami_node.vendors.resizing import Resizing

log = logging.getLogger(__name__)

SWEPT_AT_ONCE: Final = 2_000
"""Pods that a sweep looks at while a decision waits: about a millisecond."""


class ClusterState:
    """Thread-safe; one decision at a time."""

    def __init__(self, rules: ExtenderRules, clock: Clock) -> None:
        """Start empty."""
        self.rules = rules
        self._clock = clock
        self._lock = threading.RLock()
        factor = 1 if rules.limited is None else rules.limited.memory_factor
        self._fleet = Fleet(rules.engine, QuotaBook(factor))
        self._nodes = NodeBook(self._fleet, rules.vendors, rules.node_labels)
        self._pods = PodBook(self._fleet, rules.vendors, clock)
        self._back_off = NodeBackOff(rules.vendors, clock)
        kept = KeptRooms(self._fleet, clock, rules.vendors, self._pods)
        self.books = Books(lock=self._lock, fleet=self._fleet, pods=self._pods, kept=kept)
        self._slices = Slices(clock)
        self._last_token = 0
        self._missed_s = -math.inf
        """When a pod last found no node."""

    # -- changes from the watches ------------------------------------------------------------------
    def node_changed(self, before: Node | None, after: Node | None) -> None:
        """Apply a change of one node."""
        with self._lock:
            self._back_off.node_changed(before, after)
            if after is not None:
                self._nodes.put(after)
            elif before is not None:
                self._nodes.remove(before.name)
            if (node := after or before) is not None:
                self._pods.hear(node.name, after)

    def give_up(self, node: str, vendor: Vendor, why: str) -> None:
        """Offer no cards of a vendor on a node until `take_back`: its daemon has gone silent."""
        with self._lock:
            self._nodes.give_up(node, vendor, why)

    def take_back(self, node: str, vendor: Vendor) -> None:
        """The daemon has reported again."""
        with self._lock:
            self._nodes.take_back(node, vendor)

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """Apply a change of one pod from the watch.

        Its versions only grow, unless the cluster was restored from a backup: nothing of what came
        after that is true any more.
        """
        with self._lock:
            self._back_off.pod_changed(before, after)
            if after is not None:
                if before is not None and after.version < before.version:
                    self._pods.remove(before.uid)
                self._pods.put(after)
                self.books.kept.hear(after)
            elif before is not None:
                self._pods.remove(before.uid)
                self.books.kept.ended(before)

    def learned(self, pod: Pod) -> None:
        """Apply a pod from a response of the API server; it may have been deleted since."""
        with self._lock:
            if not self._pods.is_gone(pod.uid):
                self._pods.count(pod)

    def set_quota(self, namespace: str, name: str, limits: Limits | None) -> None:
        """Apply a change of one ResourceQuota; None removes it."""
        with self._lock:
            self._fleet.quotas.set_limits(namespace, name, limits)

    def sweep(self, present: Collection[str], version: int = 0) -> None:
        """Drop reservations of pods that were not bound in time, and pods that no longer exist.

        A pod that was created and deleted while the watch was broken is never reported as deleted.

        Args:
            present: uids of the pods that the watch shows.
            version: the resourceVersion that the watch has reached at least.
        """
        for uids in self._parts():
            self._pods.sweep(uids, present, version)
        with self._lock:
            self._back_off.sweep()

    def leftovers(self) -> tuple[Pod, ...]:
        """Pods that carry a reservation which no longer counts, or whose binding is in doubt."""
        return tuple(pod for uids in self._parts() for pod in self._pods.leftovers(uids))

    def _parts(self) -> Iterator[list[str]]:
        """All pods that are recorded, some at a time with the lock; others have it in between."""
        with self._lock:
            uids = self._pods.uids()
        for first in range(0, len(uids), SWEPT_AT_ONCE):
            if first:
                pause()
            with self._lock:
                yield uids[first : first + SWEPT_AT_ONCE]

    # -- decisions -------------------------------------------------------------------------------
    def reserve(
        self,
        pod: Pod,
        request: PodRequest,
        candidates: Collection[str] | None,
        *,
        is_binding: bool = False,
    ) -> Reserved | NoNode | Refused | Busy:
        """Release what the pod held, choose its node and cards and charge them, in one step.

        Args:
            pod: as it is now.
            request: what it asks for.
            candidates: the nodes to choose from; None means all.
            is_binding: the caller is the one that binds it.
        """
        took_s = 0.0
        for turn in self._slices.some_turns():
            answer = self._reserve(pod, request, candidates, turn, is_binding=is_binding)
            took_s += turn.took_s()
            if isinstance(answer, NoNode):
                return NoNode(took_s)
            if answer is not None:
                return answer
            # others have the lock
        with self._lock:
            self._fleet.put_off(request)
        return unfinished(pod)

    def _reserve(
        self,
        pod: Pod,
        request: PodRequest,
        candidates: Collection[str] | None,
        turn: Slice,
        *,
        is_binding: bool,
    ) -> Reserved | NoNode | Refused | Busy | None:
        """One slice of it; None if the time was up."""
        with self._lock:
            turn()
            if self._pods.is_gone(pod.uid):
                return Refused(why=f"pod {pod.key} is deleted or has ended")
            counted = self._pods.find_or_add(pod)
            if counted.pod.node_name:
                why = f"pod {pod.key} is bound to node {counted.pod.node_name}"
                self._pods.call_ended(counted)
                return Refused(why=why)
            if (counted.is_binding and not is_binding) or counted.void_version:
                return Busy(f"pod {pod.key} is being bound to node {counted.node}")
            freed, held_on = self._pods.freed, counted.node
            self._pods.forget(counted)
            closed = self._back_off.closed_of(candidates)
            every = self._fleet.nodes if candidates is None else candidates
            is_open = [name for name in every if name not in closed] if closed else candidates
            answer = self.books.place(pod, request, is_open, turn)
            if not isinstance(answer, Placed):
                if not isinstance(answer, Refused):
                    self._missed(closed)
                self._pods.call_ended(counted)
                return None if isinstance(answer, Unfinished) else answer
            if answer.node == held_on:
                self._pods.freed = freed
            self._last_token += 1
            self._pods.reserve(counted, answer.node, answer.grants, self._last_token)
            self._pods.failures.reserved(pod, counted.pod)
            return Reserved(
                token=counted.token, placed=answer, devices=self._devices_of(answer.node)
            )

    def _missed(self, closed: Collection[str]) -> None:
        """A pod waits, and might have gone to one of these nodes."""
        now_s = self._clock.monotonic()
        if now_s - self._missed_s > FORGET_S:
            self._pods.freed = ""  # nobody waited for that
        self._missed_s = now_s
        self._back_off.missed(closed)

    def is_current(self, uid: str, token: int) -> bool:
        """True while this reservation is the pod's latest."""
        with self._lock:
            counted = self._pods.find(uid)
            return counted is not None and counted.token == token

    def committed(self, uid: str, token: int, answer: Pod) -> bool:
        """The API server has stored this reservation in `answer`; False if it no longer counts."""
        with self._lock:
            counted = self._pods.find(uid)
            if counted is None or counted.token != token:
                return False
            self._pods.stored(counted, answer)
            self._pods.count(max(answer, counted.pod, key=attrgetter("version")))
            return True

    def is_own(self, pod: Pod, node: str) -> bool:
        """True if this process reserved the node for the pod, which carries exactly that."""
        with self._lock:
            counted = self._pods.find(pod.uid)
            if counted is None or counted.node != node or not counted.own:
                return False
            return counted.own == reservation_marks(pod, self.rules.vendors)

    def undo(self, uid: str, token: int) -> None:
        """The reservation was not stored or is abandoned."""
        with self._lock:
            counted = self._pods.find(uid)
            if counted is not None and counted.token == token:
                self._pods.forget(counted)
                self._pods.call_ended(counted)

    def begin_term(self, scheduler_name: str) -> None:
        """Void every reservation of a pod that is not bound: another replica has decided since.

        Those of this scheduler's pods keep their cards until the pods are written: a binding that
        was sent before may still arrive.
        """
        with self._lock:
            if self._pods.begin_term(scheduler_name):  # pods may have been refused for that
                self._missed_s = self._clock.monotonic()
            self.books.kept.begin_term()
            self._back_off.begin_term()

    def resize(self, pod: Pod, wanted: Resizing) -> NoRoom | Busy | None:
        """Charge what a running pod asks for, beside what it holds; why not, or None."""
        compat = self.rules.engine.compat
        with self._lock:
            return self._pods.resize(pod, wanted, zero_is_limit=compat.is_zero_quota_a_limit)

    def take_back_resize(self, uid: str) -> None:
        """What `resize` charged was not stored: the pod counts as before."""
        with self._lock:
            if (counted := self._pods.find(uid)) is not None:
                self._pods.recount(counted)

    @contextmanager
    def binding(self, pod: Pod) -> Iterator[bool]:
        """While a pod is being bound it is not filtered, and its reservation does not expire.

        Yields False while another call binds or filters it.
        """
        with self._lock:
            counted = self._pods.find_or_add(pod)
            is_free = not (counted.is_binding or counted.token)
            counted.is_binding = counted.is_binding or is_free
        try:
            yield is_free
        finally:
            if is_free:
                with self._lock:
                    counted.is_binding = False

    def bound(self, uid: str, node: str, annotations: Mapping[str, str]) -> None:
        """The pod was bound with these annotations; the watch may not show it yet."""
        with self._lock:
            counted = self._pods.find(uid)
            if counted is None or counted.pod.node_name:
                return
            pod = counted.pod
            noted = {**pod.annotations, **annotations}
            self._pods.count(replace(pod, node_name=node, annotations=noted))

    def in_service(self, node: str, but: str, vendors: Collection[Vendor], for_s: float) -> str:
        """Another pod of the node that its plugin has still to serve, as `namespace/name`.

        "" for none. Only pods with cards of these vendors count, for `for_s` seconds.
        """
        with self._lock:
            return self._pods.in_service(node, but, vendors, for_s)

    def doubt(self, uid: str, version: str) -> None:
        """It is unknown whether the pod was bound in this version: keep its cards until it is."""
        with self._lock:
            counted = self._pods.find(uid)
            if counted is not None and not counted.pod.node_name:
                self._pods.doubt(counted, version)

    def keep_carried(self, uid: str, token: int, carried: Carried) -> bool:
        """This reservation stands in memory until it is bound; False if it no longer counts."""
        with self._lock:
            counted = self._pods.find(uid)
            if counted is None or counted.token != token:
                return False
            self._pods.carry(counted, carried)
            return True

    def carried(self, uid: str, node: str) -> Carried | None:
        """What the pod's Binding to this node has to carry; None if nothing, or in doubt."""
        with self._lock:
            counted = self._pods.find(uid)
            if counted is None or counted.node != node or counted.is_doubtful:
                return None
            return counted.carried

    def doubt_carried(self, uid: str, version: str) -> None:
        """A Binding for this version of the pod was not answered: it may still arrive."""
        with self._lock:
            counted = self._pods.find(uid)
            if counted is not None and counted.carried is not None:
                self._pods.doubt(counted, version)

    def is_late(self, uid: str) -> bool:
        """True while such a Binding may still arrive."""
        with self._lock:
            counted = self._pods.find(uid)
            return counted is not None and counted.is_late

    def is_gone(self, uid: str) -> bool:
        """True if the pod was deleted or has ended."""
        with self._lock:
            return self._pods.is_gone(uid)

    def may_arrive(self, uid: str) -> bool:
        """True while a Binding may still be stored that was sent before, by us or a former leader.

        That it has not arrived yet proves nothing: only a write of the pod does.
        """
        with self._lock:
            counted = self._pods.find(uid)
            return counted is not None and bool(counted.void_version)

    def release(self, uid: str) -> None:
        """Release what a pod holds that could not be bound."""
        with self._lock:
            counted = self._pods.find(uid)
            if counted is not None and not (counted.pod.node_name or counted.is_late):
                self._pods.forget(counted)

    def take_given_up(self) -> tuple[Pod, ...]:
        """Release what pods hold that their scheduler has given up since; those pods.

        One that is being bound, or may have been, keeps its cards until that is known.
        """
        with self._lock:
            due = [(uid, self._pods.find(uid)) for uid in self._pods.failures.due()]
            return tuple(item.pod for uid, item in due if item and self._is_given_up(item))

    def _is_given_up(self, counted: Counted) -> bool:
        if counted.since_s is None:
            self._pods.failures.ended(counted.pod.uid)
            return False
        if counted.token or counted.is_binding or counted.is_doubtful or counted.void_version:
            return False
        log.info("reservation_released", extra=kv(pod=counted.pod.key, node=counted.node))
        self._pods.forget(counted)
        return True

    def void(self, uid: str) -> None:
        """The pod's reservation no longer counts, but keeps its cards until the pod is written."""
        with self._lock:
            counted = self._pods.find(uid)
            if counted is not None and counted.since_s is not None:
                self._pods.void(counted)

    def explain(
        self,
        request: PodRequest,
        candidates: Iterable[str] | None = None,
        after: NoNode = NoNode(),  # noqa: B008 - frozen
    ) -> Mapping[str, Rejection] | Refused:
        """Why each node can't take the pod; nodes that can are left out.

        Reasons get the effort that the search has left, whose answer is `after`: for nodes beyond
        it that they can't is all that is said.
        """
        with self._lock:
            every = list(self._fleet.nodes if candidates is None else candidates)
        names, effort = iter(every), Effort(explain_steps(after.took_s, len(every)))
        found: dict[str, Rejection] = {}
        for is_time_up in self._slices.turns():
            with self._lock:
                answer = self._fleet.explain(request, names, is_time_up, effort)
            if isinstance(answer, Refused):
                return answer
            found |= answer
            if not length_hint(names):
                break
        return found

    def backed_off(self) -> Mapping[str, Rejection]:
        """Why no pod is sent to some nodes now, whatever room they have."""
        with self._lock:
            return self._back_off.rejections()

    def back_offs(self) -> Mapping[str, int]:
        """How many nodes are backed off, by fault."""
        with self._lock:
            return self._back_off.counts()

    def take_opened(self, most: int) -> list[str]:
        """Some nodes that pods have missed, and that are open by now or have cards free again.

        Of what an unbound pod gives back kube-scheduler hears nothing, or too early.
        """
        with self._lock:
            if opened := self._back_off.take_opened(most):
                return opened
            node, self._pods.freed = self._pods.freed, ""
            is_missed = self._clock.monotonic() - self._missed_s <= FORGET_S
            return [node] if node and is_missed else []

    def not_opened(self, node: str) -> None:
        """Pods still wait for this node, which `take_opened` gave."""
        with self._lock:
            if not self._back_off.missed((node,)):
                self._pods.freed = node

    def snapshot(self, pod: Pod, nodes: Collection[str]) -> Snapshot:
        """What a decision about the pod would look at, of these nodes."""
        with self._lock:
            return snapshot_of(self._fleet, self._nodes.nodes, pod, nodes)

    # -- queries: each answer is of one moment
    def latest(self, uid: str) -> Pod | None:
        """The newest known state of a pod that holds cards or was filtered."""
        with self._lock:
            counted = self._pods.find(uid)
            return None if counted is None else counted.pod

    def node(self, name: str) -> Node | None:
        """A node as the watch shows it."""
        with self._lock:
            return self._nodes.nodes.get(name)

    def nodes(self) -> tuple[Node, ...]:
        """All nodes as the watch shows them."""
        with self._lock:
            return tuple(self._nodes.nodes.values())

    def why_not_offered(self, node: str) -> str:
        """Why a node offers no card, for messages."""
        with self._lock:
            offer = self._nodes.offers.get(node)
            return "the node is not known" if offer is None else offer.why_empty

    def reservation_of(self, uid: str) -> str:
        """The node that holds a pod's reservation; "" without one."""
        with self._lock:
            return self._fleet.node_of(uid) or ""

    def overcommitted(self, uid: str) -> tuple[str, ...]:
        """The cards of a pod's grants that are overcommitted, gone or unhealthy."""
        with self._lock:
            name = self._fleet.node_of(uid)
            node = self._fleet.nodes.get(name) if name is not None else None
            if node is None:
                return ()
            cards, held = node.usage.cards, [charge.uuid for charge in node.usage.charges(uid)]
            return tuple(sorted(uuid for uuid in held if is_overfull(cards.get(uuid))))

    def catch_up(self) -> None:
        """Do now what the next decision would do first; after a list that is a lot."""
        with self._lock:
            self._fleet.catch_up()

    def sizes(self) -> tuple[int, int]:
        """(nodes that offer cards, pods that hold cards)."""
        with self._lock:
            return self._nodes.offering, self._fleet.pod_count

    def silent_nodes(self) -> int:
        """Nodes of which a daemon has gone silent."""
        with self._lock:
            return self._nodes.silent

    def usage(self) -> dict[str, Mapping[Uuid, DeviceUsage]]:
        """Every card of every node with its usage."""
        with self._lock:
            return {name: node.usage.cards for name, node in sorted(self._fleet.nodes.items())}

    def in_use(self, nodes: Collection[str] | None = None) -> ClusterUse:
        """All cards of these nodes and what each container holds; None for all nodes."""
        wanted = None if nodes is None else frozenset(nodes)
        with self._lock:
            states = self._fleet.nodes
            known = states.keys() if wanted is None else states.keys() & wanted
            open_names = known - self._nodes.cordoned()
            offered = {name: states[name].usage.cards for name in open_names}
            pods = self._pods.in_use(wanted)
            quotas = self._fleet.quotas.snapshot() if wanted is None else {}
            withheld = self._nodes.withheld(wanted)
        return ClusterUse(
            offered=offered,
            pods=pods,
            withheld={
                node.name: cards
                for node, vendors in withheld
                if (cards := registered_cards(node, vendors))
            },
            quotas=quotas,
        )

    def cards_of(self, node: str) -> Mapping[Uuid, DeviceUsage]:
        """The cards of a node with their usage; none for an unknown node."""
        with self._lock:
            state = self._fleet.nodes.get(node)
            return {} if state is None else state.usage.cards

    def largest_mib(self, nodes: Iterable[str]) -> dict[str, int]:
        """All memory of the largest card of each of these nodes, MiB; 0 without cards."""
        with self._lock:
            return self._nodes.largest_mib(nodes)

    def charges(self) -> dict[str, tuple[str, tuple[Charge, ...]]]:
        """Node and charges of every pod that holds something, by uid."""
        with self._lock:
            return {
                uid: (name, node.usage.charges(uid))
                for name, node in self._fleet.nodes.items()
                for uid in node.usage.pods
            }

    def _devices_of(self, node: str) -> dict[Uuid, Device]:
        cards = self._fleet.nodes[node].usage.cards
        return {uuid: card.device for uuid, card in cards.items()}
