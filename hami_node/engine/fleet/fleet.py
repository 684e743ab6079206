"""Every node with its cards and grants, and where among them a pod goes.

Kept by adding and removing one node or one pod at a time; nothing is rebuilt for a decision. A
node's score does not depend on the request, so nodes stay ordered by it, and only nodes up to the
first that fits are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from hami_node.engine.card_rules import rules_of
from hami_node.engine.filters import Rejection
from hami_node.engine.fleet.candidates import among, few
from hami_node.engine.fleet.effort import Effort
from hami_node.engine.fleet.memory import Memory
from hami_node.engine.fleet.needs import Needs, settled
from hami_node.engine.fleet.node_order import NodeOrder
from hami_node.engine.fleet.node_state import Catalogue, NodeState
from hami_node.engine.fleet.reasons import Reasons
from hami_node.engine.fleet.resumes import Resumes
from hami_node.engine.fleet.summaries import Key, NodeSummary
from hami_node.engine.place import Plan, PodRequest, Refused, Rules, plan
from hami_node.engine.quota import Quota, QuotaBook
from hami_node.engine.ranking import SPREAD
from hami_node.engine.usage import Charge, PodGrants, collapse
from hami_node.model import NO_SCORES, Device, PairScores, Uuid

FEW: Final = 8
"""If fewer than one node in this many may be chosen, only those are looked at."""
MOST_FOUND: Final = 4
"""Lists of cards whose nodes are remembered: one request has two of each vendor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The node chosen for a pod, and what each container gets there.

    `is_exact` is False where the search for the best linked cards was cut short.
    """

    node: str
    grants: PodGrants
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class NoNode:
    """No node fits; `Fleet.explain` gives the reasons, node by node.

    `took_s` is how long the search took, where somebody has measured it.
    """

    took_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The time was up before an answer was known. Asked again, it goes on where it was."""


IsTimeUp = Callable[[], bool]


def never() -> bool:
    """The time is never up."""
    return False


