"""What is taken of every card of a node, kept by adding and removing one pod's grants at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from hami_node.model import (
    ContainerGrants,
    ContainerKind,
    Device,
    Grant,
    MigPlacement,
    MigReservation,
    Mode,
    Uuid,
    Vendor,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUsage:
    """One card and what is taken of it now.

    Attributes:
        slots_used: containers on the card.
        memory_used_mib: memory that they hold.
        cores_used: cores that they hold, in percent; for Neuron the mask of the cores taken.
        mig_template: position of the geometry in use (2.8); None while none is chosen.
        mig_slots: positions in the expanded geometry that are in use (2.8).
        mig_placements: memory slices in use (2.10).
        contradiction: why the grants can't be right for this card; "" when they can. Such a card
            gets nothing more.
    """

    device: Device
    slots_used: int = 0
    memory_used_mib: int = 0
    cores_used: int = 0
    mig_template: int | None = None
    mig_slots: frozenset[int] = frozenset()
    mig_placements: tuple[MigPlacement, ...] = ()
    contradiction: str = ""

    @property
    def slots_free(self) -> int:
        """Containers that may still come; below 0 when over-committed."""
        return self.device.slots - self.slots_used

    @property
    def memory_free_mib(self) -> int:
        """Memory nobody holds; below 0 when over-committed."""
        return self.device.memory_mib - self.memory_used_mib

    @property
    def cores_free(self) -> int:
        """Cores nobody holds in percent, or their mask for Neuron."""
        if self.device.vendor is Vendor.AWS_NEURON:
            return self.device.cores & ~self.cores_used
        return self.device.cores - self.cores_used


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGrants:
    """Everything that one pod holds.

    Attributes:
        containers: grants by container, init containers first; a container that holds nothing (or
            nothing yet) has ().
        kinds: the containers' roles in the same order; missing ones are app containers.
        mig: the MIG instances (2.10) reserved for the grants.
        are_inits_over: every init container has ended well: only sidecars and apps still hold.
    """

    containers: tuple[ContainerGrants, ...]
    kinds: tuple[ContainerKind, ...] = ()
    mig: tuple[MigReservation, ...] = ()
    are_inits_over: bool = False

    def kind(self, index: int) -> ContainerKind:
        """The role of a container."""
        return self.kinds[index] if index < len(self.kinds) else ContainerKind.APP

    def holds(self, index: int) -> bool:
        """True while the container has grants that count."""
        has_ended = self.are_inits_over and self.kind(index) is ContainerKind.INIT
        return index < len(self.containers) and bool(self.containers[index]) and not has_ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What one pod takes of one card at its peak.

    `grants` counts the grants behind it, `mig_slots` holds (template, slot) of the 2.8 form.
    """

    uuid: Uuid
    vendor: Vendor | str
    slots: int
    memory_mib: int
    cores: int
    grants: int = 1
    mig_slots: frozenset[tuple[int, int]] = frozenset()
    mig_placements: tuple[MigPlacement, ...] = ()


MAX_DIGITS: Final = 9
"""Longest number in a MIG suffix; longer ones are no suffix."""


def split_mig_uuid(uuid: str) -> tuple[Uuid, tuple[int, int] | None]:
    """Split `UUID[template-slot]` into the card and its instance; None without such an end.

    Source: HAMi 2.8, nvidia/device.go AddResourceUsage.
    """
    card, bracket, end = uuid.partition("[")
    template, dash, slot = end.removesuffix("]").partition("-")
    if not (bracket and dash and end.endswith("]") and _is_number(template) and _is_number(slot)):
        return Uuid(uuid), None
    return Uuid(card), (int(template), int(slot))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


@dataclass(slots=True)
class _Tally:
    """Running sums for one card while a pod's grants are collapsed."""

    vendor: Vendor | str
    steady: list[int] = field(default_factory=lambda: [0, 0, 0])
    peak: list[int] = field(default_factory=lambda: [0, 0, 0])
    mask: int = 0
    grants: int = 0
    mig_slots: set[tuple[int, int]] = field(default_factory=set)

    def take(self, grant: Grant, is_init: bool) -> None:
        self.grants += 1
        self.mask |= grant.cores
        amounts = (1, grant.memory_mib, grant.cores)
        for place, amount in enumerate(amounts):
            if not is_init:
                self.steady[place] += amount
            reached = self.steady[place] + (amount if is_init else 0)
            self.peak[place] = max(self.peak[place], reached)


def collapse(pod: PodGrants) -> tuple[Charge, ...]:
    """What a pod takes of each card at its peak, sorted by UUID.

    Apps and sidecars run together: their grants are summed. An init container runs alone beside
    the sidecars that started before it: the highest such moment counts. Masks are united.
    Source: HAMi 2.10 device/initContainer.go:36-114, with sidecars counted where they run.
    """
    tallies: dict[Uuid, _Tally] = {}
    for index, grants in enumerate(pod.containers):
        is_init = pod.kind(index) is ContainerKind.INIT
        if not pod.holds(index):
            continue
        for grant in grants:
            card, instance = split_mig_uuid(grant.uuid)
            tally = tallies.get(card)
            if tally is None:
                tally = tallies[card] = _Tally(grant.vendor)
            tally.take(grant, is_init)
            if instance is not None:
                tally.mig_slots.add(instance)
    return tuple(_charge(uuid, tallies[uuid], pod) for uuid in sorted(tallies))


