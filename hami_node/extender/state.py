"""The cluster as decisions see it: cards of nodes, grants of pods, reservations in the making.

Fed by the watches. A reservation counts from the moment of the decision: the watch may show the pod
as it was before for a while, and that must not give its cards away.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from hami_node.engine.filters import Rejection
from hami_node.engine.fleet import Fleet, NoNode, Placed
from hami_node.engine.place import PodRequest, Refused
from hami_node.engine.quota import Limits, QuotaBook
from hami_node.engine.usage import Charge, DeviceUsage
from hami_node.extender import holdings, offers
from hami_node.extender.offers import Offer
from hami_node.extender.rules import ExtenderRules
from hami_node.logs import kv
from hami_node.model import Device, Node, Pod, Uuid, Vendor
from hami_node.ports import Clock
from hami_node.wire import names

log = logging.getLogger(__name__)

UNBOUND_S: Final = 300.0
"""A reservation of a pod that is not bound counts for so long: as long as a node lock."""

Marks = tuple[str | bool | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserved:
    """A decision: node and cards, already charged.

    Attributes:
        token: names this reservation among later ones of the same pod.
        placed: node and grants.
        devices: the chosen node's cards.
    """

    token: int
    placed: Placed
    devices: Mapping[Uuid, Device]


@dataclass(slots=True)
class _Counted:
    """What is charged for one pod.

    Attributes:
        marks: of the pod as the watch showed it, when it was charged from there.
        node: where; "" for nothing.
        since_s: monotonic time of the charge, while the pod is not bound; None once it is.
        token: of the reservation whose patch is under way; 0 without one.
        void: marks of reservations that no longer count although the pod may still carry them.
    """

    pod: Pod
    marks: Marks = ()
    node: str = ""
    since_s: float | None = None
    token: int = 0
    void: frozenset[Marks] = frozenset()


class ClusterState:
    """Thread-safe; one decision at a time."""

    def __init__(self, rules: ExtenderRules, clock: Clock, unbound_s: float = UNBOUND_S) -> None:
        """Start empty; an unbound reservation counts for `unbound_s` seconds."""
        self.rules = rules
        self._clock, self._unbound_s = clock, unbound_s
        self._lock = threading.RLock()
        self._fleet = Fleet(rules.engine, QuotaBook(rules.config.memory_factor))
        self._pods: dict[str, _Counted] = {}
        self._nodes: dict[str, Node] = {}
        self._node_marks: dict[str, tuple[Marks, tuple[Vendor, ...]]] = {}
        self._offers: dict[str, Offer] = {}
        self._given_up: dict[str, dict[Vendor, str]] = {}
        self._last_token = 0

    # -- what the watches say ----------------------------------------------------------------------
    def node_changed(self, before: Node | None, after: Node | None) -> None:
        """Take a change of one node."""
        with self._lock:
            if after is not None:
                self._nodes[after.name] = after
                self._look_at(after)
            elif before is not None:
                self._nodes.pop(before.name, None)
                self._node_marks.pop(before.name, None)
                self._offers.pop(before.name, None)
                self._given_up.pop(before.name, None)
                self._fleet.remove_node(before.name)

    def give_up(self, node: str, vendor: Vendor, why: str) -> None:
        """Offer nothing of a vendor on a node until `take_back`: its daemon has gone silent."""
        with self._lock:
            self._given_up.setdefault(node, {})[vendor] = why
            if node in self._nodes:
                self._look_at(self._nodes[node])

    def take_back(self, node: str, vendor: Vendor) -> None:
        """The daemon was heard again."""
        with self._lock:
            given_up = self._given_up.get(node, {})
            if given_up.pop(vendor, None) is not None and node in self._nodes:
                self._look_at(self._nodes[node])

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """Take a change of one pod."""
        with self._lock:
            if after is not None:
                self._count(after)
            elif before is not None:
                self._pods.pop(before.uid, None)
                self._fleet.remove_pod(before.uid)

    def set_quota(self, namespace: str, name: str, limits: Limits | None) -> None:
        """Take a change of one ResourceQuota; None removes it."""
        with self._lock:
            self._fleet.quotas.set_limits(namespace, name, limits)

    def sweep(self) -> None:
        """Drop reservations of pods that were not bound in time."""
        with self._lock:
            for counted in list(self._pods.values()):
                self._drop_if_late(counted)

    def leftovers(self) -> tuple[Pod, ...]:
        """Pods that carry a reservation which no longer counts."""
        with self._lock:
            return tuple(
                counted.pod
                for counted in self._pods.values()
                if not counted.token and not counted.pod.node_name and self._is_void(counted)
            )

    # -- decisions -------------------------------------------------------------------------------
    def reserve(
        self, pod: Pod, request: PodRequest, candidates: Collection[str] | None
    ) -> Reserved | NoNode | Refused:
        """Free what the pod held, choose its node and cards and charge them, in one step."""
        with self._lock:
            counted = self._pods.get(pod.uid) or _Counted(pod=replace(pod, resource_version=""))
            if counted.pod.node_name:
                return Refused(why=f"pod {pod.key} is bound to node {counted.pod.node_name}")
            self._pods[pod.uid] = counted
            if _has_grants(pod):
                counted.void |= {reservation_marks(pod)}
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

    def committed(self, uid: str, token: int, answer: Pod) -> None:
        """The API server has stored this reservation, as part of `answer`."""
        with self._lock:
            counted = self._pods.get(uid)
            if counted is None or counted.token != token:
                return
            counted.token = 0
            counted.void -= {reservation_marks(answer)}
            self._count(max(answer, counted.pod, key=version_of))

    def undo(self, uid: str, token: int, written: Marks = ()) -> None:
        """The reservation was not stored, or is given up; `written` are its marks, if it may be."""
        with self._lock:
            counted = self._pods.get(uid)
            if counted is None or counted.token != token:
                return
            if written:
                counted.void |= {written}
            self._forget(counted)

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
    def node(self, name: str) -> Node | None:
        """A node as the watch has it."""
        with self._lock:
            return self._nodes.get(name)

    def nodes(self) -> tuple[Node, ...]:
        """All nodes as the watch has them."""
        with self._lock:
            return tuple(self._nodes.values())

    def why_not_offered(self, node: str) -> str:
        """Why a node offers no card, for people."""
        with self._lock:
            offer = self._offers.get(node)
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
            wrong = (
                charge.uuid
                for charge in seat.usage.charges(uid)
                if (card := seat.usage.cards.get(charge.uuid)) is None or _is_overfull(card)
            )
            return tuple(sorted(wrong))

    def sizes(self) -> tuple[int, int]:
        """(nodes that offer cards, pods that hold cards)."""
        with self._lock:
            offering = sum(1 for offer in self._offers.values() if offer.devices)
            return offering, sum(1 for counted in self._pods.values() if counted.node)

    def usage(self) -> dict[str, Mapping[Uuid, DeviceUsage]]:
        """Every card of every node with what is taken of it."""
        with self._lock:
            return {name: seat.usage.cards for name, seat in sorted(self._fleet.nodes.items())}

    def usage_of(self, nodes: Iterable[str]) -> dict[str, Mapping[Uuid, DeviceUsage]]:
        """The cards of these nodes with what is taken of them; unknown nodes are left out."""
        with self._lock:
            seats = self._fleet.nodes
            return {name: seats[name].usage.cards for name in nodes if name in seats}

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

    def _look_at(self, node: Node) -> None:
        given_up = self._given_up.get(node.name, {})
        marks = (offers.marks_of(node, self.rules.names), tuple(given_up))
        if self._node_marks.get(node.name) == marks:
            return
        self._node_marks[node.name] = marks
        offer = offers.offer_of(node, self.rules.names, given_up)
        known = self._offers.get(node.name)
        self._offers[node.name] = offer
        if known is None or known.missing != offer.missing or known.problem != offer.problem:
            _tell(node.name, offer)
        if not offer.devices:
            self._fleet.remove_node(node.name)
        elif known is None or replace(known, missing={}) != replace(offer, missing={}):
            self._fleet.set_node(
                node.name,
                offer.devices,
                cordoned=offer.cordoned,
                pair_scores=offer.pair_scores,
            )

    def _count(self, pod: Pod) -> None:
        """Charge a pod as its annotations say, unless a newer state of it is known."""
        counted = self._pods.get(pod.uid)
        if counted is None:
            if pod.is_over or not _has_grants(pod):
                return
            counted = self._pods[pod.uid] = _Counted(pod=pod)
        if version_of(pod) < version_of(counted.pod):
            return  # our own patch was answered before the watch got there
        counted.pod = pod
        if counted.token and not pod.node_name and not pod.is_over:
            return  # the decision under way counts
        marks = holdings.marks_of(pod)
        if counted.marks != marks:
            counted.token, counted.marks = 0, marks
            self._charge(counted)

    def _charge(self, counted: _Counted) -> None:
        pod = counted.pod
        holding = holdings.holding_of(pod, self.rules.names)
        if pod.is_over:
            del self._pods[pod.uid]
        if holding is not None and not holding.is_bound and self._is_void(counted):
            holding = None
        if holding is None:
            self._fleet.remove_pod(pod.uid)
            counted.node, counted.since_s = "", None
            return
        self._fleet.add_pod(pod.uid, pod.namespace, holding.node, holding.grants)
        counted.node = holding.node
        if holding.is_bound:
            counted.since_s, counted.void = None, frozenset()
        elif counted.since_s is None:
            counted.since_s = self._clock.monotonic()
        self._drop_if_late(counted)

    def _is_void(self, counted: _Counted) -> bool:
        return reservation_marks(counted.pod) in counted.void

    def _drop_if_late(self, counted: _Counted) -> None:
        """An unbound reservation ends by our clock, and by the time that stands on it."""
        if counted.since_s is None or counted.token:
            return
        age_s = self._clock.monotonic() - counted.since_s
        stamp = counted.pod.annotations.get(names.POD_TIME, "")
        if stamp.isascii() and stamp.isdigit() and len(stamp) <= 12:
            age_s = max(age_s, self._clock.now() - int(stamp))
        if age_s > self._unbound_s:
            log.info("reservation_expired", extra=kv(pod=counted.pod.key, node=counted.node))
            self._forget(counted)

    def _forget(self, counted: _Counted) -> None:
        """Free what the pod holds; what it carries now counts no more."""
        if _has_grants(counted.pod):
            counted.void |= {reservation_marks(counted.pod)}
        self._fleet.remove_pod(counted.pod.uid)
        counted.node, counted.since_s, counted.token, counted.marks = "", None, 0, ()


def version_of(pod: Pod) -> int:
    """The resourceVersion as a number that grows; 0 for one that is none."""
    return int(pod.resource_version) if pod.resource_version.isdigit() else 0


def reservation_marks(pod: Pod) -> Marks:
    """What tells one reservation of a pod from the next."""
    said = pod.annotations
    return tuple(
        said.get(key, "")
        for key in (names.POD_NODE, names.POD_TIME, names.POD_ALLOCATED, names.POD_NEURON_ALLOCATED)
    )


def _has_grants(pod: Pod) -> bool:
    said = pod.annotations
    return bool(said.get(names.POD_ALLOCATED) or said.get(names.POD_NEURON_ALLOCATED))


def _is_overfull(card: DeviceUsage) -> bool:
    is_neuron = card.device.vendor is Vendor.AWS_NEURON
    return (
        not card.device.healthy
        or bool(card.contradiction)
        or card.slots_free < 0
        or card.memory_free_mib < 0
        or (not is_neuron and card.cores_free < 0)
    )


def _tell(node: str, offer: Offer) -> None:
    for vendor, why in offer.missing.items():
        log.warning("cards_not_offered", extra=kv(node=node, vendor=vendor, why=why))
    if offer.problem:
        log.warning("node_not_understood", extra=kv(node=node, why=offer.problem))
    if offer.devices:
        log.info("cards_offered", extra=kv(node=node, cards=len(offer.devices)))
