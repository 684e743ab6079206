"""What would let a refused pod in: each cure is tried on the picture before it is named. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hami_node.engine.fleet import Fleet, Placed
from hami_node.engine.place import PodRequest
from hami_node.inspection.picture import Picture, fleet_of
from hami_node.model import Ask, PodWishes, UuidWish, Vendor
from hami_node.wire import names as wire_names

Change = Callable[[Ask], Ask]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """The picture's fleet, and the same without pods and without quotas."""

    fleet: Fleet
    empty: Fleet
    unlimited: Fleet
    nodes: tuple[str, ...]

    def where(self, request: PodRequest, fleet: Fleet | None = None) -> str:
        """A node that takes the request; "" for none."""
        answer = (fleet or self.fleet).place(request, self.nodes)
        return answer.node if isinstance(answer, Placed) else ""


def cures_of(picture: Picture, request: PodRequest) -> tuple[str, ...]:
    """Single changes that make a refused pod fit, as sentences; what waiting can do comes last."""
    trial = _Trial(
        fleet=picture.fleet,
        empty=fleet_of(picture.rules, picture.offers, {}),
        unlimited=fleet_of(picture.rules, picture.offers, picture.held),
        nodes=tuple(name for name in picture.offers if picture.is_ready(name)),
    )
    return (
        *_smaller(picture, request, trial),
        *_other_wishes(request, trial),
        _waiting(request, trial),
    )


def _smaller(picture: Picture, request: PodRequest, trial: _Trial) -> Iterator[str]:
    """Less memory, fewer cores, fewer cards; as much as still fits."""
    asks = [ask for one in request.containers for ask in one.asks if ask.vendor is Vendor.NVIDIA]
    if not asks:
        return
    names = picture.rules.names
    factor = max(picture.rules.config.memory_factor, 1)
    cards = [card for name in trial.nodes for card in picture.cards_of(name).values()]
    largest = max((card.device.memory_mib for card in cards), default=0)
    wanted = max(ask.memory_mib_on(largest) for ask in asks)
    memory = _most(wanted // factor, lambda most: _less_memory(request, most * factor), trial)
    if memory:
        yield f"ask for {names.gpu_memory} of at most {memory[0]}: that fits on {memory[1]} now"
    cores = _most(
        max(ask.cores for ask in asks),
        lambda most: _changed(request, lambda ask: replace(ask, cores=min(ask.cores, most))),
        trial,
        least=0,
    )
    if cores:
        yield f"ask for {names.gpu_cores} of at most {cores[0]}: that fits on {cores[1]} now"
    count = _most(
        max(ask.count for ask in asks),
        lambda most: _changed(request, lambda ask: replace(ask, count=min(ask.count, most))),
        trial,
    )
    if count:
        yield f"ask for {names.gpu} of at most {count[0]}: that fits on {count[1]} now"


def _most(
    wanted: int, change: Callable[[int], PodRequest], trial: _Trial, least: int = 1
) -> tuple[int, str] | None:
    """The largest amount below `wanted` that fits, and where; found by halving."""
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


def _less_memory(request: PodRequest, most_mib: int) -> PodRequest:
    def capped(ask: Ask) -> Ask:
        asked = most_mib if ask.memory_mib is None else min(ask.memory_mib, most_mib)
        return replace(ask, memory_mib=asked, memory_percent=None)

    return _changed(request, capped)


def _changed(request: PodRequest, change: Change) -> PodRequest:
    """The request with every ask for NVIDIA cards changed."""
    containers = tuple(
        replace(
            one,
            asks=tuple(change(ask) if ask.vendor is Vendor.NVIDIA else ask for ask in one.asks),
        )
        for one in request.containers
    )
    return replace(request, containers=containers)


def _other_wishes(request: PodRequest, trial: _Trial) -> Iterator[str]:
    """Leave out one wish that stands in the pod's annotations."""
    none = PodWishes()
    wishes = request.wishes
    without: tuple[tuple[str, PodWishes], ...] = (
        (
            f"{wire_names.USE_GPU_TYPE} and {wire_names.NOUSE_GPU_TYPE}",
            replace(wishes, use_types=(), nouse_types=()),
        ),
        (
            f"{wire_names.USE_GPU_UUID} and {wire_names.NOUSE_GPU_UUID}",
            replace(wishes, nvidia=UuidWish()),
        ),
        (
            f"{wire_names.USE_NEURON_UUID} and {wire_names.NOUSE_NEURON_UUID}",
            replace(wishes, neuron=UuidWish()),
        ),
        (wire_names.VGPU_MODE, replace(wishes, modes=None)),
        (wire_names.NUMA_BIND, replace(wishes, is_numa_bound=False)),
        (wire_names.POD_GPU_POLICY, replace(wishes, gpu_policy=none.gpu_policy)),
    )
    for keys, changed in without:
        node = "" if changed == wishes else trial.where(replace(request, wishes=changed))
        if node:
            yield f"leave out {keys}: then it fits on {node} now"


def _waiting(request: PodRequest, trial: _Trial) -> str:
    node = trial.where(request, trial.unlimited)
    if node:
        return (
            f"the ResourceQuota of namespace {request.namespace} is what keeps it: without it the "
            f"pod fits on {node} now"
        )
    node = trial.where(request, trial.empty)
    if node:
        return f"or wait: when other pods have ended, it fits on {node}"
    return "waiting alone does not help: no node could take it even without other pods"
