"""POST /preempt: which of the proposed victims make room on a card; that room is then kept.

The victims are noted on the pod, so that the next leader keeps the room as well.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Final, Protocol

import msgspec

from hami_node.engine.fleet.eviction import Holder, Look, Trial, fewest
from hami_node.engine.place import PodRequest
from hami_node.errors import KubeError, NotFound, PodTaken, WireError
from hami_node.extender.caller_limits import MAX_NODES, check_count, check_pod
from hami_node.extender.filter import Outlets
from hami_node.extender.http.messages import NULL, decoded, members_of, pod_of
from hami_node.extender.preemption.kept_rooms import Books, Room
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.extender.state.reservation_writer import ReservationWriter
from hami_node.logs import kv
from hami_node.model import Pod
from hami_node.ports import Clock, Fence
from hami_node.vendors.request import request_of
from hami_node.wire.objects import decode_pod
from hami_node.wire.quotas import DisruptionBudget, decode_budget

log = logging.getLogger(__name__)


FRESH_S: Final = 10.0
"""How long a list is good: a pod that fits nowhere is tried again every few seconds."""


class BudgetKube(Protocol):
    """What is needed of the Kubernetes API."""

    def list_disruption_budgets(self) -> tuple[Mapping[str, object], ...]:
        """LIST the budgets of all namespaces, as plain values. Raises KubeError."""


class Protection:
    """Reads the budgets when they are needed. Thread-safe."""

    def __init__(self, kube: BudgetKube, clock: Clock) -> None:
        """Read from `kube`."""
        self._kube, self._clock = kube, clock
        self._lock = threading.Lock()
        self._known: tuple[float, tuple[DisruptionBudget, ...] | None] | None = None

    def is_protected(self, pod: Pod) -> bool:
        """True for a pod that a budget may concern, and for all while that can't be found out."""
        budgets = self._budgets()
        return budgets is None or any(
            budget.may_concern(pod.namespace, pod.labels) for budget in budgets
        )

    def refresh(self) -> None:
        """Read them unless that was done just now; this may take some seconds."""
        now_s = self._clock.monotonic()
        with self._lock:
            if self._known is not None and now_s - self._known[0] < FRESH_S:
                return
        found = self._read()
        with self._lock:
            self._known = (self._clock.monotonic(), found)

    def _budgets(self) -> tuple[DisruptionBudget, ...] | None:
        with self._lock:
            return None if self._known is None else self._known[1]

    def _read(self) -> tuple[DisruptionBudget, ...] | None:
        try:
            return tuple(decode_budget(raw) for raw in self._kube.list_disruption_budgets())
        except (KubeError, WireError) as e:
            why = "no pod is evicted but those that kube-scheduler proposes"
            log.warning("budgets_unknown", extra=kv(error=str(e), why=why))
            return None


MAX_VICTIMS: Final = 10_000
"""Of one node; kubelet admits some hundred pods."""

_ENCODER: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class Victims:
    """The pods that shall leave one node, and how many of them violate a disruption budget."""

    uids: tuple[str, ...]
    violations: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionArgs:
    """A pod that fits nowhere, and the victims that kube-scheduler proposes by node."""

    pod: Pod
    nodes: Mapping[str, Victims]


class _MetaPod(msgspec.Struct):
    uid: str = msgspec.field(name="UID", default="")


class _MetaVictims(msgspec.Struct):
    pods: list[_MetaPod] | None = msgspec.field(name="Pods", default=None)
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class _Victims(msgspec.Struct):
    pods: list[msgspec.Raw] | None = msgspec.field(name="Pods", default=None)
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


def decode_preemption_args(body: bytes) -> PreemptionArgs:
    """Read the call's body: victims by UID, or as whole pods where nodes are not cached.

    Raises:
        WireError: not such an object; the text names the member.
    """
    members = members_of(body)
    pod = pod_of(members)
    key, shown = "nodenametometavictims", "NodeNameToMetaVictims"
    if members.get(key, NULL) != NULL:
        by_uid = decoded(members[key], dict[str, _MetaVictims | None], shown) or {}
        check_count(shown, by_uid, MAX_NODES)
        return PreemptionArgs(
            pod=pod,
            nodes={
                node: _victims(node, (each.uid for each in given.pods or ()), given.violations)
                for node, given in by_uid.items()
                if given is not None
            },
        )
    key, shown = "nodenametovictims", "NodeNameToVictims"
    whole = decoded(members.get(key, NULL), dict[str, _Victims | None], shown) or {}
    check_count(shown, whole, MAX_NODES)
    return PreemptionArgs(
        pod=pod,
        nodes={
            node: _victims(
                node, (decode_pod(bytes(raw)).uid for raw in given.pods or ()), given.violations
            )
            for node, given in whole.items()
            if given is not None
        },
    )


