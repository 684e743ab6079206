"""What is left of cards that containers hold from before the node's settings were changed.

Fixed shares of another size, or slices that a scheduler placed: kubelet counts neither.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from hami_node.engine.card_rules import rules_of
from hami_node.engine.check import is_free
from hami_node.engine.usage import DeviceUsage, NodeUsage
from hami_node.errors import WireError
from hami_node.model import ContainerKind, Device, Uuid, own_ids
from hami_node.node.holdings.live_use import LiveUse, held_by
from hami_node.node.vendor_cards import VendorCards
from hami_node.record.ledger import Entry, Ledger
from hami_node.vendors.protocol import VendorProtocol


class Room:
    """Applies it to what this node offers."""

    def __init__(
        self,
        vendor_cards: Sequence[VendorCards],
        vendors: Sequence[VendorProtocol],
        ledger: Ledger,
        live: LiveUse,
        on_lost: Callable[[Sequence[Entry], dict[str, frozenset[str]]], None] = lambda *_: None,
    ) -> None:
        """`vendors` are the protocols of `vendor_cards`, in the same order.

        `on_lost` is called with what is on record, and with device IDs in it that are offered no
        more, by resource.
        """
        self._on_lost, self._ledger, self._live = on_lost, ledger, live
        self._vendor_cards, self._vendors = tuple(vendor_cards), tuple(vendors)
        self._fixed = tuple(
            (resource, vendor)
            for owner, vendor in zip(vendor_cards, vendors, strict=True)
            for resource in owner.resources
            if vendor.is_fixed(resource.name)
        )

    def close_full(self) -> None:
        """Let kubelet hand out no fixed share that its card has no room for."""
        if not self._fixed:
            return
        entries, usage = self._ledger.entries(), self._usage()
        lost: dict[str, frozenset[str]] = {}
        for resource, vendor in self._fixed:
            own = [entry for entry in entries if entry.resource == resource.name]
            held = frozenset(name for entry in own for name in entry.device_ids)
            inventory = resource.inventory
            if resource.served.has_own_ids:
                inventory.close_ids(taken_ids(inventory.cards, usage, held, vendor, resource.name))
                lost[resource.name] = held.difference(own_ids(inventory.cards))
                inventory.lose_ids(lost[resource.name])
            else:
                inventory.close_ids(closed_ids(inventory.cards, usage, held))
        self._on_lost(entries, lost)

    def used(self) -> Mapping[Uuid, DeviceUsage]:
        """What is taken of cards in fixed shares; their slots are shares that nobody gets now."""
        usage = self._usage()
        found: dict[Uuid, DeviceUsage] = {}
        for resource, _ in self._fixed:
            for card in resource.inventory.cards:
                use = usage.get(card.uuid)
                if use is not None and not resource.served.has_own_ids:
                    use = replace(use, slots_used=card.slots - _more_shares(card, use))
                if use is not None:
                    found[card.uuid] = use
        return found

    def _usage(self) -> Mapping[Uuid, DeviceUsage]:
        cards = tuple(card for owner in self._vendor_cards for card in owner.cards())
        return self._live.cards(cards)

    def left(self, owner: VendorCards) -> tuple[Device, ...]:
        """A vendor's cards for schedulers: without what is held of them as fixed shares.

        Of a divided card the parts that exist say what is left.
        """
        cards = owner.cards()
        fixed = [resource for resource, _ in self._fixed]
        if all(resource in fixed for resource in owner.resources):
            return cards
        whole = tuple(card for card in cards if not rules_of(card.vendor).is_divided(card))
        return without(cards, fixed_use(self._ledger.entries(), self._vendors, whole))


def closed_ids(
    cards: Iterable[Device],
    usage: Mapping[Uuid, DeviceUsage],
    held: Collection[str],
) -> frozenset[str]:
    """Device IDs of fixed shares that nobody holds, and that the cards have no room for.

    Args:
        cards: as the resource offers them.
        usage: what all containers of this node hold of them.
        held: the IDs of this resource that containers hold.
    """
    closed: set[str] = set()
    for card in cards:
        free = [name for name in card.device_ids if name not in held]
        room = _more_shares(card, usage.get(card.uuid))
        closed.update(free[room:])
    return frozenset(closed)


def taken_ids(
    cards: Sequence[Device],
    usage: Mapping[Uuid, DeviceUsage],
    held: Collection[str],
    vendor: VendorProtocol,
    resource: str,
) -> frozenset[str]:
    """Device IDs of parts of cards that nobody holds by this name, and somebody by another.

    The arguments are as for `closed_ids`; `vendor` tells which parts the resource's IDs are.
    """
    by_uuid = {card.uuid: card for card in cards}
    taken: set[str] = set()
    for name, uuid in own_ids(cards).items():
        if name in held or uuid not in usage:
            continue
        try:
            grants = vendor.fixed_grants(resource, (name,), by_uuid)
        except WireError:
            taken.add(name)  # it has just vanished
            continue
        if not all(is_free(usage[uuid], grant) for grant in grants):
            taken.add(name)
    return frozenset(taken)


def _more_shares(card: Device, used: DeviceUsage | None) -> int:
    """How many more shares the card has room for."""
    if used is None:
        return card.slots
    parts = ((used.memory_free_mib, card.memory_mib), (used.cores_free, card.cores))
    room = min(max(free, 0) * card.slots // whole for free, whole in parts if whole)
    return min(room, card.slots)


def fixed_use(
    entries: Iterable[Entry], vendors: Iterable[VendorProtocol], cards: Iterable[Device]
) -> Mapping[Uuid, DeviceUsage]:
    """What containers hold of these cards as fixed shares; other cards are left out."""
    by_word = {vendor.cards.word: vendor for vendor in vendors}
    pods: dict[str, list[Entry]] = {}
    for entry in entries:
        vendor = by_word.get(entry.vendor)
        if vendor is not None and vendor.is_fixed(entry.resource) and not entry.problem:
            pods.setdefault(entry.pod_uid, []).append(entry)
    usage = NodeUsage(cards)
    for uid, held in pods.items():
        held.sort(key=lambda entry: entry.kind is ContainerKind.APP)  # as in a pod
        usage.add(uid, held_by(held))
    return MappingProxyType({uuid: use for uuid, use in usage.cards.items() if use.slots_used})


def without(cards: Iterable[Device], taken: Mapping[Uuid, DeviceUsage]) -> tuple[Device, ...]:
    """The cards as a scheduler may use them, which knows nothing of what is taken."""
    return tuple(
        replace(
            card,
            memory_mib=max(taken[card.uuid].memory_free_mib, 0),
            cores=max(taken[card.uuid].cores_free, 0),
        )
        if card.uuid in taken
        else card
        for card in cards
    )
