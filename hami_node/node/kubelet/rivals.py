"""Notices another device plugin that has taken our resource: kubelet calls the last one registered.

kubelet tells the one before nothing, and keeps its stream open. But the IDs that it hands out from
then on are the other plugin's, and its pod-resources list shows them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hami_node.errors import KubeletError
from hami_node.logs import kv
from hami_node.model import uuid_of
from hami_node.node.kubelet.lifecycle import KUBELET_SOCKET, Lifecycle, own_sockets
from hami_node.ports import Clock, HeldContainer
from hami_node.text import cut

log = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0
TAKEN_EVENT: Final = "ResourceTaken"
MAX_SLOT_DIGITS: Final = 6
MAX_NAMED: Final = 5
MAX_ID_CHARS: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Contested:
    """A resource that is watched.

    Attributes:
        name: the resource.
        lifecycle: our registration of it.
        uuids: the cards that are offered now.
        ids: device IDs that are offered now and not made from a card's UUID.
    """

    name: str
    lifecycle: Lifecycle
    uuids: Callable[[], Collection[str]]
    ids: Callable[[], Collection[str]] = tuple


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
    """Checks kubelet's list now and then. `run` is the thread's body."""

    def __init__(
        self,
        resources: Sequence[Contested],
        *,
        plugin_dir: Path,
        held: Callable[[], tuple[HeldContainer, ...]],
        on_taken: Callable[[str, str], None],
        clock: Clock,
        on_listed: Callable[[Sequence[HeldContainer]], None] = lambda _: None,
    ) -> None:
        """Wire the sources.

        `on_taken` is called with a resource's name and why it is another plugin's; "" once it is
        ours. `on_listed` gets each list, for those who need not read it again.
        """
        self._on_listed, self._clock = on_listed, clock
        self._resources, self._dir = tuple(resources), plugin_dir
        self._held, self._on_taken = held, on_taken
        self._states: dict[str, _State] = {}
        self._seen: dict[str, _Seen] = {}

    def why_taken(self, resource: str) -> str:
        """Why kubelet calls another plugin for this resource; "" as far as is known."""
        state = self._states.get(resource)
        return state.taken if state is not None else ""

    def run(self, stop: threading.Event) -> None:
        """Check until stopped."""
        while not stop.is_set():
            self.check()
            self._clock.wait(stop, INTERVAL_S)

    def check(self) -> None:
        """One look at kubelet's list; a list that can't be read changes nothing."""
        try:
            held = self._held()
        except KubeletError as e:
            log.debug("rivals_unknown", extra=kv(error=str(e)))
            return
        self._on_listed(held)
        for resource in self._resources:
            if resource.lifecycle.registered.is_set() and resource.uuids():
                self._check(resource, held)

    def _check(self, resource: Contested, held: Sequence[HeldContainer]) -> None:
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
            self._on_taken(resource.name, state.taken)

    def _begin(self, resource: Contested, number: int, holders: frozenset[_Holder]) -> None:
        """After our registration the resource is ours; pods from before may keep their IDs."""
        if self.why_taken(resource.name):
            log.info("resource_retaken", extra=kv(resource=resource.name))
            self._on_taken(resource.name, "")
        self._states[resource.name] = _State(number, holders)
        if holders:
            named = _named(holder.container for holder in holders)
            log.warning("foreign_ids_held", extra=kv(resource=resource.name, containers=named))

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


def is_own_id(device_id: str, uuids: Collection[str], ids: Collection[str] = ()) -> bool:
    """Whether this is `<uuid>-<i>` of one of our cards, or of a card like ours that was lost.

    `ids` are those of our cards that have another form.
    """
    if device_id in ids:
        return True
    uuid, slot = uuid_of(device_id), device_id.rpartition("-")[2]
    if not (slot.isdecimal() and slot.isascii() and len(slot) <= MAX_SLOT_DIGITS):
        return False
    return uuid in uuids or any(uuid.count("-") == ours.count("-") for ours in uuids)


def _named(names: Collection[str] | Iterator[str]) -> str:
    every = sorted(names)
    more = len(every) - MAX_NAMED
    return ", ".join(every[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
