"""MIG instances that others have made, offered untouched: their resources, and which are whole.

The names are those of NVIDIA's device plugin. Source: NVIDIA/k8s-device-plugin, internal/rm.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from hami_node.errors import WireError
from hami_node.model import ContainerGrants, Device, Grant, Uuid, Vendor
from hami_node.vendors.nvidia.mig.layout import FoundInstance, closed, cores_of, mig_of
from hami_node.vendors.nvidia.mode import MigStrategy, Mode
from hami_node.vendors.nvidia.names import RESOURCE_MIG

MAX_ID_CHARS: Final = 63
"""Of a device ID at kubelet."""
MAKE_SOME: Final = (
    "make instances (MIG Manager, or nvidia-smi mig -i UUID -cgi PROFILE -C), or switch "
    "the mode off (nvidia-smi -i UUID -mig 0)"
)
NO_INSTANCES: Final = f"the card is in MIG mode and has no instance: {MAKE_SOME}"
NOT_IN_MIG_MODE: Final = (
    "mig-strategy single offers MIG instances alone and the card is not in MIG mode: give every "
    "card equal instances, or set mig-strategy mixed, which serves such cards too"
)
LEAVES_MIG_MODE: Final = "MIG mode is to be switched off and waits for a reset of the card"

_RESOURCE: Final = re.compile(
    re.escape(RESOURCE_MIG) + r"[0-9]{1,2}g\.[0-9]{1,4}gb(?:[.-][a-z]{1,10}(?:\.[a-z]{1,10})?)?"
)


def resource_of(profile: str) -> str:
    """The resource of a profile: `nvidia.com/mig-1g.5gb.me` for 1g.5gb+me."""
    return RESOURCE_MIG + profile.replace("+", ".")


def is_resource(name: str) -> bool:
    """True for the name of a profile's resource, whether or not a card here has the profile."""
    return _RESOURCE.fullmatch(name) is not None


def in_mig_mode(card: Device) -> bool:
    """True where the card is in MIG mode now."""
    return card.mode == Mode.MIG


def is_offered(found: FoundInstance) -> bool:
    """True for a GPU instance with one compute instance, over all of it; others have no resource.

    So it is in NVIDIA's plugin too.
    """
    return (
        found.device is not None
        and len(found.compute_instance_ids) == 1
        and is_resource(resource_of(found.profile))
        and len(found.device.uuid) <= MAX_ID_CHARS
    )


def instances_on(card: Device) -> tuple[FoundInstance, ...]:
    """Those of a card that can be offered, by their numbers; their places may be unknown."""
    mig = mig_of(card)
    if mig is None or not mig.is_enabled:
        return ()
    known = {profile.id for profile in mig.profiles}
    found = (item for item in mig.instances if is_offered(item) and item.profile_id in known)
    return tuple(sorted(found, key=lambda item: item.gpu_instance_id))


def found_instances(cards: Iterable[Device]) -> Iterator[tuple[Device, FoundInstance]]:
    """Every instance that can be offered, with its card."""
    for card in cards:
        for found in instances_on(card):
            yield card, found


def profiles_on(cards: Iterable[Device]) -> tuple[str, ...]:
    """The profiles of which there are instances, sorted."""
    return tuple(sorted({found.profile for _, found in found_instances(cards)}))


def effective(strategy: MigStrategy, cards: Sequence[Device]) -> MigStrategy:
    """The strategy as it applies to a node: without a card in MIG mode, whole cards are offered.

    Source: NVIDIA/k8s-device-plugin internal/rm/device_map.go.
    """
    if strategy is MigStrategy.SINGLE and cards and not any(map(in_mig_mode, cards)):
        return MigStrategy.NONE
    return strategy


def with_instances(card: Device, profile: str | None = None) -> Device:
    """A card as it is offered by its instances, of one profile or of all.

    Each instance is a device ID, which is its UUID, and has as much memory and cores as the driver
    says. The health is the card's.
    """
    found = [item for item in instances_on(card) if profile in (None, item.profile)]
    ids = tuple(item.device.uuid for item in found if item.device is not None)
    offered = replace(
        card, mode=Mode.MIG, slots=len(ids), ids=ids, physical_memory_mib=card.memory_mib
    )
    return closed(offered, _why_closed(card))


def _why_closed(card: Device) -> str:
    mig = mig_of(card)
    if not in_mig_mode(card):
        return NOT_IN_MIG_MODE
    if mig is None or not mig.is_enabled:
        return "the card is in MIG mode, and the driver has not reported its instances"
    if mig.problem:
        return f"MIG can't be read: {mig.problem}"
    if not mig.is_pending:
        return LEAVES_MIG_MODE
    if not mig.instances:
        return NO_INSTANCES
    if not instances_on(card):
        return (
            "none of the card's GPU instances has exactly one compute instance over all of it: "
            "make it (nvidia-smi mig -i UUID -gi N -cci), or make others"
        )
    return ""


def unequal(cards: Iterable[Device]) -> str:
    """Why the instances of a node can't be one resource; "" if they can."""
    profiles = profiles_on(cards)
    if len(profiles) <= 1:
        return ""
    return (
        f"mig-strategy single needs equal instances, and this node has {', '.join(profiles)}: make "
        "them equal on all cards, or set mig-strategy mixed"
    )


def size_of(card: Device, found: FoundInstance) -> tuple[int, int]:
    """Memory in MiB and percent of the cores of an instance; (0, 0) for an unknown profile."""
    mig = mig_of(card)
    profiles = mig.profiles if mig is not None else ()
    most = max((profile.multiprocessors for profile in profiles), default=0)
    for profile in profiles:
        if profile.id == found.profile_id:
            return profile.memory_mib, cores_of(profile.multiprocessors, most)
    return 0, 0


def by_uuid(cards: Mapping[Uuid, Device]) -> Mapping[str, tuple[Device, FoundInstance]]:
    """The instances that can be offered, by their own UUIDs."""
    return {
        found.device.uuid: (card, found)
        for card, found in found_instances(cards.values())
        if found.device is not None
    }


def grants_of(
    resource: str, device_ids: Iterable[str], cards: Mapping[Uuid, Device], vendor: Vendor
) -> ContainerGrants:
    """A grant for each instance that the IDs name, by the numbers of cards and instances.

    Raises:
        WireError: this node has no such instance, or none of that resource.
    """
    instances = by_uuid(cards)
    found: list[tuple[Device, FoundInstance]] = []
    for name in dict.fromkeys(device_ids):
        if name not in instances:
            raise WireError(resource, name, "is no MIG instance of this node now")
        card, instance = instances[name]
        if is_resource(resource) and resource != resource_of(instance.profile):
            raise WireError(resource, name, f"is a MIG instance of the profile {instance.profile}")
        found.append((card, instance))
    found.sort(key=lambda pair: (pair[0].index, pair[0].uuid, pair[1].gpu_instance_id))
    return tuple(_grant(card, instance, vendor) for card, instance in found)


def _grant(card: Device, instance: FoundInstance, vendor: Vendor) -> Grant:
    memory_mib, cores = size_of(card, instance)
    return Grant(
        uuid=card.uuid,
        vendor=vendor,
        memory_mib=memory_mib,
        cores=cores,
        part=instance.device,
    )
