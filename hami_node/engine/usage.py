"""What is taken of every card of a node, kept by adding and removing one pod's grants at a time."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from types import MappingProxyType
from typing import Final

from hami_node.model import ContainerGrants, ContainerKind, Device, Grant, Pod, Uuid, Vendor


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """One card and what is taken of it now.

    Attributes:
        slots_used: containers on the card.
        memory_used_mib: memory that they hold.
        cores_used: cores that they hold, in percent, or the mask of the cores taken.
        parts: which parts of a divided card are taken, as its vendor records it; None for none.
        contradiction: why the grants can't be right for this card; "" when they can. Such a card
            gets nothing more.
    """

    device: Device
    slots_used: int = 0
    memory_used_mib: int = 0
    cores_used: int = 0
    parts: Hashable = None
    contradiction: str = ""

    @property
    def slots_free(self) -> int:
        """Containers that still fit; below 0 when overcommitted."""
        return self.device.slots - self.slots_used

    @property
    def memory_free_mib(self) -> int:
        """Free memory; below 0 when overcommitted."""
        return self.device.memory_mib - self.memory_used_mib

    @property
    def cores_free(self) -> int:
        """Free cores in percent, or their mask."""
        if counting_of(self.device.vendor).cores_are_mask:
            return self.device.cores & ~self.cores_used
        return self.device.cores - self.cores_used


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What an ask takes of one card, as it will count; `cores` as the vendor counts them."""

    device: Device
    memory_mib: int
    cores: int
    part: Hashable = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGrants:
    """Everything that one pod holds.

    Attributes:
        containers: grants by container, init containers first; a container that holds nothing (or
            nothing yet) has ().
        kinds: the containers' roles in the same order; those without a kind are app containers.
        are_inits_over: every init container has succeeded: only sidecars and apps still count.
    """

    containers: tuple[ContainerGrants, ...]
    kinds: tuple[ContainerKind, ...] = ()
    are_inits_over: bool = False

    def kind(self, index: int) -> ContainerKind:
        """The role of a container."""
        return self.kinds[index] if index < len(self.kinds) else ContainerKind.APP

    def holds(self, index: int) -> bool:
        """True while the container has grants that count."""
        has_ended = self.are_inits_over and self.kind(index) is ContainerKind.INIT
        return index < len(self.containers) and bool(self.containers[index]) and not has_ended


def united(seen: PodGrants, now: PodGrants) -> PodGrants:
    """Grants of which neither of the two holds more: the larger amount of each card, or both cards.

    Where the two are not about the same containers, all of them count as apps.
    """
    is_same = seen.containers == now.containers and seen.kinds == now.kinds
    if is_same or not any(seen.containers):
        return now
    if not any(now.containers):
        return seen
    width = max(len(seen.containers), len(now.containers))
    pairs = zip_longest(seen.containers, now.containers, fillvalue=())
    return PodGrants(
        containers=tuple(larger_of(first, second) for first, second in pairs),
        kinds=now.kinds if now.kinds == seen.kinds else (ContainerKind.APP,) * width,
    )


def larger_of(seen: ContainerGrants, now: ContainerGrants) -> ContainerGrants:
    """One container's grants of which neither of the two holds more."""
    left: dict[tuple[Uuid, Hashable], deque[Grant]] = {}
    for grant in now:
        left.setdefault((grant.uuid, grant.part), deque()).append(grant)
    merged = []
    for grant in seen:
        twins = left.get((grant.uuid, grant.part))
        merged.append(_larger(grant, twins.popleft()) if twins else grant)
    return (*merged, *(grant for grants in left.values() for grant in grants))


def _larger(first: Grant, second: Grant) -> Grant:
    is_mask = counting_of(first.vendor).cores_are_mask
    cores = first.cores | second.cores if is_mask else max(first.cores, second.cores)
    return replace(first, memory_mib=max(first.memory_mib, second.memory_mib), cores=cores)


def container_name(pod: Pod, grants: PodGrants, index: int) -> str:
    """The container that holds that entry of `grants`; `slot N` where they do not match the pod."""
    if len(grants.containers) == len(pod.containers):
        return pod.containers[index].name
    return f"slot {index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What one pod takes of one card at its peak.

    `grants` counts the grants behind it, `parts` are those that they name, in their order.
    """

    uuid: Uuid
    vendor: Vendor | str
    slots: int
    memory_mib: int
    cores: int
    grants: int = 1
    parts: tuple[Hashable, ...] = ()


class CardCounting(Vendor):
    """How a vendor's cards are counted. These are the rules of plain cards; vendors may override.

    Attributes:
        cores_are_mask: cores are numbered and granted individually, as a bit mask; else they are
            percent of a card.
    """

    cores_are_mask = False

    def takes(self, card: DeviceUsage, memory_mib: int, cores: int) -> Iterable[Taken]:
        """What an ask for so much may take of the card now, what it gets by preference first."""
        return (Taken(device=card.device, memory_mib=memory_mib, cores=cores),)

    def with_parts(self, card: DeviceUsage, charge: Charge) -> DeviceUsage:
        """Record the parts of a charge whose sums `card` already holds; a plain card has none."""
        if not charge.parts:
            return card
        return replace(
            card, contradiction=card.contradiction or "a part is granted of a card that has none"
        )

    def core_count(self, cores: int) -> int:
        """How many cores these are, where percent of a card count as cores."""
        return cores.bit_count() if self.cores_are_mask else cores

    def whole_card(self, card: Device | None) -> int:
        """How many of them make a whole card; 0 where that depends on an unknown card."""
        if not self.cores_are_mask:
            return 100
        return 0 if card is None else card.cores.bit_count()


PLAIN: Final = CardCounting("")
"""How the cards of unknown vendors are counted."""


def counting_of(vendor: Vendor | str) -> CardCounting:
    """The vendor's rules of counting."""
    return vendor if isinstance(vendor, CardCounting) else PLAIN


