"""What nodes have published and what pods hold.

Nothing is hidden: an annotation that can't be decoded, a grant on a card that is not there, and a
pod whose slots don't match its containers each become a `Problem`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hami_node.engine.usage import DeviceUsage, NodeUsage, PodGrants
from hami_node.errors import WireError
from hami_node.model import ContainerGrants, Device, Node, Pod, Uuid, Vendor
from hami_node.wire import names
from hami_node.wire.handshake import decode_handshake
from hami_node.wire.lock import decode_lock
from hami_node.wire.mig_codec import card_of
from hami_node.wire.neuron_codec import decode_neuron_register
from hami_node.wire.node_codec import decode_register
from hami_node.wire.pod_codec import decode_grants
from hami_node.wire.reservation import are_inits_over, read_reservation

MAX_EXCERPT: Final = 200
"""Characters shown of an annotation that makes no sense."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something published that is broken: where it stands, and why."""

    where: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CardView:
    """A card and what is taken of it. Memory in MiB, cores in percent (Neuron: number of cores)."""

    node: str
    index: int
    uuid: str
    model: str
    vendor: str
    mode: str
    numa: int | None
    is_healthy: bool
    slots: int
    slots_used: int
    memory_mib: int
    memory_used_mib: int
    cores: int
    cores_used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node that has published cards.

    Attributes:
        handshake: the word, `Reported`, `Requesting` or `Deleted`; "" without one.
        handshake_age_s: its age; None when it has no readable time.
        lock: the pod that holds the node lock, `?` for an ownerless one; "" when free.
        allocatable: what kubelet offers of the card resource, as text; "" for nothing.
        identity: how the daemon tells pods apart; "" when it is not ours or can't.
    """

    name: str
    is_ready: bool
    cards: int
    is_simulated: bool
    handshake: str
    handshake_age_s: int | None
    lock: str
    allocatable: str
    identity: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderView:
    """One container's slice of one card. `index` is None for a card that the node does not have."""

    namespace: str
    pod: str
    container: str
    node: str
    phase: str
    is_served: bool
    index: int | None
    uuid: str
    memory_mib: int
    cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingView:
    """A pod that asks for cards and is not bound to a node.

    Attributes:
        asks: what it asks for, in words.
        waits_s: since its creation; None when that can't be read.
        reserved_on: the node that holds its reservation; "" without one.
        why: in one sentence, why it waits.
    """

    namespace: str
    pod: str
    asks: str
    waits_s: int | None
    reserved_on: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TotalsView:
    """All cards that nodes offer. Free is what the next pod may get: sick cards add nothing.

    Attributes:
        nodes: that offer cards.
        open_cards: NVIDIA cards that take one more container.
        memory_free_mib: on the open cards.
        largest_mib: the most that one container can get on one card, which is card
            `largest_index` of `largest_node`; 0 and None when no card is open.
        neuron_cores_free: on all Neuron devices.
    """

    nodes: int
    cards: int
    open_cards: int
    slots: int
    slots_free: int
    memory_mib: int
    memory_free_mib: int
    largest_mib: int
    largest_node: str
    largest_index: int | None
    neuron_cores_free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """Everything decoded, sorted; `totals` is None where nobody summed up."""

    nodes: tuple[NodeView, ...]
    cards: tuple[CardView, ...]
    holders: tuple[HolderView, ...]
    problems: tuple[Problem, ...]
    waiting: tuple[WaitingView, ...] = ()
    totals: TotalsView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """A pod's grants by container, or ((), reason) when they can't be told."""

    pod: Pod
    vendor: Vendor
    grants: Mapping[str, ContainerGrants]
    waiting: frozenset[str] = frozenset()


def inspect(nodes: Iterable[Node], pods: Iterable[Pod], resource: str, now_s: float) -> ClusterView:
    """Decode everything.

    Args:
        nodes: the nodes to show; pods elsewhere are left out.
        pods: all pods that may hold something.
        resource: the extended resource that counts cards.
        now_s: Unix seconds, for ages.
    """
    problems: list[Problem] = []
    by_node: dict[str, list[_Held]] = {}
    for pod in sorted(pods, key=lambda one: one.key):
        if not pod.is_over:
            by_node.setdefault(node_of(pod), []).extend(_held_by(pod, resource, problems))
    node_views: list[NodeView] = []
    cards: list[CardView] = []
    holders: list[HolderView] = []
    for node in sorted(nodes, key=lambda one: one.name):
        devices = _devices_of(node, problems)
        held = by_node.get(node.name, [])
        usage = _usage_of(devices, held)
        problems += _strangers(node, usage)
        holders += [view for one in held for view in _holder_views(one, node, usage)]
        cards += [_card_view(node, usage.cards[device.uuid]) for device in devices]
        if devices or held or names.NODE_HANDSHAKE in node.annotations:
            node_views.append(_node_view(node, len(devices), resource, now_s, problems))
    return ClusterView(
        nodes=tuple(node_views),
        cards=tuple(cards),
        holders=tuple(holders),
        problems=tuple(problems),
    )


def node_of(pod: Pod) -> str:
    """The node a pod is bound to, else the one that a scheduler has chosen for it."""
    return pod.node_name or pod.annotations.get(names.POD_NODE, "")


def _devices_of(node: Node, problems: list[Problem]) -> tuple[Device, ...]:
    found: list[Device] = []
    readers: tuple[tuple[str, Callable[[str], tuple[Device, ...]]], ...] = (
        (names.NODE_REGISTER, decode_register),
        (names.NODE_NEURON_REGISTER, decode_neuron_register),
    )
    for key, decode in readers:
        try:
            found += decode(node.annotations.get(key, "") or "[]")
        except WireError as e:
            problems.append(Problem(where=f"node {node.name}", why=str(e)))
    unique = {device.uuid: device for device in found}
    if len(unique) < len(found):
        problems.append(Problem(where=f"node {node.name}", why="a card is registered twice"))
    return tuple(sorted(unique.values(), key=lambda one: (one.vendor, one.index, one.uuid)))


