"""Notices another device plugin that has taken our resource: kubelet calls the last one registered.

kubelet tells the one before nothing, and keeps its stream open. But the IDs that it hands out from
then on are the other plugin's, and its pod-resources list shows them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from hami_node.errors import KubeletError
from hami_node.logs import kv
from hami_node.model import is_own_id
from hami_node.node.kubelet.lifecycle import KUBELET_SOCKET, own_sockets
from hami_node.node.parts import ClusterParts, NodeParts
from hami_node.node.resource import NodeResource
from hami_node.ports import EventNote, HeldContainer
from hami_node.text import cut

log = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0
TAKEN_EVENT: Final = "ResourceTaken"
MAX_NAMED: Final = 5
MAX_ID_CHARS: Final = 80


@dataclass(frozen=True, slots=True)
class _Holder:
    """A container with an ID that is none of ours."""

    container: str
    device_id: str


@dataclass(slots=True)
class _Seen:
    """All that a resource has offered so far."""

    uuids: set[str] = field(default_factory=set)
    ids: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _State:
    """What is known since our last registration.

    Attributes:
        registration: its number.
        before: holders that were there then: from before we took the resource.
        taken: why the resource is another plugin's; "" while it is ours.
        sockets: those of other plugins when it was found out.
    """

    registration: int
    before: frozenset[_Holder]
    taken: str = ""
    sockets: frozenset[str] = frozenset()


class Rivals:
    """Checks kubelet's list now and then. A step of the loop."""

    def __init__(
        self,
        parts: NodeParts,
        cluster: ClusterParts,
        on_listed: Callable[[Sequence[HeldContainer]], None],
    ) -> None:
        """Watch the resources that this daemon serves.

        `on_listed` gets each list, for those who need not read it again.
        """
        self._cluster, self._on_listed = cluster, on_listed
        self._resources, self._dir = parts.resources, parts.settings().plugin_dir
        self._states: dict[str, _State] = {}
        self.taken: dict[str, bool] = {}
        """Resources that ever were another plugin's, and whether they are now."""
        self._seen: dict[str, _Seen] = {}

    def why_taken(self, resource: str) -> str:
        """Why kubelet calls another plugin for this resource; "" as far as is known."""
        state = self._states.get(resource)
        return state.taken if state is not None else ""

    def check(self) -> float:
        """One look at kubelet's list; seconds until the next. Unreadable, it changes nothing."""
        try:
            held = self._cluster.kubelet.list()
        except KubeletError as e:
            log.debug("rivals_unknown", extra=kv(error=str(e)))
            return INTERVAL_S
        self._on_listed(held)
        for resource in self._resources:
            if resource.lifecycle.registered.is_set() and resource.uuids():
                self._check(resource, held)
        return INTERVAL_S

    def _check(self, resource: NodeResource, held: Sequence[HeldContainer]) -> None:
        seen = self._seen.setdefault(resource.name, _Seen())
        seen.uuids.update(resource.uuids())
        seen.ids.update(resource.ids())
        holders = frozenset(_foreign(held, resource.name, seen))
        number, state = resource.lifecycle.registrations, self._states.get(resource.name)
        if state is None or state.registration != number:
            self._begin(resource, number, holders)
            return
        sockets = frozenset(self._other_sockets())
        new = holders - state.before
        if state.taken:
            if state.sockets - sockets:
                log.info("rival_gone", extra=kv(resource=resource.name))
                resource.lifecycle.restart()
        elif new:
            state.taken, state.sockets = self._sentence(resource.name, new, sockets), sockets
            log.error("resource_taken", extra=kv(resource=resource.name, why=state.taken))
            self.taken = {**self.taken, resource.name: True}
            self._tell(state.taken)

    def _begin(self, resource: NodeResource, number: int, holders: frozenset[_Holder]) -> None:
        """After our registration the resource is ours; pods from before may keep their IDs."""
        if self.why_taken(resource.name):
            log.info("resource_retaken", extra=kv(resource=resource.name))
            self.taken = {**self.taken, resource.name: False}
        self._states[resource.name] = _State(number, holders)
        if holders:
            named = _named(holder.container for holder in holders)
            log.warning("foreign_ids_held", extra=kv(resource=resource.name, containers=named))

    def _tell(self, why: str) -> None:
        node = self._cluster.view.node()
        if node is not None:
            self._cluster.notify(EventNote.about(node, TAKEN_EVENT, why))

    def _other_sockets(self) -> Iterator[str]:
        ours = {path.name for each in self._resources for path in own_sockets(self._dir, each.name)}
        for path in self._dir.glob("*.sock"):
            if path.name != KUBELET_SOCKET and path.name not in ours:
                yield path.name

    def _sentence(self, resource: str, new: Collection[_Holder], sockets: Collection[str]) -> str:
        first = min(new, key=lambda holder: holder.container)
        others = _named(sockets) if sockets else "none that can be told"
        return (
            f"another device plugin has taken {resource}: container {first.container} was given "
            f"{cut(first.device_id, MAX_ID_CHARS)}, which is none of this daemon's device IDs; "
            f"sockets of other plugins in {self._dir}: {others}; remove that plugin from this "
            "node, then this daemon registers again"
        )


def _foreign(held: Sequence[HeldContainer], resource: str, seen: _Seen) -> Iterator[_Holder]:
    for container in held:
        for device_id in container.device_ids.get(resource, ()):
            if not is_own_id(device_id, seen.uuids, seen.ids):
                name = f"{container.namespace}/{container.pod}/{container.container}"
                yield _Holder(name, device_id)


def _named(names: Collection[str] | Iterator[str]) -> str:
    every = sorted(names)
    more = len(every) - MAX_NAMED
    return ", ".join(every[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
