"""Changes that would make a refused pod fit, each tried on the picture before it is named. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from hami_node.engine.fleet.fleet import Fleet, Placed
from hami_node.engine.place import PodRequest
from hami_node.inspection.picture import Picture, bare_fleet
from hami_node.model import Ask
from hami_node.vendors.protocol import VendorProtocol
from hami_node.vendors.request import wishes_of
from hami_node.wire import names

Change = Callable[[Ask], Ask]

NO_NAMESPACE: Final = ""
"""No quota limits it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """The picture's fleet, and the same without pods."""

    fleet: Fleet
    empty: Fleet
    nodes: tuple[str, ...]

    def where(self, request: PodRequest) -> str:
        """A node that the request fits on now; "" for none."""
        return _node(self.fleet, request, self.nodes)

    def where_alone(self, request: PodRequest) -> str:
        """A node that it would fit on without other pods; "" for none."""
        return _node(self.empty, request, self.nodes)


def _node(fleet: Fleet, request: PodRequest, nodes: tuple[str, ...]) -> str:
    answer = fleet.place(request, nodes)
    return answer.node if isinstance(answer, Placed) else ""


def hints_of(
    picture: Picture,
    request: PodRequest,
    annotations: Mapping[str, str],
) -> tuple[str, ...]:
    """Single changes that make a refused pod fit, as sentences; whether waiting helps comes last.

    Args:
        picture: the cluster without the pod.
        request: what the pod requests.
        annotations: the pod's annotations.
    """
    basis = picture.basis
    trial = _Trial(
        fleet=picture.fleet,
        empty=picture.empty or bare_fleet(basis, picture.offers),
        nodes=tuple(name for name in picture.offers if picture.is_ready(name)),
    )
    return (
        *(hint for vendor in basis.vendors for hint in _smaller(picture, request, trial, vendor)),
        *_other_wishes(basis.vendors, request, annotations, trial),
        _waiting(request, trial),
    )


def _smaller(
    picture: Picture, request: PodRequest, trial: _Trial, vendor: VendorProtocol
) -> Iterator[str]:
    """Less memory, fewer cores, fewer cards of a vendor: the largest amounts that still fit."""
    every = [ask for container in request.containers for ask in container.asks]
    asks = [ask for ask in every if ask.vendor is vendor.cards]
    if not asks or vendor.cards.cores_are_mask:
        return  # the number of cards for individual cores depends on the node

    def changed(change: Change) -> PodRequest:
        return _changed(request, vendor, change)

    cards = [card.device for name in trial.nodes for card in picture.cards_of(name).values()]
    sizes = (device.memory_mib for device in cards if device.vendor is vendor.cards)
    largest, factor = max(sizes, default=0), max(vendor.memory_factor, 1)
    amounts = (
        (
            vendor.memory,
            max(ask.memory_mib_on(largest) for ask in asks) // factor,
            lambda most: changed(_memory_at_most(most * factor)),
            1,
        ),
        (
            vendor.cores,
            max(ask.cores for ask in asks),
            lambda most: changed(lambda ask: replace(ask, cores=min(ask.cores, most))),
            0,
        ),
        (
            vendor.counted[0],
            max(ask.count for ask in asks),
            lambda most: changed(lambda ask: replace(ask, count=min(ask.count, most))),
            1,
        ),
    )
    for resource, wanted, change, least in amounts:
        found = _most(wanted, change, trial, least) if resource else None
        if found:
            yield f"request at most {found[0]} of {resource}: that fits on {found[1]} now"


def _most(
    wanted: int, change: Callable[[int], PodRequest], trial: _Trial, least: int
) -> tuple[int, str] | None:
    """The largest amount below `wanted` that fits, and where; found by binary search."""
    low, high = least, wanted - 1
    found: tuple[int, str] | None = None
    while low <= high:
        middle = (low + high) // 2
        node = trial.where(change(middle))
        if node:
            found, low = (middle, node), middle + 1
        else:
            high = middle - 1
    return found


def _memory_at_most(most_mib: int) -> Change:
    def capped(ask: Ask) -> Ask:
        memory_mib = most_mib if ask.memory_mib is None else min(ask.memory_mib, most_mib)
        return replace(ask, memory_mib=memory_mib, memory_percent=None)

    return capped


def _changed(request: PodRequest, vendor: VendorProtocol, change: Change) -> PodRequest:
    """The request with every ask of that vendor changed."""
    containers = tuple(
        replace(
            container,
            asks=tuple(
                change(ask) if ask.vendor is vendor.cards else ask for ask in container.asks
            ),
        )
        for container in request.containers
    )
    return replace(request, containers=containers)


def _other_wishes(
    vendors: tuple[VendorProtocol, ...],
    request: PodRequest,
    annotations: Mapping[str, str],
    trial: _Trial,
) -> Iterator[str]:
    """The request without one of the wishes in the pod's annotations."""
    groups = (*(keys for vendor in vendors for keys in vendor.wish_keys), (names.POD_GPU_POLICY,))
    for keys in groups:
        left = {key: text for key, text in annotations.items() if key not in keys}
        wishes = wishes_of(left, vendors)
        is_other = wishes != request.wishes
        node = trial.where(replace(request, wishes=wishes)) if is_other else ""
        if node:
            yield f"remove {' and '.join(keys)}: then it fits on {node} now"


def _waiting(request: PodRequest, trial: _Trial) -> str:
    node = trial.where(replace(request, namespace=NO_NAMESPACE))
    if node:
        return (
            f"the ResourceQuota of namespace {request.namespace} prevents it: without it the pod "
            f"fits on {node} now"
        )
    if node := trial.where_alone(request):
        return f"or wait: when other pods have ended, it fits on {node}"
    return "waiting alone does not help: it fits on no node even without other pods"
