"""What a scheduler writes on a pod once it has chosen its node and cards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hami_node.model import Container, ContainerGrants, Device, Node, Uuid
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names


def encode_placement(
    node: Node,
    containers: Sequence[Container],
    grants: Sequence[ContainerGrants],
    devices: Mapping[Uuid, Device],
    vendors: Sequence[VendorProtocol],
    now_s: float | None = None,
) -> dict[str, str]:
    """The annotations of a placed pod, in a form that the node's plugin reads.

    Args:
        node: the chosen node.
        containers: the pod's containers, init containers first.
        grants: what each of them gets, in the same order.
        devices: the node's cards.
        vendors: the vendors whose grants are written.
        now_s: when it was chosen, Unix seconds; None leaves the times out.
    """
    texts = {names.POD_NODE: node.name}
    if now_s is not None:
        texts[names.POD_TIME] = str(int(now_s))
    for vendor in vendors:
        own = own_grants(grants, vendor)
        if any(own):
            texts |= vendor.annotations_of(node, containers, own, devices)
            texts |= {} if now_s is None else vendor.stamps_of(now_s)
    return texts


def own_grants(grants: Iterable[ContainerGrants], vendor: VendorProtocol) -> list[ContainerGrants]:
    """The grants of one vendor, container by container."""
    return [tuple(grant for grant in held if grant.vendor is vendor.cards) for held in grants]
