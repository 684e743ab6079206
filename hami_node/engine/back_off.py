"""Which nodes get no pods for a while, because pods that were sent there were not served. Pure.

A failure closes its node to the pods of the same owner only: what fails may be the pod. Two owners
of a namespace close it to the namespace, two namespaces to everybody; so does a failure that no pod
can have brought about. A wait grows with every wave of failures and ends with one pod that tries.
Nobody can close many nodes to others: a namespace that fails on many nodes no longer counts for
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import Final

FIRST_S: Final = 10.0
LONGEST_S: Final = 300.0
"""A wait doubles from the first to the longest."""
WINDOW_S: Final = 600.0
"""Failures that are older when they become known do not count, nor do they make a second owner."""
TRIAL_S: Final = 120.0
"""How long one pod tries a node alone; then the next one may."""
FORGET_S: Final = 3600.0
"""Without any failure for this long, a node is as good as any other."""
PROLIFIC: Final = 3
"""A namespace that has failed on more nodes than this is no witness against any of them."""
MAX_HOLDS: Final = 50_000
"""Waits that are remembered; the oldest is given up for a newer one."""
MAX_OWNERS: Final = 16
"""Owners, and namespaces, that one node remembers."""
MAX_UIDS: Final = 32
"""Failed pods remembered for each wait: those that are seen twice count once."""

Scope = tuple[str, ...]
"""To whom a node is closed: () everybody, (namespace,), or (namespace, owner)."""
EVERYBODY: Final[Scope] = ()


class Breadth(StrEnum):
    """To how many a node is closed; these words are a metric's label."""

    NODE = "node"
    NAMESPACE = "namespace"
    OWNER = "owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    """To whom a pod belongs: pods of one owner are alike. Without a controller it owns itself."""

    namespace: str
    owner: str

    @property
    def scopes(self) -> tuple[Scope, Scope, Scope]:
        """Whoever closes a node to it, the widest first."""
        return EVERYBODY, (self.namespace,), (self.namespace, self.owner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A pod whose cards were not served.

    Attributes:
        node, whose, uid: where, and who.
        fault: a word for it.
        is_the_nodes: no pod can have brought it about.
        sent_s: when the pod was bound, Unix seconds; 0 where that is not known.
        failed_s: when it failed, as far as that is known.
        detail: what was said about it, for those who run the cluster.
    """

    node: str
    whose: Whose
    uid: str
    fault: StrEnum
    is_the_nodes: bool
    sent_s: float
    failed_s: float
    detail: str = ""


@dataclass(slots=True, kw_only=True)
class Hold:
    """A node that is closed to some pods until `until_s`, then open to one pod that tries it.

    Attributes:
        waves: failures in a row, those of pods that were sent together counted once.
        is_hurried: its wait was cut short once because something changed on the node.
        trial: uid of the pod that tries it, until `trial_until_s`; "" for none.
    """

    node: str
    scope: Scope
    fault: StrEnum
    detail: str = ""
    waves: int = 0
    failed_s: float = 0.0
    until_s: float = 0.0
    is_hurried: bool = False
    trial: str = ""
    trial_until_s: float = 0.0
    uids: dict[str, None] = field(default_factory=dict)

    @property
    def breadth(self) -> Breadth:
        """To how many the node is closed."""
        return (Breadth.NODE, Breadth.NAMESPACE, Breadth.OWNER)[len(self.scope)]

    def is_closed_to(self, uid: str, now_s: float) -> bool:
        """Whether this pod may not be sent there now; a clock that was set back ends waits."""
        return 0 < self.until_s - now_s <= LONGEST_S or self.is_tried_by_other(uid, now_s)

    def is_tried_by_other(self, uid: str, now_s: float) -> bool:
        """Whether another pod is trying the node just now."""
        return self.trial not in ("", uid) and 0 < self.trial_until_s - now_s <= TRIAL_S


