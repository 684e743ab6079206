"""The pods of the watch, and the grants of them that are charged."""

from __future__ import annotations

import logging
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from hami_node.engine.card_rules import is_overcommitted
from hami_node.engine.fleet.fleet import Fleet
from hami_node.engine.resize import growth_objection, quota_objection
from hami_node.engine.usage import DeviceUsage, PodGrants, collapse, united
from hami_node.errors import WireError
from hami_node.extender.state.carried import Carried, Reading
from hami_node.extender.state.decisions import Busy, NoRoom
from hami_node.extender.state.node_book import NO_WORDS, NodeWords
from hami_node.logs import kv
from hami_node.metrics.cluster_use import PodUse
from hami_node.model import Node, Pod, version_number
from hami_node.ports import Clock
from hami_node.vendors import holding as holdings
from hami_node.vendors.holding import has_grants, marks_of, reservation_keys
from hami_node.vendors.protocol import VendorProtocol
from hami_node.vendors.resizing import (
    Resizing,
    in_numbers,
    is_ready,
    limits_of,
    no_room,
    resizing_of,
)
from hami_node.wire import names
from hami_node.wire.resize import Word, decode_request

log = logging.getLogger(__name__)

Marks = tuple[str | bool | None, ...]

NOTHING: Final = PodGrants(containers=())
"""What a pod holds that is charged nowhere."""

_RESIZE_KEYS: Final = (names.POD_RESIZE, names.POD_RESIZE_APPROVED, names.POD_RESIZE_STATE)


@dataclass(slots=True)
class Counted:
    """What is charged for one pod. Guarded by the state's lock.

    An unbound pod is charged for the reservation that this process made, whatever its annotations
    claim; a bound pod for the most that was ever seen of it.

    Attributes:
        pod: its newest known state.
        born_s: monotonic time at which it was first seen.
        node: where it is charged; "" if it is not.
        grants: what is charged there.
        since_s: monotonic time of the reservation, while the pod is not bound; None once it is.
        token: of the reservation whose patch is in flight; 0 without such a patch.
        own: marks of the reservation as it was stored; () before that.
        carried: the reservation while it stands in memory alone: the Binding shall carry it.
        bound_s: monotonic time at which it was first known to be bound; None before that.
        charged: the bound pod when it was charged; None if it has to be charged again.
        words: what its node said of its resized containers then.
        seen: the grants of the bound pod that no edit makes smaller.
        asked: what it shall hold by a resize that may have been approved in its present version.
        is_binding: a call to bind it is running.
        is_doubtful: a binding was sent, and it is unknown whether it was made.
        void_version: set where a binding that was sent before may still arrive, whether or not its
            reservation counts: the cards stay charged while the pod is in this version.
    """

    pod: Pod
    born_s: float
    node: str = ""
    grants: PodGrants = NOTHING
    since_s: float | None = None
    token: int = 0
    own: Marks = ()
    carried: Carried | None = None
    bound_s: float | None = None
    charged: Pod | None = None
    words: Mapping[str, Word] = field(default_factory=lambda: NO_WORDS)
    seen: PodGrants = NOTHING
    asked: PodGrants = NOTHING
    is_binding: bool = False
    is_doubtful: bool = False
    void_version: str = ""

    @property
    def version(self) -> int:
        """Of the newest known state of the pod, else of that it was decided on; 0 if unknown."""
        return self.pod.version or (0 if self.carried is None else self.carried.pod.version)

    @property
    def is_late(self) -> bool:
        """True if a Binding that carries the reservation was sent, and may still arrive."""
        return self.is_doubtful and self.carried is not None

    def is_outdated(self, pod: Pod) -> bool:
        """True if this state of the pod is older than the known state.

        Our own patch may be answered before the watch shows it; and no pod is ever unbound.
        """
        is_older = pod.version < self.pod.version
        return is_older or bool(self.pod.node_name and not pod.node_name)

    def age_s(self, monotonic_s: float) -> float | None:
        """How old the reservation of an unbound pod is; None while a call is working on it."""
        if self.since_s is None or self.token or self.is_binding:
            return None
        return monotonic_s - self.since_s

    def is_leftover(self, vendors: Sequence[VendorProtocol]) -> bool:
        """True for an unbound pod with a reservation that does not count, or is in doubt."""
        pod = self.pod
        if pod.node_name or pod.is_being_deleted or self.token or self.is_binding:
            return False
        if not has_grants(pod, vendors):
            return self.is_late
        return self.is_doubtful or reservation_marks(pod, vendors) != self.own


