"""What a pod requests from every vendor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hami_node.engine.place import ContainerAsks, PodRequest
from hami_node.errors import WireError
from hami_node.model import NO_CARD_WISHES, Ask, Container, Pod, PodWishes
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names


def asks_of(container: Container, vendors: Sequence[VendorProtocol]) -> tuple[Ask, ...]:
    """What the container asks for, at most one ask of each vendor.

    Raises:
        WireError: a value that can't be served; `key` names the resource, the text gives a hint.
    """
    asks = (vendor.ask_of(container) for vendor in vendors)
    return tuple(ask for ask in asks if ask is not None)


def wishes_of(annotations: Mapping[str, str], vendors: Sequence[VendorProtocol]) -> PodWishes:
    """Every wish in a pod's annotations; never raises."""
    wishes = ((vendor.cards, vendor.wishes_of(annotations)) for vendor in vendors)
    return PodWishes(
        cards=tuple((owner, wished) for owner, wished in wishes if wished != NO_CARD_WISHES),
        gpu_policy=annotations.get(names.POD_GPU_POLICY),
        node_policy=annotations.get(names.POD_NODE_POLICY),
        scoring_weights=annotations.get(names.POD_SCORING_WEIGHTS),
    )


def request_of(pod: Pod, vendors: Sequence[VendorProtocol]) -> PodRequest:
    """What the pod asks for.

    Raises:
        WireError: a quantity that can't be served; `key` names container and resource.
    """
    containers = []
    for container in pod.containers:
        try:
            asks = asks_of(container, vendors)
        except WireError as e:
            raise WireError(f"container {container.name}: {e.key}", e.excerpt, e.why) from e
        containers.append(ContainerAsks(kind=container.kind, asks=asks))
    return PodRequest(
        namespace=pod.namespace,
        containers=tuple(containers),
        wishes=wishes_of(pod.annotations, vendors),
    )
