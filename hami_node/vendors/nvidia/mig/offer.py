"""What is offered of a card in MIG mode: which profiles, at which places, in which protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from hami_node.model import Device, Uuid
from hami_node.vendors.nvidia.choices import ListedGeometries, ListedProfiles
from hami_node.vendors.nvidia.mig.layout import (
    CardProfile,
    DriverCard,
    FoundInstance,
    MigCard,
    MigLayout,
    MigPlacement,
    MigProfile,
    MigTemplate,
    closed,
    cores_of,
    geometries_of,
    mig_of,
    profile_named,
)
from hami_node.vendors.nvidia.mode import Mode

NO_MIG: Final = "operatingmode is mig and the card has no MIG: use hami-core on this node"
MODE_OFF: Final = (
    "operatingmode is mig and the card's MIG mode is off: switch it on once nobody uses the card "
    "(nvidia-smi -i UUID -mig 1)"
)
MODE_ON: Final = (
    "the card is in MIG mode and this node's operatingmode is not mig: set operatingmode mig, or "
    "migstrategy single or mixed for instances that others make, or switch it off "
    "(nvidia-smi -i UUID -mig 0)"
)
NO_PROFILES: Final = "the driver lists no MIG profiles of the card (nvidia-smi mig -lgip)"
NOTHING_ALLOWED: Final = "migProfileAllowlist names no MIG profile that the card has"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigRules:
    """What the settings say of cards in MIG mode; of each list the first entry for a model counts.

    Attributes:
        allowed: which profiles are offered; of other models all plain ones.
        geometries: how HAMi 2.5 to 2.9 divides a card.
        is_csv: the register has one of the forms that only these releases read.
    """

    allowed: tuple[ListedProfiles, ...] = ()
    geometries: tuple[ListedGeometries, ...] = ()
    is_csv: bool = False


def offered_divided(card: Device, rules: MigRules) -> Device:
    """A card of a node whose cards are divided: what it can hold, or why it serves nobody.

    As `Device.slots` it has the most instances that it can hold at once. As memory it has that of
    its largest profile, so that a share in percent can be met, or for the protocol of geometries
    what the driver reports, because their sizes are shares of that.
    """
    card = replace(card, mode=Mode.MIG, physical_memory_mib=card.memory_mib)
    detail = card.detail if isinstance(card.detail, DriverCard) else None
    if detail is None or detail.mig is None:
        return closed(card, NO_MIG)
    allowed = allowed_of(card, detail.mig, rules)
    is_template = is_by_template(card, rules)
    templates = geometries_of(card.model, rules.geometries)
    layout = MigLayout(profiles=_published(allowed, detail, detail.mig), templates=templates)
    # of all that the card has: schedulers compare the sum of instances with it
    largest = max((profile.memory_mib for profile in detail.mig.profiles), default=0)
    card = replace(
        card,
        slots=max((profile.instance_count for profile in allowed), default=1),
        memory_mib=card.memory_mib if is_template or not largest else largest,
        detail=replace(detail, layout=layout, allowed=tuple(allowed)),
    )
    why = _why_closed(detail, detail.mig)
    if not why and not allowed:
        why = NOTHING_ALLOWED
    return closed(card, why or _why_full(card, layout, is_template=is_template))


def _why_closed(detail: DriverCard, mig: MigCard) -> str:
    """Why nothing can be made on a card in its present mode; "" if it can."""
    if mig.is_pending != mig.is_enabled:
        word = "on" if mig.is_pending else "off"
        text = f"MIG mode is to be switched {word} and waits for a reset of the card"
        return f"{text}: {detail.waits_for}" if detail.waits_for else text
    if not mig.is_enabled:
        return f"{MODE_OFF}: {detail.waits_for}" if detail.waits_for else MODE_OFF
    if why := mig.problem or mig.restriction or detail.waits_for:
        return f"no MIG instance can be made: {why}"
    return "" if mig.profiles else NO_PROFILES


def _why_full(card: Device, layout: MigLayout, *, is_template: bool) -> str:
    """Why no instance can be made beside what exists; "" where one can, or may be free."""
    taken = foreign_instances(card)
    if taken and (is_template or not layout.profiles):
        found = ", ".join(map(instance_text, taken))
        why = "a geometry needs the whole card" if is_template else "no place is left"
        by_hand = removal_text(card.uuid, taken[0]) + ("; and so on" if taken[1:] else "")
        return f"{why}, and this daemon did not make {found}: remove it ({by_hand})"
    return "" if layout.profiles else "all places have instances of containers that have ended"


def is_by_template(card: Device, rules: MigRules) -> bool:
    """True for a card that is offered by its geometries (HAMi 2.5 to 2.9), not its profiles.

    Whoever lists a model for 2.10 means 2.10.
    """
    if not geometries_of(card.model, rules.geometries):
        return False
    return rules.is_csv or _allowlist_of(card.model, rules) is None


def _allowlist_of(model: str, rules: MigRules) -> tuple[str, ...] | None:
    for entry in rules.allowed:
        if any(part in model for part in entry.models):
            return entry.profiles
    return None


def allowed_of(card: Device, mig: MigCard, rules: MigRules) -> tuple[CardProfile, ...]:
    """The card's profiles that may be offered, by the driver's own names, in the list's order.

    Without a list all plain ones: how many of the others a card holds at once depends on more than
    their places.
    """
    by_name = {profile.name: profile for profile in mig.profiles}
    names = _allowlist_of(card.model, rules)
    if names is None:
        names = tuple(filter(is_plain, by_name))
    return tuple(by_name[name] for name in dict.fromkeys(names) if name in by_name)


def is_plain(name: str) -> bool:
    """False for a variant, such as 1g.10gb+me or 2g.48gb-me."""
    return not {"+", "-"} & set(name)


def unknown_names(card: Device, rules: MigRules) -> tuple[str, ...]:
    """Profiles that the settings name for this model and that the card does not have."""
    mig = mig_of(card)
    if mig is None or not mig.profiles:
        return ()
    exact = {profile.name for profile in mig.profiles}
    allowed = [name for name in _allowlist_of(card.model, rules) or () if name not in exact]
    meant = [entry.name for entry in _entries(card, rules)]
    unmade = [name for name in meant if profile_named(name, mig.profiles) is None]
    return tuple(dict.fromkeys([*allowed, *unmade]))


def short_entries(card: Device, rules: MigRules) -> tuple[tuple[MigTemplate, int], ...]:
    """Entries of geometries that promise more memory than the driver gives, with what it gives."""
    mig = mig_of(card)
    profiles = mig.profiles if mig is not None else ()
    found = [(entry, profile_named(entry.name, profiles)) for entry in _entries(card, rules)]
    return tuple(
        (entry, profile.memory_mib)
        for entry, profile in found
        if profile is not None and entry.memory_mib > profile.memory_mib
    )


def _entries(card: Device, rules: MigRules) -> tuple[MigTemplate, ...]:
    """The entries of the card's geometries, each once, whatever its count."""
    geometries = geometries_of(card.model, rules.geometries)
    return tuple(
        dict.fromkeys(replace(entry, count=1) for geometry in geometries for entry in geometry)
    )


