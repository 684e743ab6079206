"""The cards and their holders at the end of the demo, read only from the API server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hami_node.demo.stage import Stage
from hami_node.model import Pod, Uuid
from hami_node.vendors.demo import ForeignDevices
from hami_node.wire import names
from hami_node.wire.objects import decode_pod


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSlice:
    """A container's slice.

    Attributes:
        memory_mib: None where memory is not shared.
        cores: percent of a card, or their number.
        shown_cores: the same with its unit.
        slots: how many of the card's slots; as many as cores where these are granted individually.
    """

    owner: str
    memory_mib: int | None
    cores: int
    shown_cores: str
    slots: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLine:
    """A card, or a node's devices together.

    Attributes:
        memory_mib: None where memory is not shared.
        cores: their usage, in words.
    """

    node: str
    card: str
    vendor: str
    model: str
    is_healthy: bool
    slots: int
    memory_mib: int | None
    cores: str
    holders: tuple[HeldSlice, ...] = ()


def who_holds_what(stage: Stage) -> tuple[CardLine, ...]:
    """The cards of all nodes with their holders; none of a node that has not reported."""
    foreign = (line for part in stage.cast.foreign for line in _foreign_lines(stage, part))
    return (*_shared_lines(stage), *foreign)


def _shared_lines(stage: Stage) -> Iterator[CardLine]:
    node, protocol = stage.read_node(stage.gpu), stage.cast.shared.protocol
    holders = holders_of(stage)
    for card in protocol.registered_on(node):
        held = holders.get(card.uuid, ())
        yield CardLine(
            node=node.name,
            card=str(card.index),
            vendor=card.vendor.word,
            model=card.model,
            is_healthy=card.healthy,
            slots=card.slots,
            memory_mib=card.memory_mib,
            cores=f"{sum(item.cores for item in held)}/{card.cores} %",
            holders=held,
        )


def holders_of(stage: Stage) -> dict[Uuid, tuple[HeldSlice, ...]]:
    """The slices of served pods by shared card."""
    found: dict[Uuid, tuple[HeldSlice, ...]] = {}
    for pod in _pods(stage):
        if pod.annotations.get(names.POD_BIND_PHASE) != names.PHASE_SUCCESS:
            continue
        for container, grants in stage.cast.shared.protocol.held_by(pod).by_container.items():
            for grant in grants:
                held = HeldSlice(
                    owner=f"{pod.name}/{container}",
                    memory_mib=grant.memory_mib,
                    cores=grant.cores,
                    shown_cores=f"{grant.cores} %",
                )
                found[grant.uuid] = (*found.get(grant.uuid, ()), held)
    return found


def granted_mib(stage: Stage, card: Uuid) -> int:
    """The memory that the card's containers hold together."""
    return sum(held.memory_mib or 0 for held in holders_of(stage).get(card, ()))


def _pods(stage: Stage) -> tuple[Pod, ...]:
    return tuple(decode_pod(body) for body in stage.api.list("pods"))


def _foreign_lines(stage: Stage, part: ForeignDevices) -> Iterator[CardLine]:
    """All devices of the node in a single line."""
    devices = part.protocol.registered_on(stage.read_node(stage.nodes[part.node]))
    if not devices:
        return
    cores = sum(device.cores.bit_count() for device in devices)
    held = tuple(_foreign_holders(stage, part))
    yield CardLine(
        node=part.node,
        card=f"0-{len(devices) - 1}",
        vendor=part.protocol.cards.word,
        model=part.model,
        is_healthy=all(device.healthy for device in devices),
        slots=cores,
        memory_mib=None,
        cores=f"{sum(item.cores for item in held)}/{cores}",
        holders=held,
    )


def _foreign_holders(stage: Stage, part: ForeignDevices) -> Iterator[HeldSlice]:
    for pod in _pods(stage):
        if pod.node_name != part.node:
            continue
        for container, grants in part.protocol.held_by(pod).by_container.items():
            cores = sum(grant.cores.bit_count() for grant in grants)
            yield HeldSlice(
                owner=f"{pod.name}/{container}",
                memory_mib=None,
                cores=cores,
                shown_cores=str(cores),
                slots=cores,
            )