def reservation_marks(pod: Pod, vendors: Iterable[VendorProtocol]) -> Marks:
    """What distinguishes one reservation of a pod from the next: all that a node serves from."""
    return tuple(pod.annotations.get(key) for key in reservation_keys(vendors))


def charge_marks(pod: Pod, vendors: Sequence[VendorProtocol]) -> tuple[str | bool, ...]:
    """All that the charge of a bound pod depends on, beside what its node says."""
    return (*marks_of(pod, vendors), *resize_marks(pod))


def resize_marks(pod: Pod) -> tuple[str, ...]:
    """What is said of a resize; an approval that was sent before it changed can't arrive."""
    notes = pod.annotations
    return tuple([key + notes[key] for key in _RESIZE_KEYS if key in notes])


def is_overfull(card: DeviceUsage | None) -> bool:
    """True for a card that is overcommitted, must not be used, or is gone."""
    if card is None or not card.device.healthy or card.contradiction:
        return True
    return is_overcommitted(card)


SETTLING_S: Final = 0.5
"""A condition of the attempt before may be shown late. By then the pod is being bound, and if not,
it is placed again: a release too many costs an attempt, never a card."""


class LaterFailures:
    """By uid, for pods with a reservation that are not bound. Not thread-safe."""

    def __init__(self, clock: Clock) -> None:
        """Start without reservations."""
        self._clock = clock
        self._known: dict[str, frozenset[str]] = {}
        self._due_s: dict[str, float] = {}

    def reserved(self, *states: Pod) -> None:
        """A reservation begins; what these states of the pod say is older than it."""
        uid = states[0].uid
        self._known[uid] = frozenset(pod.unscheduled for pod in states)
        self._due_s.pop(uid, None)

    def stored(self, pod: Pod) -> None:
        """The reservation was written to the pod, which said this at that moment."""
        if pod.uid in self._known:
            self._known[pod.uid] |= {pod.unscheduled}

    def heard(self, pod: Pod) -> None:
        """A state of a pod that is not bound."""
        known = self._known.get(pod.uid)
        if known is None or not pod.unscheduled or pod.unscheduled in known:
            return
        self._known[pod.uid] = known | {pod.unscheduled}
        self._due_s[pod.uid] = self._clock.monotonic() + SETTLING_S

    def ended(self, uid: str) -> None:
        """The reservation is released or bound, or its pod is gone."""
        self._known.pop(uid, None)
        self._due_s.pop(uid, None)

    def due(self) -> list[str]:
        """The pods whose reservation shall be released now."""
        now_s = self._clock.monotonic()
        return [uid for uid, due_s in self._due_s.items() if due_s <= now_s]


MAX_GONE: Final = 8_192
"""Deleted or ended pods that are remembered: a response about such a pod may arrive late."""
MAX_SEEN: Final = 256
"""Grants of one bound pod that are remembered although its annotations no longer name them, if the
node does not have their cards: edits could name new ones for ever."""


