"""Which MIG instance of a card serves an ask: geometries (2.8) and profiles with placements (2.10).

A card that registers geometries follows 2.8, one that registers profiles follows 2.10. Instances in
use are never moved: a geometry is chosen only while nothing runs in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from hami_node.engine.usage import Charge, DeviceUsage, any_overlap, charged
from hami_node.model import Device, Grant, MigPlacement, MigProfile, MigTemplate, Uuid

FROM_THE_TOP: Final = ("1g.", "3g.")
"""Profiles placed at the highest free start; the others take the lowest. Source: HAMi 2.10
nvidia/mig_topology.go:26-80."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigChoice:
    """One instance of a card for one grant.

    `uuid` is what the grant names: the card (2.10) or `UUID[template-slot]` (2.8). `placement` is
    None in the 2.8 form, `template` and `slot` are None in the 2.10 form.
    """

    card: Uuid
    uuid: Uuid
    name: str
    memory_mib: int
    cores: int
    placement: MigPlacement | None = None
    template: int | None = None
    slot: int | None = None

    def charge(self, grant: Grant) -> Charge:
        """What the card is charged for this instance."""
        instance = (
            frozenset({(self.template, self.slot)})
            if self.template is not None and self.slot is not None
            else frozenset()
        )
        return Charge(
            uuid=self.card,
            vendor=grant.vendor,
            slots=1,
            memory_mib=self.memory_mib,
            cores=self.cores,
            mig_slots=instance,
            mig_placements=() if self.placement is None else (self.placement,),
        )


def choose(card: DeviceUsage, memory_mib: int) -> MigChoice | None:
    """The instance that an ask of this size gets, or None when the card has none left."""
    if card.device.mig_templates:
        return _choose_slot(card, memory_mib)
    return _choose_placement(card, memory_mib)


def account(card: DeviceUsage, choice: MigChoice) -> DeviceUsage:
    """The card after the instance was given away."""
    device = card.device
    grant = Grant(
        uuid=choice.uuid, vendor=device.vendor, memory_mib=choice.memory_mib, cores=choice.cores
    )
    if choice.template is not None and not card.mig_slots:
        card = replace(card, mig_template=None)
    return charged(card, choice.charge(grant))


def occupy(card: DeviceUsage, choice: MigChoice) -> DeviceUsage:
    """The card with only the instance marked as taken; its sums stay as they are."""
    taken = account(card, choice)
    return replace(
        taken,
        slots_used=card.slots_used,
        memory_used_mib=card.memory_used_mib,
        cores_used=card.cores_used,
    )


def is_instance(device: Device, charge: Charge) -> bool:
    """True when the card offers exactly the instance that is charged."""
    for template, slot in charge.mig_slots:
        geometries = device.mig_templates
        entry = _entry(geometries[template], slot) if template < len(geometries) else None
        return entry is not None and entry.memory_mib == charge.memory_mib
    return any(
        profile.memory_mib == charge.memory_mib and placement in profile.placements
        for placement in charge.mig_placements
        for profile in device.mig_profiles
    )


def _entry(geometry: tuple[MigTemplate, ...], slot: int) -> MigTemplate | None:
    """The entry behind a position of the expanded geometry: every entry stands `count` times."""
    for entry in geometry:
        if slot < entry.count:
            return entry
        slot -= entry.count
    return None


def _choose_slot(card: DeviceUsage, memory_mib: int) -> MigChoice | None:
    """First free slot that is large enough; an unused card first chooses its geometry.

    Source: seed 2.8, nvidia/device.go CustomFilterRule and AddResourceUsage.
    """
    geometries = card.device.mig_templates
    template = card.mig_template if card.mig_slots else _geometry(geometries, memory_mib)
    if template is None or template >= len(geometries):
        return None
    start = 0
    for entry in geometries[template]:
        slots = range(start, start + entry.count) if entry.memory_mib >= memory_mib else range(0)
        slot = next((slot for slot in slots if slot not in card.mig_slots), None)
        if slot is not None:
            return MigChoice(
                card=card.device.uuid,
                uuid=Uuid(f"{card.device.uuid}[{template}-{slot}]"),
                name=entry.name,
                memory_mib=entry.memory_mib,
                cores=entry.cores,
                template=template,
                slot=slot,
            )
        start += max(entry.count, 0)
    return None


def _geometry(geometries: tuple[tuple[MigTemplate, ...], ...], memory_mib: int) -> int | None:
    for position, geometry in enumerate(geometries):
        if any(entry.memory_mib >= memory_mib and entry.count > 0 for entry in geometry):
            return position
    return None


def _choose_placement(card: DeviceUsage, memory_mib: int) -> MigChoice | None:
    """Smallest profile that is large enough and has a free placement."""
    profiles = sorted(
        (profile for profile in card.device.mig_profiles if profile.memory_mib >= memory_mib),
        key=lambda profile: (profile.memory_mib, profile.slice_count),
    )
    for profile in profiles:
        for placement in _preferred(profile):
            if not any_overlap(card.mig_placements, (placement,)):
                return MigChoice(
                    card=card.device.uuid,
                    uuid=card.device.uuid,
                    name=profile.name,
                    memory_mib=profile.memory_mib,
                    cores=profile.cores,
                    placement=placement,
                )
    return None


def _preferred(profile: MigProfile) -> list[MigPlacement]:
    """Where to try first; a placement of no size would hold any number of instances."""
    is_downward = profile.name.startswith(FROM_THE_TOP)
    real = (placement for placement in profile.placements if placement.size > 0)
    return sorted(real, key=lambda placement: placement.start, reverse=is_downward)