class Fleet:
    """All nodes and all grants. Not thread-safe: its owner holds a lock."""

    def __init__(self, rules: Rules, quotas: QuotaBook | None = None) -> None:
        """Start without nodes and pods."""
        self.rules = rules
        self.quotas = QuotaBook() if quotas is None else quotas
        self._nodes: dict[str, NodeState] = {}
        self._pods: dict[str, tuple[str, str, tuple[Charge, ...]]] = {}
        self._owners: dict[Uuid, tuple[str, ...]] = {}
        self._found: tuple[tuple[frozenset[str], frozenset[str]], ...] = ()
        self._catalogue = Catalogue()
        self._memory = Memory(self._catalogue, self._nodes)
        self._resumes = Resumes()
        self._changes = 0
        self._stale: dict[str, None] = {}
        self._binpack = NodeOrder(is_fullest_first=True)
        self._spread = NodeOrder(is_fullest_first=False)

    @property
    def nodes(self) -> Mapping[str, NodeState]:
        """Every node by name, those known only from grants included. To be read, not changed."""
        return self._nodes

    @property
    def pod_count(self) -> int:
        """How many pods hold grants."""
        return len(self._pods)

    def node_of(self, key: str) -> str | None:
        """The node that holds a pod's grants."""
        return self._pods[key][0] if key in self._pods else None

    def set_node(
        self,
        name: str,
        devices: Iterable[Device],
        *,
        cordoned: frozenset[Uuid] = frozenset(),
        pair_scores: PairScores = NO_SCORES,
    ) -> None:
        """Add a node or replace what it offers; grants on it stay."""
        state = self._state(name)
        self._leave(state)
        state.usage.replace_devices(devices)
        state.cordoned, state.pair_scores = cordoned, pair_scores
        self._catalogue.enroll(state)
        self._found, alone = (), (name,)  # one for all cards of the node
        for uuid in state.usage.cards:
            others = self._owners.get(uuid)
            self._owners[uuid] = (*others, name) if others else alone
        self._touch(state)

    def remove_node(self, name: str) -> None:
        """Forget what a node offers; its pods' grants are kept until the pods are removed."""
        state = self._nodes.get(name)
        if state is None:
            return
        self._leave(state)
        state.usage.replace_devices(())
        self._drop_if_empty(state)

    def add_pod(
        self,
        key: str,
        namespace: str,
        node: str,
        grants: PodGrants,
        limited: PodGrants | None = None,
    ) -> None:
        """Count a pod's grants; what was counted under its key before is replaced.

        `limited` is what the namespace's quota counts, where that is not the same.
        """
        self.remove_pod(key)
        state = self._state(node)
        state.usage.add(key, grants)
        charges = state.usage.charges(key) if limited is None else collapse(limited)
        self._pods[key] = (node, namespace, charges)
        self._use_quota(namespace, charges, 1)
        self._touch(state)

    def quota_charges(self, key: str) -> tuple[Charge, ...]:
        """What a pod takes of its namespace's quota, card by card."""
        return self._pods[key][2] if key in self._pods else ()

    def quota_without(self, namespace: str, keys: Iterable[str]) -> Quota | None:
        """The namespace's quota as it is once these pods are gone; None when nothing limits it."""
        quota = self.quotas.quota(namespace)
        if quota is None:
            return None
        gone = [
            charge
            for _, owner, charges in (self._pods[key] for key in keys if key in self._pods)
            for charge in charges
            if owner == namespace and rules_of(charge.vendor).has_quota
        ]
        return replace(
            quota,
            memory_used_mib=quota.memory_used_mib - sum(charge.memory_mib for charge in gone),
            cores_used=quota.cores_used - sum(charge.cores for charge in gone),
        )

    def remove_pod(self, key: str) -> None:
        """Remove a pod's grants; does nothing for an unknown pod."""
        node, namespace, charges = self._pods.pop(key, ("", "", ()))
        state = self._nodes.get(node)
        if state is None:
            return
        self._use_quota(namespace, charges, -1)
        state.usage.remove(key)
        self._touch(state)
        self._drop_if_empty(state)

    def place(
        self, request: PodRequest, candidates: Collection[str] | None = None
    ) -> Placed | NoNode | Refused:
        """Choose the node with the best score that fits, and the cards on it; nothing is charged.

        Args:
            request: the pod, which has to request cards. Grants of an earlier attempt have to be
                removed before.
            candidates: the nodes to choose from; None means all.
        """
        while isinstance(answer := self.search(request, candidates, never), Unfinished):
            pass
        return answer

    def search(
        self, request: PodRequest, candidates: Collection[str] | None, is_time_up: IsTimeUp
    ) -> Placed | NoNode | Refused | Unfinished:
        """As `place`, for as long as there is time; what it has found out by then is remembered.

        The fleet may change before it is asked again: an answer is always that of `place` at that
        moment, because what was refused is looked at again where it has changed. After `put_off`
        it begins where it was, and the first node that fits there is taken.
        """
        ready = self._ready(request)
        if isinstance(ready, Refused):
            return ready
        known = self._memory.of(ready, request.namespace)
        wanted, named = known.needs(), self._named(request)
        if wanted.impossible:
            self._memory.shrink(known)
            return NoNode()
        # a node with a card that the request names is not like the others of its group
        refused = known.hopeless if named else known.refused
        begun, order, resumes = known.progress, self._order(ready), self._resumes
        after = resumes.after(ready.request)
        try:
            for last, names in self._tried(ready, wanted, candidates, refused, after):
                for name in names:
                    state, is_named = self._nodes[name], name in named
                    answer = known.place(state, is_named=is_named)
                    if not isinstance(answer, Rejection):
                        resumes.end(ready.request)
                        return Placed(node=name, grants=answer.grants, is_exact=answer.is_exact)
                    if not named:
                        refused.add(state.group)
                    if known.progress > begun and is_time_up():
                        summary = state.summary
                        at = last if summary is None else order.key(name, summary.score)
                        resumes.stop(ready.request, at)
                        return Unfinished()
                if known.progress > begun and is_time_up():
                    resumes.stop(ready.request, last)
                    return Unfinished()
        finally:
            self._memory.shrink(known)
        resumes.end(ready.request)
        return NoNode()

    def put_off(self, request: PodRequest) -> None:
        """A search was given up unfinished: the next one for an equal pod begins where it was.

        So it comes to an end, however much changes among the nodes that come first.
        """
        self._resumes.put_off(_nameless(request))

    def explain(
        self,
        request: PodRequest,
        candidates: Iterable[str] | None = None,
        is_time_up: IsTimeUp = never,
        effort: Effort | None = None,
    ) -> dict[str, Rejection] | Refused:
        """Why each of these nodes can't take the pod; nodes that can are left out.

        If the time is up, it has taken from `candidates` only those that it has looked at. Once the
        effort is spent, a node's reason is what `search` has found out by then: that it can't.
        """
        ready = self._ready(request)
        if isinstance(ready, Refused):
            return ready
        explainer = self._memory.of(ready, request.namespace)
        named, owners = self._named(request), self._owners_wished(request)
        effort = Effort() if effort is None else effort
        reasons = Reasons(explainer, self._nodes, named, owners, effort)
        found = reasons.of(iter(self._nodes if candidates is None else candidates), is_time_up)
        self._memory.shrink(explainer)
        return found

    def _ready(self, request: PodRequest) -> Plan | Refused:
        """The request ready for nodes that are summed up."""
        ready = plan(_nameless(request), self.rules, self.quotas.quota(request.namespace))
        if isinstance(ready, Refused):
            return ready
        self.catch_up()
        return settled(ready, self._catalogue.kinds)

    def _tried(
        self,
        ready: Plan,
        wanted: Needs,
        candidates: Collection[str] | None,
        refused: set[int],
        after: Key | None,
    ) -> Iterable[tuple[Key | None, Iterable[str]]]:
        """The nodes to try in their order, in lots that are quickly looked through.

        Each lot comes with its last key. Nodes up to the key `after` come last.
        """
        order = self._order(ready)
        owners = self._owners_wished(ready.request)
        if owners is not None:
            candidates = owners if candidates is None else owners.intersection(candidates)
        if candidates is None:
            return order.walk(wanted, refused, after)
        if len(candidates) * FEW < len(self._nodes):
            states = [state for name in set(candidates) if (state := self._nodes.get(name))]
            return few(states, order, wanted, refused, after)
        return order.walk(wanted, refused, after, among(candidates))

    def _order(self, ready: Plan) -> NodeOrder:
        policy = ready.request.wishes.node_policy
        policy = self.rules.node_policy if policy is None else policy
        return self._spread if policy == SPREAD else self._binpack

    def _owners_wished(self, request: PodRequest) -> frozenset[str] | None:
        """The nodes that have a card the pod names for use; None when it names none."""
        owners: frozenset[str] | None = None
        for vendor in {ask.vendor for item in request.containers for ask in item.asks}:
            use = request.wishes.of(vendor).uuids.use
            if use is None:
                continue
            found = self._owners_of(use)
            owners = found if owners is None else owners & found
        return owners

    def _named(self, request: PodRequest) -> frozenset[str]:
        """The nodes that have a card the pod names, for use or not."""
        uuids = [wishes.uuids for _, wishes in request.wishes.cards]
        lists = [listed for each in uuids for listed in (each.use, each.nouse) if listed]
        return frozenset().union(*map(self._owners_of, lists))

    def _owners_of(self, uuids: frozenset[str]) -> frozenset[str]:
        """The nodes that have one of these cards: a pod may list 60,000 that nobody has.

        One decision asks several times, for cards to use and not to use: the answers of the last
        times are kept while they are true.
        """
        for asked, answer in self._found:
            if asked is uuids:
                return answer
        owners = self._owners
        is_longer = len(uuids) > len(owners)
        known = uuids.intersection(owners) if is_longer else owners.keys() & uuids
        found = frozenset(name for uuid in known for name in owners[Uuid(uuid)])
        self._found = ((uuids, found), *self._found[: MOST_FOUND - 1])
        return found

    def _state(self, name: str) -> NodeState:
        state = self._nodes.get(name)
        if state is None:
            state = self._nodes[name] = NodeState(name)
        return state

    def _touch(self, state: NodeState) -> None:
        self._changes += 1
        state.version = self._changes
        if state.is_registered:
            self._stale[state.name] = None

    def catch_up(self) -> None:
        """Sum up and sort again the nodes that changed; every decision starts with this."""
        for name in self._stale:
            state = self._nodes[name]
            if state.summary is not None:
                self._unsort(name, state.summary)
            summary = self._catalogue.refresh(state)
            self._binpack.insert(name, summary)
            self._spread.insert(name, summary)
        self._stale = {}

    def _unsort(self, name: str, summary: NodeSummary) -> None:
        self._binpack.remove(name, summary)
        self._spread.remove(name, summary)

    def _leave(self, state: NodeState) -> None:
        """Take a state out of every index."""
        self._changes += 1
        state.version = self._changes
        if state.summary is not None:
            self._unsort(state.name, state.summary)
        self._catalogue.expel(state)
        self._stale.pop(state.name, None)
        self._found = ()
        for uuid in state.usage.cards:
            left = tuple(name for name in self._owners[uuid] if name != state.name)
            if left:
                self._owners[uuid] = left
            else:
                del self._owners[uuid]

    def _drop_if_empty(self, state: NodeState) -> None:
        if not state.is_registered and not state.usage.pods:
            self._nodes.pop(state.name, None)

    def _use_quota(self, namespace: str, charges: Iterable[Charge], sign: int) -> None:
        for charge in charges:
            if rules_of(charge.vendor).has_quota:
                self.quotas.use(namespace, sign * charge.memory_mib, sign * charge.cores)


def _nameless(request: PodRequest) -> PodRequest:
    """Requests of all namespaces are equal but for the quota, which is part of the plan."""
    return PodRequest(namespace="", containers=request.containers, wishes=request.wishes)