class PodBook:
    """Every pod that holds cards or was filtered. Not thread-safe: its owner holds a lock."""

    def __init__(self, fleet: Fleet, vendors: Sequence[VendorProtocol], clock: Clock) -> None:
        """Charge to `fleet`."""
        self._fleet, self._vendors = fleet, vendors
        self._clock = clock
        self._pods: dict[str, Counted] = {}
        self._words = NodeWords(vendors)
        self._gone: dict[str, None] = {}
        self.failures = LaterFailures(clock)
        self.freed = ""
        """A node on which a pod that was never bound has given cards back; "" for none."""

    def find(self, uid: str) -> Counted | None:
        """What is recorded about a pod; None if it never held cards nor was filtered."""
        return self._pods.get(uid)

    def find_or_add(self, pod: Pod) -> Counted:
        """The same; a new pod is recorded in a state that is replaced by any other."""
        return self._pods.get(pod.uid) or self._new(replace(pod, resource_version=""))

    def call_ended(self, counted: Counted) -> None:
        """A call about the pod reserved nothing: nothing of what its caller sent is kept."""
        is_of_the_watch = bool(counted.pod.resource_version)
        if not (is_of_the_watch or counted.node or counted.token or counted.is_binding):
            self._pods.pop(counted.pod.uid, None)

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

    def uids(self) -> list[str]:
        """Every pod that is recorded."""
        return list(self._pods)

    def sweep(self, uids: Iterable[str], present: Collection[str], version: int) -> None:
        """Drop those of these pods that no longer exist, and reservations not bound in time.

        Args:
            uids: the pods to look at.
            present: uids of the pods that the watch shows.
            version: the resourceVersion that the watch has reached at least.
        """
        now_s = self._clock.monotonic()
        for uid in uids:
            if (item := self._pods.get(uid)) is None or (item.since_s is None and uid in present):
                continue  # it is gone, or it is bound and there
            self._drop_if_late(item)
            if uid in present or item.token or item.is_binding:
                continue
            is_shown = 0 < item.version <= version
            if is_shown or now_s - item.born_s > holdings.UNBOUND_S:
                self._drop(uid)

    def in_use(self, nodes: Collection[str] | None) -> list[PodUse]:
        """What every pod holds, on these nodes; None for all."""
        return [
            PodUse(counted.pod, counted.node, counted.grants)
            for counted in self._pods.values()
            if counted.node and (nodes is None or counted.node in nodes)
        ]

    def leaving(self, node: str) -> frozenset[str]:
        """The pods of a node that are being deleted: their cards will be free without more."""
        state = self._fleet.nodes.get(node)
        found = ((uid, self._pods.get(uid)) for uid in (() if state is None else state.usage.pods))
        return frozenset(uid for uid, item in found if item and item.pod.is_being_deleted)

    def is_evicted(self, uid: str, node: str) -> bool:
        """True while kube-scheduler evicts this pod from the node."""
        item = self._pods.get(uid)
        if item is None or item.node != node:
            return False
        return item.pod.is_being_deleted and item.pod.is_preempted

    def leftovers(self, uids: Iterable[str]) -> list[Pod]:
        """Those of these pods that are unbound and carry what does not count or is in doubt."""
        found = map(self._pods.get, uids)
        return [item.pod for item in found if item and item.is_leftover(self._vendors)]

    def count(self, pod: Pod) -> None:
        """Apply a state of a pod, unless a newer state of it is known."""
        counted = self._pods.get(pod.uid)
        if counted is None:
            if pod.is_over or not holdings.has_grants(pod, self._vendors):
                return
            counted = self._new(pod)
        elif counted.is_outdated(pod):
            return
        counted.pod = pod
        if pod.is_over:
            self._drop(pod.uid)
        elif pod.node_name:
            self._count_bound(counted)
        elif self._is_void(counted):
            self.forget(counted)
        else:
            self.failures.heard(pod)

    def reserve(self, counted: Counted, node: str, grants: PodGrants, token: int) -> None:
        """Charge a decision of this process."""
        counted.node, counted.grants, counted.token, counted.own = node, grants, token, ()
        counted.since_s = self._clock.monotonic()
        self._fleet.add_pod(counted.pod.uid, counted.pod.namespace, node, grants)

    def stored(self, counted: Counted, answer: Pod) -> None:
        """The API server has stored the decision in `answer`: charge it as the node reads it."""
        counted.token, counted.own = 0, reservation_marks(answer, self._vendors)
        self.failures.stored(answer)
        as_bound = replace(answer, node_name=counted.node)
        holding = holdings.holding_of(as_bound, self._vendors)
        if holding is not None:
            counted.grants = holding.grants
            self._fleet.add_pod(answer.uid, answer.namespace, counted.node, holding.grants)

    def carry(self, counted: Counted, carried: Carried) -> None:
        """The decision stands in memory until it is bound: charge it as the node will read it."""
        pod = counted.pod
        annotations = {**pod.annotations, **carried.annotations}
        as_bound = replace(pod, node_name=counted.node, annotations=annotations)
        reading = Reading.of(as_bound, self._vendors)
        counted.token, counted.carried = 0, replace(carried, reading=reading)
        holding = reading.holding
        if holding is not None and holding.grants != counted.grants:
            counted.grants = holding.grants
            self._fleet.add_pod(pod.uid, pod.namespace, counted.node, holding.grants)

    def doubt(self, counted: Counted, version: str) -> None:
        """A binding of this version of an unbound pod was not answered: it may still arrive.

        Its cards are free only once the pod was written; one that was since is refused.
        """
        if counted.pod.version <= version_number(version):
            counted.is_doubtful, counted.void_version = True, version

    def forget(self, counted: Counted) -> None:
        """Release what an unbound pod holds; a reservation that it carries no longer counts."""
        self.freed = counted.node or self.freed
        self._fleet.remove_pod(counted.pod.uid)
        self.failures.ended(counted.pod.uid)
        counted.node, counted.grants, counted.since_s = "", NOTHING, None
        counted.token, counted.own, counted.is_doubtful = 0, (), False
        counted.void_version, counted.carried = "", None

    def void(self, counted: Counted) -> None:
        """A reservation that stands on its pod no longer counts, but keeps its cards.

        They are free once the pod is written, or the reservation expires: a binding that was sent
        before names the pod's version, and may still arrive.
        """
        counted.token, counted.own, counted.is_doubtful = 0, (), False
        counted.void_version, counted.carried = counted.pod.resource_version, None

    def begin_term(self, scheduler_name: str) -> bool:
        """Void every reservation: another replica may have decided about the same pods.

        What another replica has reserved for this scheduler keeps its cards: what it sent may still
        arrive. True if there is any; who was refused for want of it is not known.
        """
        is_any = False
        for counted in self._pods.values():
            pod = counted.pod
            if pod.node_name or counted.is_doubtful:
                continue
            if counted.carried is not None and counted.is_binding:
                continue  # it may have been sent; the call that binds it finds out
            self.forget(counted)
            holding = holdings.holding_of(pod, self._vendors)
            if holding is None or pod.scheduler_name != scheduler_name:
                continue
            counted.node, counted.grants = holding.node, holding.grants
            counted.since_s = self._clock.monotonic()
            self._fleet.add_pod(pod.uid, pod.namespace, holding.node, holding.grants)
            self.void(counted)
            is_any = True
        self._hold_resizes()
        return is_any

    def in_service(self, node: str, but: str, vendors: Container[object], for_s: float) -> str:
        """Another pod of the node that its plugin has still to serve; "" for none.

        Args:
            node: the node.
            but: uid of the pod that does not count.
            vendors: only pods that hold cards of these count.
            for_s: a pod that has been bound for longer doesn't count: its plugin has given up.
        """
        state, now_s = self._fleet.nodes.get(node), self._clock.monotonic()
        if state is None:
            return ""
        for uid in state.usage.pods:
            counted = self._pods.get(uid)
            if uid == but or counted is None or counted.pod.phase != "Pending":
                continue
            phase = counted.pod.annotations.get(names.POD_BIND_PHASE)
            is_bound = counted.bound_s is not None and phase == names.PHASE_ALLOCATING
            is_recent = now_s - (counted.bound_s or counted.since_s or 0.0) <= for_s
            if not (is_recent and (is_bound or counted.is_doubtful)):
                continue
            if any(charge.vendor in vendors for charge in state.usage.charges(uid)):
                return counted.pod.key
        return ""

    def hear(self, name: str, node: Node | None) -> None:
        """Apply what a node says of its resized containers; None for a node that is gone."""
        for uid in self._words.hear(name, node):
            counted = self._pods.get(uid)
            if counted is not None and counted.pod.node_name == name:
                self._count_bound(counted)

    def resize(self, pod: Pod, wanted: Resizing, *, zero_is_limit: bool) -> NoRoom | Busy | None:
        """Charge what a running pod asks for, beside what it holds; why not, or None.

        Args:
            pod: as it was decided on.
            wanted: its new grants.
            zero_is_limit: a quota of 0 blocks.
        """
        counted = self._pods.get(pod.uid)
        if counted is None or counted.pod is not pod or counted.node != pod.node_name:
            return Busy(f"pod {pod.key} has changed")
        self.recount(counted)
        after = wanted.beside(pod, counted.grants)
        if after is None:
            return NoRoom("its reservation does not match its containers")
        usage, quotas = self._fleet.nodes[pod.node_name].usage, self._fleet.quotas
        objection = growth_objection(usage.without(pod.uid), counted.grants, after)
        if objection is not None:
            return NoRoom(no_room(objection))
        over = quota_objection(
            quotas.quota(pod.namespace),
            self._fleet.quota_charges(pod.uid),
            collapse(self._limited(pod, after)),
            zero_is_limit=zero_is_limit,
        )
        if over is not None:
            return NoRoom(f"the quota of namespace {pod.namespace}: {in_numbers(over)}")
        self._charge_resize(counted, after)
        return None

    def _hold_resizes(self) -> None:
        """Charge what running pods ask for: the leader before may have approved it just now."""
        for counted in tuple(self._pods.values()):
            if names.POD_RESIZE not in counted.pod.annotations or not counted.pod.node_name:
                continue
            if not is_ready(counted.pod, self._vendors):
                continue
            try:
                request = decode_request(counted.pod.annotations[names.POD_RESIZE])
                wanted = resizing_of(counted.pod, request, self._vendors)
            except WireError:
                continue
            after = wanted.beside(counted.pod, counted.grants)
            if after is not None:
                self._charge_resize(counted, after)

    def _charge_resize(self, counted: Counted, after: PodGrants) -> None:
        pod, counted.grants, counted.asked = counted.pod, after, after
        limited = self._limited(pod, after)
        self._fleet.add_pod(pod.uid, pod.namespace, counted.node, after, limited)

    def recount(self, counted: Counted) -> None:
        """Charge a bound pod again by what is known of it: a resize was not stored."""
        if counted.pod.node_name:
            counted.charged = None
            self._count_bound(counted)

    def _is_void(self, counted: Counted) -> bool:
        """True if no binding of an unbound pod can arrive any more: it was written since.

        Either its reservation was given up before, or it was removed from the pod.
        """
        pod = counted.pod
        if pod.is_being_deleted or counted.void_version not in ("", pod.resource_version):
            return True
        return bool(counted.own) and not holdings.has_grants(pod, self._vendors)

    def _new(self, pod: Pod) -> Counted:
        counted = self._pods[pod.uid] = Counted(pod=pod, born_s=self._clock.monotonic())
        return counted

    def _count_bound(self, counted: Counted) -> None:
        """Charge what the pod's annotations say, and never less than was seen of it before."""
        pod, counted.is_doubtful, counted.void_version = counted.pod, False, ""
        carried, counted.carried = counted.carried, None
        said = self._words.about(pod)
        before, counted.charged = counted.charged, pod
        is_same = before is not None and self._marks(before) == self._marks(pod)
        if is_same and counted.words == said:
            return
        if not is_same:
            counted.asked = NOTHING
        is_reserved = counted.since_s is not None and counted.node == pod.node_name
        if is_reserved:
            counted.seen = counted.grants  # what was reserved, and is bound now
        if counted.bound_s is None:
            self.failures.ended(pod.uid)
            counted.bound_s = self._clock.monotonic()
        counted.token, counted.own, counted.since_s = 0, (), None
        counted.words = said
        reading = None if carried is None else carried.reading
        if reading is not None and reading.is_of(pod, self._marks(pod)):
            holding = reading.holding
        else:
            holding = holdings.holding_of(pod, self._vendors)
        written = NOTHING if holding is None else holding.grants
        floor = self._words.floor(pod, counted.seen)
        grants = united(floor, written)
        if grants.containers != written.containers and not resize_marks(pod):
            log.warning("grants_edited", extra=kv(pod=pod.key, node=pod.node_name))
        counted.seen = self._remembered(counted, written, grants)
        grants = united(counted.asked, grants)
        if is_reserved and not said and grants == counted.grants:
            return  # just that was charged with the reservation
        if any(grants.containers):
            counted.node, counted.grants = pod.node_name, grants
            limited = self._limited(pod, grants) if said else None
            self._fleet.add_pod(pod.uid, pod.namespace, pod.node_name, grants, limited)
        else:
            counted.node, counted.grants = "", NOTHING
            self._fleet.remove_pod(pod.uid)

    def _marks(self, pod: Pod) -> tuple[str | bool, ...]:
        return charge_marks(pod, self._vendors)

    def _limited(self, pod: Pod, grants: PodGrants) -> PodGrants:
        """What a quota counts: the larger of what the pod holds and what its limits ask for."""
        state = self._fleet.nodes.get(pod.node_name)
        cards = {} if state is None else state.usage.cards
        return limits_of(pod, grants, cards, self._vendors)

    def _remembered(self, counted: Counted, written: PodGrants, grants: PodGrants) -> PodGrants:
        """What later edits can't take back: of too much, only what the node can have granted."""
        if sum(map(len, grants.containers)) <= MAX_SEEN or not any(counted.seen.containers):
            return grants
        state = self._fleet.nodes.get(counted.pod.node_name)
        cards = {} if state is None else state.usage.cards
        real = tuple(
            tuple(grant for grant in held if grant.uuid in cards) for held in written.containers
        )
        return united(counted.seen, replace(written, containers=real))

    def _drop_if_late(self, counted: Counted) -> None:
        age_s = None if counted.is_late else counted.age_s(self._clock.monotonic())
        if age_s is not None and age_s > holdings.UNBOUND_S:
            log.info("reservation_expired", extra=kv(pod=counted.pod.key, node=counted.node))
            self.forget(counted)

    def _drop(self, uid: str) -> None:
        counted = self._pods.pop(uid, None)
        if counted is not None and not counted.pod.node_name:
            self.freed = counted.node or self.freed
        self.failures.ended(uid)
        self._fleet.remove_pod(uid)

    def _remember_gone(self, uid: str) -> None:
        self._gone[uid] = None
        if len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]
