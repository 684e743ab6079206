"""Fixed shares: cards that nodes show people, and pods that kubelet gives shares of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from hami_node.engine.usage import DeviceUsage
from hami_node.errors import WireError
from hami_node.model import Node, Pod
from hami_node.vendors.protocol import VendorProtocol
from hami_node.vendors.quantities import allocatable_of
from hami_node.wire.reservation import counts_of


def fixed_cards(
    node: Node, vendors: Iterable[VendorProtocol]
) -> tuple[tuple[DeviceUsage, ...], tuple[str, ...]]:
    """The cards that the node offers in fixed shares, by number; and what can't be read of them."""
    found: list[DeviceUsage] = []
    unread: list[str] = []
    for vendor in vendors:
        try:
            found += vendor.fixed_on(node)
        except WireError as e:
            unread.append(str(e))
    found.sort(key=lambda use: (use.device.index, use.device.uuid))
    return tuple(found), tuple(unread)


def allocatable_shown(node: Node, vendors: Iterable[VendorProtocol]) -> str:
    """What kubelet offers of cards that are shared by slots, or of fixed shares; "" for nothing."""
    vendors = tuple(vendors)
    shared = (vendor.counted[0] for vendor in vendors if not vendor.cards.cores_are_mask)
    offered = next(filter(None, (node.allocatable.get(name, "") for name in shared)), "")
    total = 0
    for resource in node.allocatable:
        if any(vendor.is_fixed(resource) for vendor in vendors):
            with suppress(WireError):
                total += allocatable_of(node, resource)
    return offered or (str(total) if total else "")


def fixed_asks(pod: Pod, vendors: Iterable[VendorProtocol]) -> Iterator[tuple[str, str]]:
    """Each container with the shares that it asks for, such as `2 x nvidia.com/gpu-1of4`."""
    vendors = tuple(vendors)
    named = {name for container in pod.containers for name in container.limits}
    for resource in sorted(named):
        if any(vendor.is_fixed(resource) for vendor in vendors):
            for container, count in counts_of(pod, resource).items():
                yield container, f"{count} x {resource}"