def encode_preemption_result(nodes: Mapping[str, Victims]) -> bytes:
    """Write the answer: always victims by UID, whatever was asked."""
    return _ENCODER.encode(
        {
            "NodeNameToMetaVictims": {
                node: {
                    "Pods": [{"UID": uid} for uid in victims.uids],
                    "NumPDBViolations": victims.violations,
                }
                for node, victims in nodes.items()
            }
        }
    )


def _victims(node: str, uids: Iterable[str], violations: int) -> Victims:
    known = tuple(dict.fromkeys(uids))
    check_count(f"victims of {node}", known, MAX_VICTIMS)
    if not all(known):
        raise WireError("victims", node, "a victim has no UID")
    return Victims(uids=known, violations=violations)


MAX_ANSWERED: Final = 8
"""Nodes of an answer, the cheapest first: room is kept on all until one of them is nominated."""
SLICE_S: Final = 0.005
"""How long nodes are tried before other decisions have their turn."""
SEARCH_S: Final = 5.0
"""How long is searched; kube-scheduler, which decides about nothing else then, waits for 30 s."""
_LOWEST: Final = -(2**31)
"""The lowest priority that a pod can have."""

Attempt = Callable[[Books, Trial, str, Look], tuple[Victims, Room] | None]


class VictimSearch:
    """One call: `run` answers it, and keeps the room that it found."""

    def __init__(
        self,
        state: ClusterState,
        clock: Clock,
        pause: Callable[[], object],
        protection: Protection,
        args: PreemptionArgs,
        request: PodRequest,
    ) -> None:
        """Search for `request` among the proposals of `args`.

        Args:
            state: which pod holds what.
            clock: the time.
            pause: lets others have the state.
            protection: tells which pods must not be added.
            args: the call.
            request: what its pod asks for.
        """
        self._state, self._clock, self._pause = state, clock, pause
        self._protection, self._args, self._request = protection, args, request
        self._found: dict[str, Victims] = {}
        self._rooms: dict[str, Room] = {}
        self._end_s = clock.monotonic() + SEARCH_S

    def run(self) -> dict[str, Victims]:
        """The victims by node; no node where no eviction helps, or that was not reached in time.

        Pods that kube-scheduler did not propose are only added if its own choice helps nowhere.
        """
        nodes = [node for _, node in sorted(self._costs())]
        self._try(nodes, self._as_proposed)
        if not self._found and nodes:
            self._protection.refresh()
            self._try(nodes, self._with_more)
        return self._found

    @property
    def is_late(self) -> bool:
        """True once there is no time left."""
        return self._clock.monotonic() >= self._end_s

    def _slices(self, nodes: Sequence[str]) -> Iterator[tuple[Books, Iterator[str]]]:
        """The nodes in turns, each with the state's lock."""
        left = iter(nodes)
        for node in left:
            with self._state.books.held() as books:
                yield books, self._turn(node, left)
            if self.is_late:
                return
            self._pause()

    def _turn(self, first: str, left: Iterator[str]) -> Iterator[str]:
        monotonic = self._clock.monotonic
        end_s = monotonic() + SLICE_S
        yield first
        while monotonic() < end_s and (node := next(left, None)) is not None:
            yield node

    def _costs(self) -> list[tuple[tuple[int, ...], str]]:
        """What kube-scheduler would compare, for the nodes whose victims may be evicted."""
        costs: list[tuple[tuple[int, ...], str]] = []
        closed = self._state.backed_off()
        open_nodes = [node for node in self._args.nodes if node not in closed]
        for books, nodes in self._slices(open_nodes):
            for node in nodes:
                victims = self._args.nodes[node]
                known = [books.pods.find(uid) for uid in victims.uids]
                ranks = [item.pod.priority for item in known if item is not None]
                if any(rank >= self._args.pod.priority for rank in ranks):
                    continue
                total = sum(rank - _LOWEST for rank in ranks) - _LOWEST * known.count(None)
                most = max(ranks, default=_LOWEST)
                costs.append(((victims.violations, most, total, len(known)), node))
        return costs

    def _try(self, nodes: Sequence[str], attempt: Attempt) -> None:
        pod = self._args.pod
        for books, turn in self._slices(nodes):
            if books.pods.is_gone(pod.uid):  # nothing would ever give up what is kept for it
                return
            trial = Trial(books.fleet, self._request)
            kept = books.kept.against(pod.uid, pod.priority)
            for node in turn:
                proposed = frozenset(self._args.nodes[node].uids)
                gone = proposed | books.pods.leaving(node) | {pod.uid}
                found = attempt(books, trial, node, Look(gone=gone, kept=kept.get(node, ())))
                if found is None:
                    continue
                self._found[node], self._rooms[node] = found
                # in the step that found it: what the victims leave is nobody else's from now on
                books.kept.keep(pod, self._request, self._rooms)
                if len(self._found) == MAX_ANSWERED:
                    return

    def _as_proposed(
        self, books: Books, trial: Trial, node: str, look: Look
    ) -> tuple[Victims, Room] | None:
        victims = self._args.nodes[node]
        grants = trial.grants(node, look) if victims.uids else None
        if grants is None:
            return None
        return victims, Room(grants=grants, victims=frozenset(victims.uids))

    def _with_more(
        self, books: Books, trial: Trial, node: str, look: Look
    ) -> tuple[Victims, Room] | None:
        cleared = fewest(trial, node, look, self._holders(books, node, look))
        victims = self._args.nodes[node]
        if cleared is None or not (victims.uids or cleared.holders):
            return None
        more = replace(victims, uids=(*victims.uids, *(holder.key for holder in cleared.holders)))
        return more, Room(grants=cleared.grants, victims=frozenset(more.uids))

    def _holders(self, books: Books, node: str, look: Look) -> list[Holder]:
        """Who may be evicted beside the proposed, least important first."""
        state = books.fleet.nodes.get(node)
        keys = () if state is None else state.usage.pods
        pods = [
            item.pod
            for key in keys
            if key not in look.gone and (item := books.pods.find(key)) is not None
        ]
        lower = [
            pod
            for pod in pods
            if pod.node_name == node
            and pod.priority < self._args.pod.priority
            and not self._protection.is_protected(pod)
        ]
        lower.sort(key=attrgetter("creation_time"), reverse=True)
        lower.sort(key=attrgetter("priority"))
        return [Holder(key=pod.uid, priority=pod.priority) for pod in lower]


