"""What a pod holds by its annotations, written by HAMi 2.4 to 2.10 or by us. Pure.

The only reader of who holds what, for daemon, extender and inspection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from hami_node.engine.card_rules import is_overcommitted
from hami_node.engine.usage import DeviceUsage, PodGrants, collapse
from hami_node.model import ContainerGrants, ContainerKind, Node, Pod, Uuid
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names
from hami_node.wire.handshake import counts_inits
from hami_node.wire.reservation import SHARED_KEYS, are_inits_over, count_of

UNBOUND_S: Final = 25 * 60.0
"""A reservation that stays unbound for this long is void: a pod may wait 15 minutes in Permit, then
10 for its volumes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A pod's grants on a node. `is_bound` is False while it only has a reservation."""

    node: str
    is_bound: bool
    grants: PodGrants


def reservation_keys(vendors: Iterable[VendorProtocol]) -> tuple[str, ...]:
    """The annotations that a node serves from: only a scheduler may write them, never a user."""
    return (*SHARED_KEYS, *(key for vendor in vendors for key in vendor.keys.reservation))


def node_of(pod: Pod) -> str:
    """The node a pod is bound to, else the node that a scheduler has chosen for it."""
    return pod.node_name or pod.annotations.get(names.POD_NODE, "")


def keeps_inits(node: Node | None, vendors: Iterable[VendorProtocol]) -> bool:
    """True where init containers that have ended count: the node's scheduler says so."""
    if node is None:
        return False
    mark, asked = node.annotations.get(names.NODE_READ_BY, ""), node.annotations
    keys = (vendor.keys.handshake for vendor in vendors if vendor.asks_handshakes)
    return any(counts_inits(mark, asked.get(key, "")) for key in keys)


def has_grants(pod: Pod, vendors: Iterable[VendorProtocol]) -> bool:
    """True for a pod with grants, valid or not."""
    return any(pod.annotations.get(vendor.keys.grants.allocated) for vendor in vendors)


def marks_of(pod: Pod, vendors: Iterable[VendorProtocol]) -> tuple[str | bool, ...]:
    """All that a pod's holding depends on: equal marks mean an equal holding."""
    annotations = pod.annotations
    return (
        pod.is_over,
        pod.is_being_deleted,
        pod.node_name,
        annotations.get(names.POD_NODE, ""),
        annotations.get(names.POD_TIME, ""),
        *(annotations.get(key, "") for vendor in vendors for key in vendor.keys.grants.records),
    )


def holding_of(pod: Pod, vendors: Sequence[VendorProtocol]) -> Holding | None:
    """What the pod holds; None for nothing. Never raises.

    Init containers count as long as the pod lives: kubelet may run them again at any time.
    A reservation that does not match the pod's containers counts in full once the pod is bound:
    better to refuse a pod than to overcommit a card. Before that it counts for nothing. So does
    one whose containers request cards by a name that the settings have changed since.
    """
    node = node_of(pod)
    is_never_bound = pod.is_being_deleted and not pod.node_name
    if pod.is_over or is_never_bound or not node:
        return None
    held = [slots for vendor in vendors if (slots := _slots_of(pod, vendor, vendors))]
    if not any(any(slots) for slots in held):
        return None
    kinds = _one_of(tuple([container.kind for container in pod.containers]))
    containers = held[0] if len(held) == 1 else _joined(held)
    width = len(containers)
    return Holding(
        node=node,
        is_bound=bool(pod.node_name),
        grants=PodGrants(
            containers=containers,
            kinds=kinds if width == len(kinds) else (ContainerKind.APP,) * width,
        ),
    )


def _joined(held: Sequence[tuple[ContainerGrants, ...]]) -> tuple[ContainerGrants, ...]:
    """What each container has of all vendors."""
    return tuple(
        tuple(grant for slots in held for grants in slots[i : i + 1] for grant in grants)
        for i in range(max(map(len, held)))
    )


@lru_cache(maxsize=256)
def _one_of(kinds: tuple[ContainerKind, ...]) -> tuple[ContainerKind, ...]:
    """One object for all pods of the same shape."""
    return kinds


def _slots_of(
    pod: Pod, vendor: VendorProtocol, vendors: Sequence[VendorProtocol]
) -> tuple[ContainerGrants, ...]:
    """Grants by container; where that is unclear, as written if the pod is bound."""
    if not pod.annotations.get(vendor.keys.grants.allocated):
        return ()
    held = vendor.held_by(pod)
    if held.by_container:
        return tuple([held.by_container.get(container.name, ()) for container in pod.containers])
    if not pod.node_name:
        return ()
    if vendor.counts_in(pod):
        return held.slots
    return vendor.written_on(pod) if _asks_unknown(pod, vendors) else ()


def _asks_unknown(pod: Pod, vendors: Iterable[VendorProtocol]) -> bool:
    """True for a pod that requests a resource by a name that nobody knows now.

    The settings may have renamed its resource while it was running. Without any such request no
    annotation makes a pod a holder of cards: no plugin can have served it.
    """
    vendors = tuple(vendors)
    known = {resource for vendor in vendors for resource in vendor.resources}
    return any(
        "/" in resource
        and resource not in known
        and not any(vendor.is_fixed(resource) for vendor in vendors)
        and count_of(container, resource)
        for container in pod.containers
        for resource in container.limits
    )


def rerun_in_words(pod: Pod, grants: PodGrants, cards: Mapping[Uuid, DeviceUsage]) -> str:
    """That the pod's init containers run on cards with too much granted; "" where they don't.

    A scheduler that counts no init container that has ended has given their share to others.
    """
    if are_inits_over(pod):
        return ""
    later = collapse(replace(grants, are_inits_over=True))
    more = [charge.uuid for charge in collapse(grants) if charge not in later]
    over = [cards[uuid] for uuid in more if uuid in cards and is_overcommitted(cards[uuid])]
    amounts = "; ".join(
        f"{card.device.uuid} has {card.memory_used_mib} of {card.device.memory_mib} MiB granted, "
        f"{card.slots_used} of {card.device.slots} slots"
        for card in over
    )
    why = "its init containers run again, and others have got what they had"
    return f"{why}: {amounts}; delete the pod, so that it is placed anew" if over else ""


def stamped_age_s(pod: Pod, now_s: float) -> float:
    """Seconds since the reservation was made, by its annotation; 0 if that is not a time."""
    stamp = pod.annotations.get(names.POD_TIME, "")
    is_time = stamp.isascii() and stamp.isdigit() and len(stamp) <= 12
    return now_s - int(stamp) if is_time else 0.0
