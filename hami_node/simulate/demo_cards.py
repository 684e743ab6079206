"""Who holds what at the end of the demo, read from the API server and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hami_node.model import Uuid
from hami_node.simulate.demo_tour import Tour
from hami_node.wire import names
from hami_node.wire.neuron_codec import decode_neuron_register
from hami_node.wire.node_codec import decode_register
from hami_node.wire.objects import decode_pod
from hami_node.wire.pod_codec import decode_grants


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One container's slice."""

    owner: str
    memory_mib: int
    cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLine:
    """A card, or a node's Neuron devices together.

    Attributes:
        memory_mib: None where memory is not shared out.
        cores: what they add up to, in words.
    """

    node: str
    card: str
    model: str
    is_healthy: bool
    slots: int
    memory_mib: int | None
    cores: str
    holders: tuple[Held, ...] = ()


def who_holds_what(tour: Tour) -> tuple[CardLine, ...]:
    """The cards of both nodes with their holders; nothing of a node that has not reported."""
    return (*_gpu_lines(tour), *_neuron_lines(tour))


def _gpu_lines(tour: Tour) -> Iterator[CardLine]:
    node = tour.stage.read_node(tour.stage.gpu)
    text = node.annotations.get(names.NODE_REGISTER)
    holders = _holders(tour)
    for card in decode_register(text) if text else ():
        held = holders.get(card.uuid, ())
        yield CardLine(
            node=node.name,
            card=str(card.index),
            model=card.model,
            is_healthy=card.healthy,
            slots=card.slots,
            memory_mib=card.memory_mib,
            cores=f"{sum(one.cores for one in held)}/{card.cores} %",
            holders=held,
        )


def _holders(tour: Tour) -> dict[Uuid, tuple[Held, ...]]:
    """The slices of served pods by card."""
    found: dict[Uuid, tuple[Held, ...]] = {}
    for body in tour.stage.api.list("pods"):
        pod = decode_pod(body)
        if pod.annotations.get(names.POD_BIND_PHASE) != names.PHASE_SUCCESS:
            continue
        slots = decode_grants(pod.annotations[names.POD_ALLOCATED])
        for container, grants in zip(pod.containers, slots, strict=True):
            for grant in grants:
                held = Held(
                    owner=f"{pod.name}/{container.name}",
                    memory_mib=grant.memory_mib,
                    cores=grant.cores,
                )
                found[grant.uuid] = (*found.get(grant.uuid, ()), held)
    return found


def _neuron_lines(tour: Tour) -> Iterator[CardLine]:
    node = tour.stage.read_node(tour.stage.neuron)
    text = node.annotations.get(names.NODE_NEURON_REGISTER)
    devices = decode_neuron_register(text) if text else ()
    if devices:
        cores = sum(device.cores.bit_count() for device in devices)
        yield CardLine(
            node=node.name,
            card=f"0-{len(devices) - 1}",
            model=node.labels.get(names.INSTANCE_TYPE, str(devices[0].vendor)),
            is_healthy=all(device.healthy for device in devices),
            slots=cores,
            memory_mib=None,
            cores=f"0/{cores}",
        )