@dataclass(slots=True)
class _Tally:
    """Running sums for one card while a pod's grants are collapsed."""

    vendor: Vendor | str
    steady: list[int] = field(default_factory=lambda: [0, 0, 0])
    peak: list[int] = field(default_factory=lambda: [0, 0, 0])
    init: list[int] = field(default_factory=lambda: [0, 0, 0])
    mask: int = 0
    grants: int = 0
    parts: list[Hashable] = field(default_factory=list)
    init_parts: Counter[Hashable] | None = None

    def take(self, grant: Grant, is_init: bool) -> None:
        self.mask |= grant.cores
        if grant.part is None:
            self.grants += 1
        elif not is_init:
            self.grants += 1
            self.parts.append(grant.part)
        amounts = (1, grant.memory_mib, grant.cores)
        for i, amount in enumerate(amounts):
            if not is_init:
                self.steady[i] += amount
            elif grant.part is None:
                self.init[i] = amount
            else:
                self.init[i] += amount
            self.peak[i] = max(self.peak[i], self.steady[i] + self.init[i])

    def unite(self, parts: Iterable[Hashable]) -> None:
        """What an init container has is free again for the others of its pod."""
        self.init_parts = (self.init_parts or Counter()) | Counter(parts)
        self.init = [0, 0, 0]


def collapse(pod: PodGrants) -> tuple[Charge, ...]:
    """What a pod takes of each card at its peak, sorted by UUID.

    Apps and sidecars run together: their grants are summed. An init container runs alone beside
    the sidecars that started before it: the highest such moment counts, with all parts of a card
    that it has. Masks are united, and so are the parts that init containers have with those of the
    others.
    Source: HAMi 2.10 device/initContainer.go:36-114, with sidecars counted where they run.
    """
    if len(pod.containers) == 1 and len(pod.containers[0]) == 1 and pod.holds(0):
        return (charge_of(pod.containers[0][0]),)  # most pods
    tallies: dict[Uuid, _Tally] = {}
    for index, grants in enumerate(pod.containers):
        is_init = pod.kind(index) is ContainerKind.INIT
        if not pod.holds(index):
            continue
        for grant in grants:
            tally = tallies.get(grant.uuid)
            if tally is None:
                tally = tallies[grant.uuid] = _Tally(grant.vendor)
            tally.take(grant, is_init)
        for uuid in {grant.uuid for grant in grants} if is_init else ():
            named = (grant.part for grant in grants if grant.uuid == uuid)
            tallies[uuid].unite(part for part in named if part is not None)
    return tuple(_charge(uuid, tallies[uuid]) for uuid in sorted(tallies))


def charge_of(grant: Grant) -> Charge:
    """What a grant takes of its card alone, whatever the role of its container."""
    return Charge(
        uuid=grant.uuid,
        vendor=grant.vendor,
        slots=1,
        memory_mib=grant.memory_mib,
        cores=grant.cores,
        parts=() if grant.part is None else (grant.part,),
    )


def _charge(uuid: Uuid, tally: _Tally) -> Charge:
    slots, memory_mib, cores = tally.peak
    of_inits: tuple[Hashable, ...] = ()
    if tally.init_parts:
        of_inits = tuple((tally.init_parts - Counter(tally.parts)).elements())
    return Charge(
        uuid=uuid,
        vendor=tally.vendor,
        slots=slots,
        memory_mib=memory_mib,
        cores=tally.mask if counting_of(tally.vendor).cores_are_mask else cores,
        grants=tally.grants + len(of_inits),
        parts=(*of_inits, *tally.parts),
    )


def charged(card: DeviceUsage, charge: Charge) -> DeviceUsage:
    """The card after another pod's charge."""
    rules = counting_of(card.device.vendor)
    is_mask = rules.cores_are_mask
    used = DeviceUsage(  # not `replace`, which takes twice the time
        device=card.device,
        slots_used=card.slots_used + charge.slots,
        memory_used_mib=card.memory_used_mib + charge.memory_mib,
        cores_used=card.cores_used | charge.cores if is_mask else card.cores_used + charge.cores,
        parts=card.parts,
        contradiction=card.contradiction,
    )
    return rules.with_parts(used, charge)