def foreign_instances(card: Device) -> tuple[FoundInstance, ...]:
    """Instances on the card that this daemon did not make."""
    detail = card.detail
    if not isinstance(detail, DriverCard) or detail.mig is None:
        return ()
    known = detail.ours | detail.stale
    return tuple(item for item in detail.mig.instances if item.gpu_instance_id not in known)


def instance_text(found: FoundInstance) -> str:
    """An instance in words: `GPU instance 3 (2g.10gb at 0)`."""
    name = found.profile or f"profile {found.profile_id}"
    return f"GPU instance {found.gpu_instance_id} ({name} at {found.placement.start})"


def removal_text(card: Uuid, found: FoundInstance) -> str:
    """How an administrator removes an instance; without -i and -gi all idle ones would go."""
    by_hand = f"nvidia-smi mig -i {card} -gi {found.gpu_instance_id}"
    return f"{by_hand} -dci; {by_hand} -dgi"


def _published(
    allowed: Sequence[CardProfile], detail: DriverCard, mig: MigCard
) -> tuple[MigProfile, ...]:
    """The profiles with the places that are free, or our own; without any, a profile is left out.

    An instance of ours keeps its place: whoever counts it needs to find it.
    """
    most = max((profile.multiprocessors for profile in mig.profiles), default=0)
    blocked = [item.placement for item in mig.instances if item.gpu_instance_id not in detail.ours]
    return tuple(
        MigProfile(
            name=profile.name,
            memory_mib=profile.memory_mib,
            cores=cores_of(profile.multiprocessors, most),
            slice_count=profile.slice_count,
            placements=places,
        )
        for profile in allowed
        if (places := tuple(_free(profile, blocked, detail, mig)))
    )


def _free(
    profile: CardProfile, blocked: Sequence[MigPlacement], detail: DriverCard, mig: MigCard
) -> Iterator[MigPlacement]:
    same = [item for item in mig.instances if item.profile_id == profile.id]
    own = {item.placement for item in same if item.gpu_instance_id in detail.ours}
    for place in profile.placements:
        if place in own or (
            len(same) < profile.instance_count and not any(map(place.overlaps, blocked))
        ):
            yield place
