"""Nodes, cards and pods as the watches bring them, ready for pages.

A watch only notes what changed. One thread takes the notes in small portions, so that the work of
a change is one node's work, many changes of a node are one, and a large cluster is there bit by
bit while it is read.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from hami_node.engine.card_rules import rules_of
from hami_node.engine.fleet.fleet import Fleet
from hami_node.engine.usage import DeviceUsage
from hami_node.errors import WireError
from hami_node.inspection.cluster import inspect
from hami_node.inspection.picture import Basis, Book, Picture, is_expired
from hami_node.inspection.shares import fixed_asks
from hami_node.inspection.views import ClusterView, Problem
from hami_node.model import Node, Pod
from hami_node.ports import Clock
from hami_node.vendors.holding import has_grants, node_of
from hami_node.vendors.request import request_of
from hami_node.view.rows import NodeRow, reported_at, row_of
from hami_node.wire.quotas import ResourceQuota

PORTION: Final = 20
"""Nodes read while the lock is held once."""
NOTES: Final = 500
"""Changes taken while the lock is held once."""
PATIENCE: Final = 8
"""Nodes wait for changes that are still to be taken, which may concern them too; not for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """What a portion has changed: names of nodes; whether pods wait that did not, or the reverse.

    `left` counts the changes and nodes that are still to be read.
    """

    nodes: frozenset[str]
    is_waiting_changed: bool
    left: int


