"""Cards that pods hold from another device plugin: closed until these pods have ended.

Such pods carry no reservation, so their cards would look free. kubelet's list shows them, whatever
the resource's name: a device ID that this daemon did not give and that names one of its cards. An
ID of our own resource that names no card closes all of them, for any may be meant. As everywhere,
kubelet's list alone ends nobody: it is empty while kubelet starts.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from hami_node.logs import kv
from hami_node.model import Device, Pod, Uuid, is_own_id, own_ids
from hami_node.node.cards.inventory import Inventory
from hami_node.ports import HeldContainer
from hami_node.record.ledger import Entry, Ledger, Source

log = logging.getLogger(__name__)

MAX_NAMED: Final = 3
"""Pods that are named for one card."""

NamedCards = Callable[[str, Sequence[Device]], tuple[Uuid, ...] | None]
"""Which of these cards a device ID of another plugin holds; None where it is no ID of a card."""
_Name = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedCards:
    """The cards of a resource of ours.

    Attributes:
        resource: its name.
        inventory: where they are closed.
        named: as the vendor reads other plugins' device IDs.
    """

    resource: str
    inventory: Inventory
    named: NamedCards


@dataclass(slots=True)
class _Holder:
    """A pod with cards from another plugin.

    Attributes:
        uid: as the API server had it; "" before the watch has shown the pod.
        cards: the resource by which it holds each card.
    """

    uid: str
    cards: dict[Uuid, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Own:
    """What tells our own device IDs."""

    uuids: frozenset[Uuid]
    ids: frozenset[str]

    def has(self, device_id: str) -> bool:
        return is_own_id(device_id, self.uuids, self.ids)


class ForeignHolders:
    """Looks at every list of kubelet's that the daemon reads anyway. Thread-safe."""

    def __init__(
        self,
        watched: Sequence[WatchedCards],
        *,
        ledger: Ledger,
        pods: Callable[[], Iterable[Pod]],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Wire the sources. `pods` are the newest known; `on_change`: cards closed or opened."""
        self._watched, self._ledger, self._pods = tuple(watched), ledger, pods
        self._names = frozenset(cards.resource for cards in self._watched)
        self._on_change = on_change
        self._lock = threading.Lock()
        self._holders: dict[_Name, _Holder] = {}
        self._reasons: Mapping[Uuid, str] = MappingProxyType({})

    @property
    def reasons(self) -> Mapping[Uuid, str]:
        """Why each closed card is closed."""
        return self._reasons

    @property
    def pods_holding(self) -> int:
        """How many pods hold cards from another plugin."""
        return len(self._holders)

    def look(self, listed: Sequence[HeldContainer]) -> None:
        """Take kubelet's list, once the ledger has what it shows of our own containers."""
        with self._lock:
            found = self._found(listed)
            if not found and not self._holders:
                return
            self._holders = self._merged(found)
            self._reasons = MappingProxyType(_reasons(self._holders))
            changes = [cards.inventory.close_cards(self._reasons) for cards in self._watched]
        closed = [uuid for change in changes for uuid in change.failed]
        for uuid in closed:
            log.warning("card_closed", extra=kv(uuid=uuid, reason=self._reasons.get(uuid)))
        opened = [uuid for change in changes for uuid in change.recovered]
        for uuid in opened:
            log.info("card_opened", extra=kv(uuid=uuid))
        if any(changes):
            self._on_change()

    def _found(self, listed: Sequence[HeldContainer]) -> dict[_Name, dict[Uuid, str]]:
        found: dict[_Name, dict[Uuid, str]] = {}
        given: frozenset[tuple[str, str]] | None = None
        over: frozenset[_Name] = frozenset()
        for cards in self._watched:
            devices = cards.inventory.cards
            own = _Own(frozenset(device.uuid for device in devices), frozenset(own_ids(devices)))
            for container, resource, device_id in _strange_ids(listed, self._names, own):
                held = cards.named(device_id, devices)
                if held is None:
                    held = tuple(own.uuids) if resource == cards.resource else ()
                if not held:
                    continue
                if given is None:
                    given = _given(self._ledger.entries(), own)
                    over = frozenset(_names(pod for pod in self._pods() if pod.is_over))
                name = container.namespace, container.pod
                # a share of an ended pod was on record, and was freed with it
                is_freed = name in over and own.has(device_id)
                if (resource, device_id) not in given and not is_freed:
                    found.setdefault(name, {}).update(dict.fromkeys(held, resource))
        return found

    def _merged(self, found: Mapping[_Name, Mapping[Uuid, str]]) -> dict[_Name, _Holder]:
        """Those that the list shows, and those that it has left out although they live."""
        pods = {(pod.namespace, pod.name): pod for pod in self._pods()}
        merged: dict[_Name, _Holder] = {}
        for name, cards in found.items():
            pod = pods.get(name)
            merged[name] = _Holder(pod.uid if pod is not None else "", dict(cards))
        for name, holder in self._holders.items():
            pod = pods.get(name)
            lives = pod is not None and not pod.is_over and holder.uid in ("", pod.uid)
            if name not in merged and lives:
                merged[name] = holder
        return merged


def _names(pods: Iterable[Pod]) -> Iterator[_Name]:
    return ((pod.namespace, pod.name) for pod in pods)


def _strange_ids(
    listed: Sequence[HeldContainer], names: frozenset[str], own: _Own
) -> Iterator[tuple[HeldContainer, str, str]]:
    """The IDs that are not certainly ours, each with its container and resource."""
    for container in listed:
        for resource, device_ids in container.device_ids.items():
            for device_id in device_ids:
                if not (resource in names and own.has(device_id)):
                    yield container, resource, device_id


def _given(entries: Iterable[Entry], own: _Own) -> frozenset[tuple[str, str]]:
    """Resources and IDs on record.

    Of what was not served here only IDs in the form that shares a card count: any other was given
    by a plugin that gives whole cards, whatever the pod's annotations say.
    """
    return frozenset(
        (entry.resource, device_id)
        for entry in entries
        for device_id in entry.device_ids
        if entry.source is Source.SERVED or own.has(device_id)
    )


def _reasons(holders: Mapping[_Name, _Holder]) -> dict[Uuid, str]:
    by_card: dict[Uuid, list[str]] = {}
    for (namespace, pod), holder in sorted(holders.items()):
        for uuid, resource in holder.cards.items():
            by_card.setdefault(uuid, []).append(f"{namespace}/{pod} ({resource})")
    return {uuid: _sentence(pods) for uuid, pods in by_card.items()}


def _sentence(pods: Sequence[str]) -> str:
    named, more = ", ".join(pods[:MAX_NAMED]), len(pods) - MAX_NAMED
    others = f" and {more} more" if more > 0 else ""
    return f"held from another device plugin by {named}{others}, until that has ended"