def _charge(uuid: Uuid, tally: _Tally, pod: PodGrants) -> Charge:
    slots, memory_mib, cores = tally.peak
    placements = (
        reservation.placement
        for reservation in pod.mig
        if reservation.uuid == uuid and pod.holds(reservation.container_index)
    )
    return Charge(
        uuid=uuid,
        vendor=tally.vendor,
        slots=slots,
        memory_mib=memory_mib,
        cores=tally.mask if tally.vendor is Vendor.AWS_NEURON else cores,
        grants=tally.grants,
        mig_slots=frozenset(tally.mig_slots),
        mig_placements=tuple(placements),
    )


def charged(card: DeviceUsage, charge: Charge) -> DeviceUsage:
    """The card after one more pod's charge."""
    if card.device.vendor is Vendor.AWS_NEURON:
        cores = card.cores_used | charge.cores
    else:
        cores = card.cores_used + charge.cores
    used = replace(
        card,
        slots_used=card.slots_used + charge.slots,
        memory_used_mib=card.memory_used_mib + charge.memory_mib,
        cores_used=cores,
    )
    if used.device.mode != Mode.MIG and not charge.mig_slots and not charge.mig_placements:
        return used
    return _with_instances(used, charge)


def _with_instances(card: DeviceUsage, charge: Charge) -> DeviceUsage:
    templates = {template for template, _ in charge.mig_slots}
    if card.mig_template is not None:
        templates.add(card.mig_template)
    slots = frozenset(slot for _, slot in charge.mig_slots)
    return replace(
        card,
        mig_template=min(templates, default=None),
        mig_slots=card.mig_slots | slots,
        mig_placements=card.mig_placements + charge.mig_placements,
        contradiction=card.contradiction or _contradiction(card, charge, templates, slots),
    )


def _contradiction(
    card: DeviceUsage, charge: Charge, templates: set[int], slots: frozenset[int]
) -> str:
    """Why the charge can't stand on the card; "" when it can. Source: HAMi 2.10 A43."""
    reserved = len(charge.mig_slots) + len(charge.mig_placements)
    if card.device.mode != Mode.MIG:
        return "a MIG instance is granted on a card that is not in MIG mode"
    if reserved < charge.grants:
        return "a grant on a card in MIG mode names no instance"
    if len(templates) > 1:
        return "instances of two geometries are granted"
    if slots & card.mig_slots or any_overlap(card.mig_placements, charge.mig_placements):
        return "one MIG instance is granted twice"
    return ""


def any_overlap(held: tuple[MigPlacement, ...], new: tuple[MigPlacement, ...]) -> bool:
    """True when a new placement uses a memory slice of one that is held."""
    return any(
        one.start < other.start + other.size and other.start < one.start + one.size
        for one in held
        for other in new
    )


class NodeUsage:
    """The cards of one node with all grants on them. Not thread-safe: its owner holds a lock.

    A grant on a card that the node does not have is kept and shown in `unknown`; it counts as soon
    as the card appears.
    """

    def __init__(self, devices: Iterable[Device] = ()) -> None:
        """Start with unused cards; their order is the order of registration."""
        self._charges: dict[Uuid, dict[str, Charge]] = {}
        self._pods: dict[str, tuple[Charge, ...]] = {}
        self._cards: dict[Uuid, DeviceUsage] = {}
        self.replace_devices(devices)

    @property
    def cards(self) -> Mapping[Uuid, DeviceUsage]:
        """Every card by UUID in order of registration; a frozen picture of this moment."""
        return MappingProxyType(self._cards)

    @property
    def pods(self) -> tuple[str, ...]:
        """Keys of the pods that hold something, in the order in which they came."""
        return tuple(self._pods)

    @property
    def unknown(self) -> tuple[tuple[str, Charge], ...]:
        """(pod key, charge) for grants on cards that the node does not have, sorted."""
        missing = [
            (key, charge)
            for uuid, charges in self._charges.items()
            if uuid not in self._cards
            for key, charge in charges.items()
        ]
        return tuple(sorted(missing, key=lambda entry: (entry[0], entry[1].uuid)))

    def charges(self, key: str) -> tuple[Charge, ...]:
        """What one pod takes; () for a pod that holds nothing."""
        return self._pods.get(key, ())

    def add(self, key: str, grants: PodGrants) -> None:
        """Count a pod's grants; grants counted before under the same key are replaced."""
        self.remove(key)
        charges = collapse(grants)
        if not charges:
            return
        self._pods[key] = charges
        cards = dict(self._cards)
        for charge in charges:
            self._charges.setdefault(charge.uuid, {})[key] = charge
            card = cards.get(charge.uuid)
            if card is not None:
                cards[charge.uuid] = charged(card, charge)
        self._cards = cards

    def remove(self, key: str) -> None:
        """Undo `add` exactly; harmless for a pod that is not there."""
        charges = self._pods.pop(key, ())
        if not charges:
            return
        cards = dict(self._cards)
        for charge in charges:
            held = self._charges[charge.uuid]
            del held[key]
            if not held:
                del self._charges[charge.uuid]
            card = cards.get(charge.uuid)
            if card is not None:
                cards[charge.uuid] = self._fresh(card.device)
        self._cards = cards

    def replace_devices(self, devices: Iterable[Device]) -> None:
        """Take a new inventory; the grants stay with their cards."""
        self._cards = {device.uuid: self._fresh(device) for device in devices}

    def _fresh(self, device: Device) -> DeviceUsage:
        # Folded anew from the few charges on the card: masks can't be subtracted.
        card = DeviceUsage(device=device)
        for charge in self._charges.get(device.uuid, {}).values():
            card = charged(card, charge)
        return card
