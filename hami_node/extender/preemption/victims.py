"""Which of the victims that kube-scheduler proposes really make room on a card.

kube-scheduler proposes, node by node, the fewest pods for the shortages that it knows: slots, CPU,
memory, ports. All of these stay, for it would miss each of them; what a card lacks beside that is
found here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from hami_node.engine.fleet.eviction import Holder, Look, Trial, fewest
from hami_node.engine.place import PodRequest
from hami_node.extender.preemption.books import Books
from hami_node.extender.preemption.budgets import Protection
from hami_node.extender.preemption.kept_rooms import Room
from hami_node.extender.preemption.messages import PreemptionArgs, Victims
from hami_node.extender.state.cluster_state import ClusterState
from hami_node.ports import Clock

MAX_ANSWERED: Final = 8
"""Nodes of an answer, the cheapest first: room is kept on all until one of them is nominated."""
SLICE_S: Final = 0.005
"""How long nodes are tried before other decisions have their turn."""
SEARCH_S: Final = 5.0
"""How long is searched; kube-scheduler, which decides about nothing else then, waits for 30 s."""
_LOWEST: Final = -(2**31)
"""The lowest priority that a pod can have."""

Attempt = Callable[[Books, Trial, str, Look], tuple[Victims, Room] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchParts:
    """The dependencies of a search.

    Attributes:
        state: which pod holds what.
        clock: the time.
        pause: lets others have the state.
        protection: tells which pods must not be added.
    """

    state: ClusterState
    clock: Clock
    pause: Callable[[], object]
    protection: Protection


class VictimSearch:
    """One call: `run` answers it, and keeps the room that it found."""

    def __init__(self, parts: SearchParts, args: PreemptionArgs, request: PodRequest) -> None:
        """Search for `request` among the proposals of `args`."""
        self._parts, self._args, self._request = parts, args, request
        self._found: dict[str, Victims] = {}
        self._rooms: dict[str, Room] = {}
        self._end_s = parts.clock.monotonic() + SEARCH_S

    def run(self) -> dict[str, Victims]:
        """The victims by node; no node where no eviction helps, or that was not reached in time.

        Pods that kube-scheduler did not propose are only added if its own choice helps nowhere.
        """
        nodes = [node for _, node in sorted(self._costs())]
        self._try(nodes, self._as_proposed)
        if not self._found and nodes:
            self._parts.protection.refresh()
            self._try(nodes, self._with_more)
        return self._found

    @property
    def is_late(self) -> bool:
        """True once there is no time left."""
        return self._parts.clock.monotonic() >= self._end_s

    def _slices(self, nodes: Sequence[str]) -> Iterator[tuple[Books, Iterator[str]]]:
        """The nodes in turns, each with the state's lock."""
        left = iter(nodes)
        for node in left:
            with self._parts.state.books.held() as books:
                yield books, self._turn(node, left)
            if self.is_late:
                return
            self._parts.pause()

    def _turn(self, first: str, left: Iterator[str]) -> Iterator[str]:
        monotonic = self._parts.clock.monotonic
        end_s = monotonic() + SLICE_S
        yield first
        while monotonic() < end_s and (node := next(left, None)) is not None:
            yield node

    def _costs(self) -> list[tuple[tuple[int, ...], str]]:
        """What kube-scheduler would compare, for the nodes whose victims may be evicted."""
        costs: list[tuple[tuple[int, ...], str]] = []
        closed = self._parts.state.backed_off()
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
            and not self._parts.protection.is_protected(pod)
        ]
        lower.sort(key=attrgetter("creation_time"), reverse=True)
        lower.sort(key=attrgetter("priority"))
        return [Holder(key=pod.uid, priority=pod.priority) for pod in lower]