def _held_by(pod: Pod, resource: str, problems: list[Problem]) -> Iterable[_Held]:
    if pod.annotations.get(names.POD_ALLOCATED):
        reservation = read_reservation(pod, resource)
        slots = reservation.slots
        if slots is None:
            found = pod.annotations[names.POD_ALLOCATED][:MAX_EXCERPT]
            why = f"{reservation.problem}; {names.POD_ALLOCATED} is {found!r}"
            problems.append(Problem(where=f"pod {pod.key}", why=why))
            yield from _unmatched(pod, names.POD_ALLOCATED, Vendor.NVIDIA)
        else:
            yield _Held(
                pod=pod,
                vendor=Vendor.NVIDIA,
                grants=slots.granted,
                waiting=frozenset(slots.waiting),
            )
    if pod.annotations.get(names.POD_NEURON_ALLOCATED):
        try:
            decode_grants(pod.annotations[names.POD_NEURON_ALLOCATED], names.POD_NEURON_ALLOCATED)
        except WireError as e:
            problems.append(Problem(where=f"pod {pod.key}", why=str(e)))
        yield from _unmatched(pod, names.POD_NEURON_ALLOCATED, Vendor.AWS_NEURON)


def _unmatched(pod: Pod, key: str, vendor: Vendor) -> Iterable[_Held]:
    """Grants shown by their slot, where no container could be told; nothing if undecodable."""
    try:
        slots = decode_grants(pod.annotations[key], key)
    except WireError:
        return
    grants = {f"slot {place}": slot for place, slot in enumerate(slots) if slot}
    yield _Held(pod=pod, vendor=vendor, grants=grants)


def _usage_of(devices: Sequence[Device], held: Iterable[_Held]) -> NodeUsage:
    usage = NodeUsage(devices)
    for one in held:
        kinds = {container.name: container.kind for container in one.pod.containers}
        known = {name: kinds[name] for name in one.grants if name in kinds}
        grants = PodGrants(
            containers=tuple(one.grants.values()),
            kinds=tuple(known.values()) if len(known) == len(one.grants) else (),
            are_inits_over=are_inits_over(one.pod),
        )
        usage.add(f"{one.pod.key} ({one.vendor})", grants)
    return usage


def _strangers(node: Node, usage: NodeUsage) -> Iterable[Problem]:
    for key, charge in usage.unknown:
        why = f"holds card {charge.uuid}, which node {node.name} does not have"
        yield Problem(where=f"pod {key}", why=why)
    for card in usage.cards.values():
        if card.slots_free < 0 or card.memory_free_mib < 0:
            why = f"card {card.device.index} ({card.device.uuid}) is over-committed"
            yield Problem(where=f"node {node.name}", why=why)
        if card.contradiction:
            where = f"node {node.name}, card {card.device.index}"
            yield Problem(where=where, why=card.contradiction)


def _holder_views(held: _Held, node: Node, usage: NodeUsage) -> Iterable[HolderView]:
    for container, grants in held.grants.items():
        for grant in grants:
            card = usage.cards.get(Uuid(card_of(grant.uuid)))
            yield HolderView(
                namespace=held.pod.namespace,
                pod=held.pod.name,
                container=container,
                node=node.name,
                phase=held.pod.phase,
                is_served=container not in held.waiting,
                index=card.device.index if card else None,
                uuid=grant.uuid,
                memory_mib=grant.memory_mib,
                cores=_cores(held.vendor, grant.cores),
            )


def _cores(vendor: Vendor, cores: int) -> int:
    return cores.bit_count() if vendor is Vendor.AWS_NEURON else cores


def _card_view(node: Node, card: DeviceUsage) -> CardView:
    device = card.device
    return CardView(
        node=node.name,
        index=device.index,
        uuid=device.uuid,
        model=device.model,
        vendor=device.vendor,
        mode=device.mode,
        numa=device.numa,
        is_healthy=device.healthy,
        slots=device.slots,
        slots_used=card.slots_used,
        memory_mib=device.memory_mib,
        memory_used_mib=card.memory_used_mib,
        cores=_cores(device.vendor, device.cores),
        cores_used=_cores(device.vendor, card.cores_used),
    )


def _node_view(
    node: Node, cards: int, resource: str, now_s: float, problems: list[Problem]
) -> NodeView:
    word, age_s = _handshake_of(node, now_s, problems)
    lock = node.annotations.get(names.NODE_LOCK)
    owner = decode_lock(lock) if lock is not None else None
    return NodeView(
        name=node.name,
        is_ready=node.is_ready,
        cards=cards,
        is_simulated=names.NODE_SIMULATED in node.annotations,
        handshake=word,
        handshake_age_s=age_s,
        lock="" if owner is None else (f"{owner.namespace}/{owner.name}" if owner.name else "?"),
        allocatable=node.allocatable.get(resource, ""),
        identity=node.annotations.get(names.NODE_IDENTITY, ""),
    )


def _handshake_of(node: Node, now_s: float, problems: list[Problem]) -> tuple[str, int | None]:
    for key in (names.NODE_HANDSHAKE, names.NODE_NEURON_HANDSHAKE):
        text = node.annotations.get(key)
        if text is None:
            continue
        try:
            handshake = decode_handshake(text, key)
        except WireError as e:
            problems.append(Problem(where=f"node {node.name}", why=str(e)))
            continue
        age_s = None if handshake.time_s is None else int(now_s - handshake.time_s)
        return handshake.kind, age_s
    return "", None
