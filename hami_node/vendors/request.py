"""What a pod requests from every vendor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from hami_node.engine.place import ContainerAsks, PodRequest
from hami_node.errors import WireError
from hami_node.model import NO_CARD_WISHES, Ask, Container, Pod, PodWishes
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names

MOST_ASKING: Final = 64
"""Containers of a pod that ask for cards: each of them costs every node that is tried."""
MOST_MODELS: Final = 64
"""Parts of model names that a pod lists: each card is compared with all of them."""
LONGEST_POLICY: Final = 256
"""Characters of a policy, or of scoring weights: all known words in a row have 41."""

_POLICIES: Final = (names.POD_GPU_POLICY, names.POD_NODE_POLICY, names.POD_SCORING_WEIGHTS)


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
        WireError: a quantity that can't be served, or two that contradict each other, and `key`
            names container and resource; or more than any pod needs of what makes each look at a
            node dearer.
    """
    containers = []
    for container in pod.containers:
        try:
            asks = asks_of(container, vendors)
            for vendor in vendors:
                vendor.refuse_conflict(container)
        except WireError as e:
            raise WireError(f"container {container.name}: {e.key}", e.excerpt, e.why) from e
        containers.append(ContainerAsks(kind=container.kind, asks=asks))
    request = PodRequest(
        namespace=pod.namespace,
        containers=tuple(containers),
        wishes=wishes_of(pod.annotations, vendors),
    )
    if not request.is_empty:
        _check_size(pod, request)
    return request


def _check_size(pod: Pod, request: PodRequest) -> None:
    asking = sum(bool(container.asks) for container in request.containers)
    if asking > MOST_ASKING:
        why = f"more than {MOST_ASKING} containers of a pod can't ask for cards"
        raise WireError("containers", str(asking), why)
    for key in _POLICIES:
        text = pod.annotations.get(key, "")
        if len(text) > LONGEST_POLICY:
            raise WireError(f"annotation {key}", text, f"has more than {LONGEST_POLICY} characters")
    for owner, wished in request.wishes.cards:
        models = len(wished.use_types) + len(wished.nouse_types)
        if models > MOST_MODELS:
            why = f"more than {MOST_MODELS} models of {owner} cards can't be named"
            raise WireError("annotations", str(models), why)