def _taken_back(card: DeviceUsage, charge: Charge) -> DeviceUsage | None:
    """The card before that charge; None where the others have to be summed up for it.

    Plain sums are subtracted: a node may have a hundred pods. Masks can't be, nor what is recorded
    of parts, nor a contradiction.
    """
    is_mask = counting_of(card.device.vendor).cores_are_mask
    if is_mask or charge.parts or card.parts is not None or card.contradiction:
        return None
    return DeviceUsage(
        device=card.device,
        slots_used=card.slots_used - charge.slots,
        memory_used_mib=card.memory_used_mib - charge.memory_mib,
        cores_used=card.cores_used - charge.cores,
    )


class NodeUsage:
    """The cards of one node with all grants on them. Not thread-safe: its owner holds a lock.

    A grant on a card that the node does not have is kept and shown in `unknown`; it counts as soon
    as the card appears.
    """

    def __init__(self, devices: Iterable[Device] = ()) -> None:
        """Start with unused cards; their order is the order of registration."""
        self._pods: dict[str, tuple[Charge, ...]] = {}
        self._cards: dict[Uuid, DeviceUsage] = {}
        self._touched: tuple[Uuid, ...] | None = None
        self.replace_devices(devices)

    @property
    def cards(self) -> Mapping[Uuid, DeviceUsage]:
        """Every card by UUID in order of registration; a frozen snapshot."""
        return MappingProxyType(self._cards)

    def take_touched(self) -> tuple[Uuid, ...] | None:
        """The cards that may have changed since this was asked last; None for all of them."""
        touched, self._touched = self._touched, ()
        return touched

    @property
    def pods(self) -> tuple[str, ...]:
        """Keys of the pods that hold something, in the order in which they were added."""
        return tuple(self._pods)

    @property
    def unknown(self) -> tuple[tuple[str, Charge], ...]:
        """(pod key, charge) for grants on cards that the node does not have, sorted."""
        missing = [
            (key, charge)
            for key, charges in self._pods.items()
            for charge in charges
            if charge.uuid not in self._cards
        ]
        return tuple(sorted(missing, key=lambda entry: (entry[0], entry[1].uuid)))

    def charges(self, key: str) -> tuple[Charge, ...]:
        """What one pod takes; () for a pod that holds nothing."""
        return self._pods.get(key, ())

    def without(self, *keys: str) -> Mapping[Uuid, DeviceUsage]:
        """The cards with what all pods but these hold."""
        touched = {charge.uuid for key in keys for charge in self.charges(key)}
        devices = [card.device for uuid, card in self._cards.items() if uuid in touched]
        return {**self._cards, **self._fresh(devices, leave_out=keys)}

    def add(self, key: str, grants: PodGrants) -> None:
        """Count a pod's grants; grants counted before under the same key are replaced."""
        self.remove(key)
        charges = collapse(grants)
        if not charges:
            return
        self._pods[key] = charges
        self._touch(charges)
        cards = dict(self._cards)
        for charge in charges:
            card = cards.get(charge.uuid)
            if card is not None:
                cards[charge.uuid] = charged(card, charge)
        self._cards = cards

    def remove(self, key: str) -> None:
        """Undo `add` exactly; does nothing for an unknown pod."""
        charges = self._pods.pop(key, ())
        if not charges:
            return
        self._touch(charges)
        cards, anew = dict(self._cards), []
        for charge in charges:
            card = cards.get(charge.uuid)
            if card is None:
                continue
            rest = _taken_back(card, charge)
            if rest is None:
                anew.append(card.device)
            else:
                cards[charge.uuid] = rest
        self._cards = cards | self._fresh(anew) if anew else cards

    def replace_devices(self, devices: Iterable[Device]) -> None:
        """Take a new inventory; the grants stay with their cards."""
        self._touched = None
        self._cards = self._fresh(devices)

    def _touch(self, charges: Iterable[Charge]) -> None:
        if self._touched is not None:
            self._touched = (*self._touched, *(charge.uuid for charge in charges))
            if len(self._touched) > len(self._cards):
                self._touched = None

    def _fresh(
        self, devices: Iterable[Device], leave_out: Collection[str] = ()
    ) -> dict[Uuid, DeviceUsage]:
        # Summed from scratch, over all pods of the node: masks can't be subtracted, and an
        # index of charges by card would cost a large fleet more memory than its pods' names.
        cards = {device.uuid: DeviceUsage(device=device) for device in devices}
        for key, charges in self._pods.items() if cards else ():
            if key in leave_out:
                continue
            for charge in charges:
                card = cards.get(charge.uuid)
                if card is not None:
                    cards[charge.uuid] = charged(card, charge)
        return cards
