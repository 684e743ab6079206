"""Who holds what at the end of the demo, read from the API server and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hami_node.model import Pod, Uuid, Vendor
from hami_node.simulate.demo_stage import Stage
from hami_node.simulate.demo_tour import Tour
from hami_node.wire import names
from hami_node.wire.neuron_codec import decode_neuron_register
from hami_node.wire.node_codec import decode_register
from hami_node.wire.objects import decode_pod
from hami_node.wire.pod_codec import decode_grants


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One container's slice.

    Attributes:
        memory_mib: None where memory is not shared out.
        cores: percent of a card, of Neuron their number.
        shown_cores: the same with its unit.
        slots: how many of the card's slots, of Neuron how many cores.
    """

    owner: str
    memory_mib: int | None
    cores: int
    shown_cores: str
    slots: int = 1


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
    holders = holders_of(tour.stage)
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


def holders_of(stage: Stage) -> dict[Uuid, tuple[Held, ...]]:
    """The slices of served pods by card."""
    found: dict[Uuid, tuple[Held, ...]] = {}
    for pod in _pods(stage):
        if pod.annotations.get(names.POD_BIND_PHASE) != names.PHASE_SUCCESS:
            continue
        slots = decode_grants(pod.annotations[names.POD_ALLOCATED])
        for container, grants in zip(pod.containers, slots, strict=True):
            for grant in grants:
                held = Held(
                    owner=f"{pod.name}/{container.name}",
                    memory_mib=grant.memory_mib,
                    cores=grant.cores,
                    shown_cores=f"{grant.cores} %",
                )
                found[grant.uuid] = (*found.get(grant.uuid, ()), held)
    return found


def granted_mib(stage: Stage, card: Uuid) -> int:
    """What the card's containers hold together."""
    return sum(held.memory_mib or 0 for held in holders_of(stage).get(card, ()))


def _pods(stage: Stage) -> tuple[Pod, ...]:
    return tuple(decode_pod(body) for body in stage.api.list("pods"))


def _neuron_lines(tour: Tour) -> Iterator[CardLine]:
    node = tour.stage.read_node(tour.stage.neuron)
    text = node.annotations.get(names.NODE_NEURON_REGISTER)
    devices = decode_neuron_register(text) if text else ()
    if devices:
        cores = sum(device.cores.bit_count() for device in devices)
        held = tuple(_neuron_holders(tour.stage, node.name))
        yield CardLine(
            node=node.name,
            card=f"0-{len(devices) - 1}",
            model=node.labels.get(names.INSTANCE_TYPE, str(devices[0].vendor)),
            is_healthy=all(device.healthy for device in devices),
            slots=cores,
            memory_mib=None,
            cores=f"{sum(one.cores for one in held)}/{cores}",
            holders=held,
        )


def _neuron_holders(stage: Stage, node: str) -> Iterator[Held]:
    for pod in _pods(stage):
        text = pod.annotations.get(names.POD_NEURON_ALLOCATED)
        if pod.node_name != node or not text:
            continue
        for container, grants in zip(pod.containers, decode_grants(text), strict=True):
            held = [grant for grant in grants if grant.vendor is Vendor.AWS_NEURON]
            cores = sum(grant.cores.bit_count() for grant in held)
            if cores:
                yield Held(
                    owner=f"{pod.name}/{container.name}",
                    memory_mib=None,
                    cores=cores,
                    shown_cores=str(cores),
                    slots=cores,
                )