class BackOff:
    """All waits. Not thread-safe: its owner holds a lock. Times are Unix seconds."""

    def __init__(self) -> None:
        """Nothing has failed."""
        self._holds: dict[tuple[str, Scope], Hold] = {}
        self._on: dict[str, dict[Scope, Hold]] = {}
        self._to: dict[Scope, dict[str, Hold]] = {}
        self._served: dict[str, float] = {}
        self._failed_on: dict[str, dict[str, float]] = {}
        self._trials: dict[str, str] = {}

    def holds(self) -> Iterator[Hold]:
        """Every wait, those included that are over and wait for a pod that tries."""
        yield from self._holds.values()

    # -- what happened -----------------------------------------------------------------------------
    def failed(self, failure: Failure, now_s: float) -> Hold | None:
        """Count a failure; the widest wait that it began or lengthened, None if not counted."""
        node, failed_s = failure.node, min(failure.failed_s, now_s)
        if now_s - failed_s > WINDOW_S or failed_s <= self._served.get(node, 0.0) <= now_s:
            return None
        namespaces = self._failed_on.setdefault(failure.whose.namespace, {})
        namespaces[node] = max(failed_s, namespaces.get(node, 0.0))
        widest: Hold | None = None
        for scope in reversed(self._accused(failure, now_s)):
            hold = self._charged(failure, scope, failed_s)
            widest = hold or widest
        return widest

    def served(self, node: str, whose: Whose, at_s: float, now_s: float) -> list[Hold]:
        """A pod got its cards there; the waits that this ended.

        Those of others, whose own pods may be the fault, are cut short.
        """
        at_s = min(at_s, now_s)
        self._served[node] = max(at_s, self._served.get(node, 0.0))
        ended = []
        for hold in tuple(self._on.get(node, {}).values()):
            if at_s < hold.failed_s:
                continue
            if hold.scope in whose.scopes:
                self._drop(hold)
                ended.append(hold)
            else:
                _hurry(hold, now_s)
        return ended

    def renewed(self, node: str, now_s: float) -> None:
        """Something changed on the node that may have mended it: each wait is cut short once."""
        for hold in self._on.get(node, {}).values():
            _hurry(hold, now_s)

    def forget(self, node: str) -> None:
        """The node is gone, or is another one of that name."""
        for hold in tuple(self._on.get(node, {}).values()):
            self._drop(hold)
        self._served.pop(node, None)

    def ended(self, uid: str) -> None:
        """A pod is gone, or is sent elsewhere: the node that it tried may be tried by another."""
        node = self._trials.pop(uid, "")
        for hold in self._on.get(node, {}).values():
            if hold.trial == uid:
                hold.trial = ""

    # -- decisions ---------------------------------------------------------------------------------
    def closed_to(self, whose: Whose, uid: str, now_s: float) -> dict[str, Hold]:
        """The nodes to which such a pod may not be sent now, with the widest wait of each."""
        if not self._holds:
            return {}
        closed: dict[str, Hold] = {}
        for scope in reversed(whose.scopes):
            for node, hold in self._to.get(scope, {}).items():
                if hold.is_closed_to(uid, now_s):
                    closed[node] = hold
        return closed

    def sent(self, node: str, whose: Whose, uid: str, now_s: float) -> None:
        """A pod was decided to go there: where a wait is over, it is the one that tries."""
        on = self._on.get(node)
        if on is None:
            return
        for scope in whose.scopes:
            hold = on.get(scope)
            if hold is not None:
                hold.trial, hold.trial_until_s = uid, now_s + TRIAL_S
                self._trials[uid] = node
        while len(self._trials) > MAX_HOLDS:
            del self._trials[next(iter(self._trials))]

    def sweep(self, now_s: float) -> None:
        """Drop what no longer counts."""
        for hold in tuple(self._holds.values()):
            if now_s - max(hold.failed_s, hold.until_s) > FORGET_S:
                self._drop(hold)
        for node, served_s in tuple(self._served.items()):
            if not 0 <= now_s - served_s <= WINDOW_S:
                del self._served[node]
        for namespace, nodes in tuple(self._failed_on.items()):
            for node, failed_s in tuple(nodes.items()):
                if now_s - failed_s > WINDOW_S:
                    del nodes[node]
            if not nodes:
                del self._failed_on[namespace]

    # -- inside ------------------------------------------------------------------------------------
    def _accused(self, failure: Failure, now_s: float) -> list[Scope]:
        """Whom this failure closes the node to, the widest first."""
        whose, on = failure.whose, self._on.get(failure.node, {})
        everybody, namespace, owner = whose.scopes
        if failure.is_the_nodes:
            return [everybody]
        others = [
            hold.scope
            for hold in on.values()
            if len(hold.scope) == len(owner)
            and hold.scope != owner
            and now_s - hold.failed_s <= WINDOW_S
        ]
        scopes = [owner]
        if any(scope[0] == whose.namespace for scope in others):
            scopes.insert(0, namespace)
        if self._is_witness(whose.namespace, now_s) and any(
            scope[0] != whose.namespace and self._is_witness(scope[0], now_s) for scope in others
        ):
            scopes.insert(0, everybody)
        return scopes

    def _is_witness(self, namespace: str, now_s: float) -> bool:
        """False for a namespace whose pods fail on so many nodes that it may be their own fault."""
        failed = self._failed_on.get(namespace, {}).values()
        return sum(1 for failed_s in failed if now_s - failed_s <= WINDOW_S) <= PROLIFIC

    def _charged(self, failure: Failure, scope: Scope, failed_s: float) -> Hold | None:
        """The wait, after this failure; None where the pod was counted before."""
        hold = self._holds.get((failure.node, scope)) or self._new(failure, scope)
        if failure.uid in hold.uids:
            hold.detail = max(hold.detail, failure.detail, key=len)
            return None
        hold.uids[failure.uid] = None
        if len(hold.uids) > MAX_UIDS:
            del hold.uids[next(iter(hold.uids))]
        # whole seconds are written: a pod that was sent right after the wait is not of the wave
        is_same_wave = hold.trial != failure.uid and failure.sent_s + 1.0 < hold.until_s
        if not (hold.waves and is_same_wave):
            hold.waves += 1
        if hold.trial == failure.uid:
            hold.trial = ""
            self._trials.pop(failure.uid, None)
        hold.fault, hold.detail = failure.fault, failure.detail
        hold.failed_s = max(hold.failed_s, failed_s)
        hold.until_s = max(hold.until_s, failed_s + wait_s(hold.waves))
        return hold

    def _new(self, failure: Failure, scope: Scope) -> Hold:
        node = failure.node
        owners = [hold for key, hold in self._on.get(node, {}).items() if len(key) == len(scope)]
        if len(owners) >= MAX_OWNERS:
            self._drop(min(owners, key=attrgetter("failed_s")))
        if len(self._holds) >= MAX_HOLDS:
            self._drop(next(iter(self._holds.values())))
        hold = Hold(node=node, scope=scope, fault=failure.fault)
        self._holds[node, scope] = hold
        self._on.setdefault(node, {})[scope] = hold
        self._to.setdefault(scope, {})[node] = hold
        return hold

    def _drop(self, hold: Hold) -> None:
        node, scope = hold.node, hold.scope
        self._holds.pop((node, scope), None)
        self._trials.pop(hold.trial, None)
        on, to = self._on.get(node, {}), self._to.get(scope, {})
        on.pop(scope, None)
        to.pop(node, None)
        if not on:
            self._on.pop(node, None)
        if not to:
            self._to.pop(scope, None)


def wait_s(waves: int) -> float:
    """How long a node is left alone after so many waves of failures."""
    return min(FIRST_S * 2.0 ** min(max(waves - 1, 0), 16), LONGEST_S)


def _hurry(hold: Hold, now_s: float) -> None:
    if not hold.is_hurried and now_s < hold.until_s:
        hold.is_hurried, hold.until_s = True, now_s