class LivePicture:
    """All that pages show. Watches call `*_changed`, one thread `refresh`, others the rest."""

    def __init__(self, basis: Basis, clock: Clock) -> None:
        """Start empty; `basis` has the vendors and the extender's rules."""
        self.basis = basis
        self.lock = threading.RLock()
        self.woken = threading.Event()
        self._clock = clock
        self._notes: deque[tuple[object, object]] = deque()
        self._book = Book(basis, keeps_empty=True)
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, dict[str, Pod]] = {}
        self._dirty: dict[str, None] = {}
        self._turn = 0
        self.rows: dict[str, NodeRow] = {}
        self.waiting: dict[str, Pod] = {}

    # -- for the watches' threads ------------------------------------------------------------------

    def note(self, before: object, after: object) -> None:
        """An object has changed, from what it was to what it is; None is absent."""
        if isinstance(before, Node) and isinstance(after, Node) and self._is_report(before, after):
            # nothing but a report: its time is all that there is to read
            self._notes.append((None, after))
        else:
            self._notes.append((before, after))
        self.woken.set()

    def _is_report(self, before: Node, after: Node) -> bool:
        """True where nothing changed but the handshakes' time."""
        keys = {vendor.keys.handshake for vendor in self.basis.vendors}
        names = before.annotations.keys() | after.annotations.keys()
        return all(
            before.annotations.get(name) == after.annotations.get(name)
            or (name in keys and _kind(before, name) == _kind(after, name))
            for name in names
        ) and replace(after, annotations=before.annotations, resource_version="") == replace(
            before, resource_version=""
        )

    # -- for the thread that refreshes -------------------------------------------------------------

    def refresh(self) -> Refreshed:
        """Take all notes, and read the next nodes that changed."""
        now_s = self._clock.now()
        with self.lock:
            waited = {key: pod.resource_version for key, pod in self.waiting.items()}
            for _ in range(min(len(self._notes), NOTES)):
                self._take(*self._notes.popleft(), now_s)
            self._turn = (self._turn + 1) % PATIENCE
            is_early = bool(self._notes) and self._turn != 0
            changed = set()
            for name in () if is_early else list(islice(self._dirty, PORTION)):
                del self._dirty[name]
                if self._read(name, now_s):
                    changed.add(name)
            waits = {key: pod.resource_version for key, pod in self.waiting.items()}
            return Refreshed(
                nodes=frozenset(changed),
                is_waiting_changed=waited != waits,
                left=len(self._dirty) + len(self._notes),
            )

    def sweep(self) -> None:
        """Let go of reservations that were never bound."""
        now_s = self._clock.now()
        with self.lock:
            unbound = [item for item in self._book.held.items() if not item[1].holding.is_bound]
            for key, counted in unbound:
                pod = self._pods.get(counted.holding.node, {}).get(key)
                if pod is None or is_expired(pod, now_s):
                    self._book.hold(key, None)
                    self._dirty[counted.holding.node] = None
        self.woken.set()

    def _take(self, before: object, after: object, now_s: float) -> None:
        if isinstance(after, Node) or isinstance(before, Node):
            self._take_node(before, after)
        elif isinstance(after, Pod) or isinstance(before, Pod):
            self._take_pod(
                before if isinstance(before, Pod) else None,
                after if isinstance(after, Pod) else None,
                now_s,
            )
        elif isinstance(after, ResourceQuota):
            self._book.set_quota(after)
        elif isinstance(before, ResourceQuota):
            self._book.set_quota(before, is_gone=True)

    def _take_node(self, before: object, after: object) -> None:
        if isinstance(after, Node):
            is_known = after.name in self._nodes
            self._nodes[after.name] = after
            row = self.rows.get(after.name)
            if before is not None or not is_known:
                self._dirty[after.name] = None
            elif row is not None:
                reported_s = reported_at(after, self.basis.vendors)
                self.rows[after.name] = replace(row, reported_s=reported_s)
        elif isinstance(before, Node):
            self._nodes.pop(before.name, None)
            self._book.drop_node(before.name)
            self._dirty[before.name] = None

    def _take_pod(self, before: Pod | None, after: Pod | None, now_s: float) -> None:
        pod = after or before
        if pod is None:
            return
        key = pod.key
        for old in (before, after):
            if old is not None and key in self._pods.get(node_of(old), {}):
                self._drop_pod(node_of(old), key)
        self.waiting.pop(key, None)
        if after is None or not self._concerns_cards(after):
            self._book.hold(key, None)
        else:
            if node := node_of(after):
                self._pods.setdefault(node, {})[key] = after
                self._dirty[node] = None
            is_gone = after.is_over or after.is_being_deleted
            if not after.node_name and not is_gone and self._asks(after):
                self.waiting[key] = after
            self._book.set_pod(after, now_s)

    def _drop_pod(self, node: str, key: str) -> None:
        """Also the last trace of a node that only a pod's annotation names."""
        del self._pods[node][key]
        if not self._pods[node]:
            del self._pods[node]
        self._dirty[node] = None

    def _concerns_cards(self, pod: Pod) -> bool:
        """True for a pod that asks for cards or claims some."""
        vendors = self.basis.vendors
        if has_grants(pod, vendors):
            return True
        return self._asks(pod) or any(True for _ in fixed_asks(pod, vendors))

    def _asks(self, pod: Pod) -> bool:
        """True for a pod that asks a scheduler for cards, rightly or not."""
        if not any("/" in name for container in pod.containers for name in container.limits):
            return False
        try:
            return not request_of(pod, self.basis.vendors).is_empty
        except WireError:
            return True

    def _read(self, name: str, now_s: float) -> bool:
        """Read a node anew; False where its row stays the same."""
        node, had = self._nodes.get(name), self.rows.get(name)
        if node is None:
            self._book.drop_node(name)
            row = None
        else:
            self._book.set_node(node)
            view = self._view(node, now_s)
            row = row_of(node, view, self._roomy_cards(name), self.basis.vendors)
        if row is None:
            self.rows.pop(name, None)
        else:
            self.rows[name] = row
        return had is None or row is None or row.wire != had.wire or row.rooms != had.rooms

    def _roomy_cards(self, name: str) -> Iterator[DeviceUsage]:
        state, offer = self._book.fleet.nodes.get(name), self._book.offers.get(name)
        if state is None or offer is None:
            return
        for uuid, card in state.usage.cards.items():
            is_open = card.device.healthy and not card.contradiction and uuid not in offer.cordoned
            is_shared = not rules_of(card.device.vendor).cores_are_mask
            has_room = card.slots_free > 0 and card.memory_free_mib > 0 and card.cores_free > 0
            if is_open and is_shared and has_room:
                yield card

    # -- for everybody, under `lock` ---------------------------------------------------------------

    def node(self, name: str) -> Node | None:
        """The node as the watch shows it."""
        return self._nodes.get(name)

    def view_of(self, name: str) -> ClusterView | None:
        """A node, its cards and who holds them, now; None for an unknown node."""
        node = self._nodes.get(name)
        return None if node is None else self._view(node, self._clock.now())

    def pod(self, key: str) -> Pod | None:
        """A pod that concerns cards."""
        if key in self.waiting:
            return self.waiting[key]
        return next((pods[key] for pods in self._pods.values() if key in pods), None)

    def pods(self) -> Iterable[Pod]:
        """Every pod that concerns cards, those that wait first."""
        yield from self.waiting.values()
        for pods in self._pods.values():
            for key, pod in pods.items():
                if key not in self.waiting:
                    yield pod

    def lost(self) -> tuple[Problem, ...]:
        """What pods hold on nodes that do not exist."""
        return tuple(
            Problem(where=f"pod {key}", why=f"holds cards of node {name}, which does not exist")
            for name, pods in self._pods.items()
            if name not in self._nodes
            for key in pods
            if key in self._book.held
        )

    @contextmanager
    def picture(self, *, without: str = "") -> Iterator[Picture]:
        """The cluster as the engine sees it, without the grants of that pod; hold `lock`."""
        counted = self._book.held.get(without)
        if counted is not None:
            self._book.fleet.remove_pod(without)
        try:
            yield self._book.picture(self._nodes, len(self._nodes) - len(self._book.offers))
        finally:
            if counted is not None:
                self._book.hold(without, counted)

    @property
    def fleet(self) -> Fleet:
        """All grants that count; who adds one removes it before the lock is let go."""
        return self._book.fleet

    def _view(self, node: Node, now_s: float) -> ClusterView:
        pods: Mapping[str, Pod] = self._pods.get(node.name, {})
        return inspect((node,), pods.values(), self.basis.vendors, now_s)


def _kind(node: Node, key: str) -> str:
    """The word of a handshake, in any spelling."""
    return node.annotations.get(key, "").partition(" ")[0].partition("_")[0]