class PodPreemption:
    """Answers /preempt. Thread-safe."""

    def __init__(
        self,
        state: ClusterState,
        writer: ReservationWriter,
        outlets: Outlets,
        protection: Protection,
        clock: Clock,
        pause: Callable[[], object],
    ) -> None:
        """Search in `state`, see `VictimSearch`; note with `writer`, report to `outlets`."""
        self._state, self._writer, self._out = state, writer, outlets
        self._search = partial(VictimSearch, state, clock, pause, protection)

    def answer(self, body: bytes) -> bytes:
        """The answer to one call.

        Raises:
            WireError: the body is not a preemption call.
            NotLeading: another replica decides.
        """
        fence = self._out.require_lead()
        args = decode_preemption_args(body)
        try:
            found, result = self._decide(args, fence)
            fence()
        except WireError:
            found, result = {}, "refused"
        self._out.on_result(result)
        return encode_preemption_result(found)

    def _decide(self, args: PreemptionArgs, fence: Fence) -> tuple[Mapping[str, Victims], str]:
        check_pod(args.pod)
        request = request_of(args.pod, self._state.rules.vendors)
        if request.is_empty:
            return args.nodes, "untouched"
        if args.pod.never_preempts:
            return {}, "never"
        if (awaited := self._awaited(args)) is not None:
            return awaited, "awaited"
        search = self._search(args, request)
        found = search.run()
        sizes = {node: len(victims.uids) for node, victims in found.items()}
        fields = kv(pod=args.pod.key, proposed=len(args.nodes), victims=sizes)
        log.info("preemption", extra=fields)
        if found and not self._is_noted(args.pod, found, fence):
            return {}, "gone"
        if found:
            added = any(len(found[node].uids) > len(args.nodes[node].uids) for node in found)
            return found, "extended" if added else "confirmed"
        return found, "late" if search.is_late else "nowhere"

    def _awaited(self, args: PreemptionArgs) -> Mapping[str, Victims] | None:
        """The answer for a pod whose victims of before have still to end: nobody else has to."""
        with self._state.books.held() as books:
            node = books.kept.awaited(args.pod.uid)
            leaving = books.pods.leaving(node)
        if not node:
            return None
        victims = args.nodes.get(node, Victims(uids=()))
        return {node: victims} if victims.uids and leaving.issuperset(victims.uids) else {}

    def _is_noted(self, pod: Pod, found: Mapping[str, Victims], fence: Fence) -> bool:
        """Note the victims on the pod; False if there is no such pod to be placed any more."""
        try:
            victims = {node: each.uids for node, each in found.items()}
            self._writer.note_victims(pod, victims, fence)
        except (PodTaken, NotFound):
            return False
        except KubeError as e:
            then = "this replica keeps their room, the next one may not"
            log.warning("victims_not_noted", extra=kv(pod=pod.key, error=str(e), then=then))
        return True
