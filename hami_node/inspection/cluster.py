"""What nodes have published and what pods hold.

Nothing is hidden: an annotation that can't be decoded, a grant on a card that does not exist, and a
pod whose slots don't match its containers each become a `Problem`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from hami_node.engine.card_rules import rules_of
from hami_node.engine.usage import DeviceUsage, NodeUsage
from hami_node.errors import WireError
from hami_node.inspection.shares import allocatable_shown, fixed_asks, fixed_cards
from hami_node.inspection.views import CardView, ClusterView, HolderView, NodeView, Problem
from hami_node.model import ContainerGrants, Device, Node, Pod, Uuid, Vendor
from hami_node.text import cut
from hami_node.vendors.held_grants import HeldGrants
from hami_node.vendors.holding import holding_of, keeps_inits, node_of, rerun_in_words
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names
from hami_node.wire.closed import decode_closed
from hami_node.wire.handshake import decode_handshake
from hami_node.wire.limiters import limiters_of
from hami_node.wire.lock import decode_lock
from hami_node.wire.reservation import are_inits_over

MAX_EXCERPT: Final = 200
"""Characters shown of an annotation that can't be decoded."""
MAX_SENTENCE: Final = 500
"""Characters shown of an annotation that is for people."""


def inspect(
    nodes: Iterable[Node], pods: Iterable[Pod], vendors: Sequence[VendorProtocol], now_s: float
) -> ClusterView:
    """Decode everything.

    Args:
        nodes: the nodes to show; pods elsewhere are left out.
        pods: all pods that may hold something.
        vendors: the vendors of the cards to show.
        now_s: Unix seconds, for ages.
    """
    nodes, pods = tuple(nodes), tuple(pods)
    problems: list[Problem] = []
    by_node: dict[str, list[Pod]] = {}
    for pod in sorted(pods, key=lambda pod: pod.key):
        by_node.setdefault(node_of(pod), []).append(pod)
        problems += _unclear(pod, vendors)
    node_views: list[NodeView] = []
    cards: list[CardView] = []
    holders: list[HolderView] = []
    for node in sorted(nodes, key=lambda node: node.name):
        devices = _devices_of(node, vendors, problems)
        fixed, unread = fixed_cards(node, vendors)
        problems += [Problem(where=f"node {node.name}", why=why) for why in unread]
        usage = NodeUsage(devices)
        found = _holders_on(node, by_node.get(node.name, ()), usage, vendors)
        problems += _misplaced(node, usage)
        problems += _reruns(by_node.get(node.name, ()), usage, vendors)
        reasons = _closed(node, devices, problems)
        problems += _second_allocators(node, vendors) if devices else ()
        holders += found
        uses = (*(usage.cards[device.uuid] for device in devices), *fixed)
        cards += [_card_view(node, use, reasons.get(use.device.uuid, "")) for use in uses]
        if devices or fixed or found or any(_handshake_texts(node, vendors)):
            count = len(devices) + len(fixed)
            is_alone = bool(fixed) and not devices
            view = _node_view(node, count, vendors, now_s, problems, is_standalone=is_alone)
            node_views.append(view)
    return ClusterView(
        nodes=tuple(node_views),
        cards=tuple(cards),
        holders=tuple(holders),
        problems=tuple(problems),
    )


def _holders_on(
    node: Node, pods: Iterable[Pod], usage: NodeUsage, vendors: Sequence[VendorProtocol]
) -> list[HolderView]:
    """Who holds cards of the node; what they hold by reservation is added to its use."""
    found: list[HolderView] = []
    for pod in pods:
        holding = holding_of(pod, vendors)
        if holding is not None:
            is_over = are_inits_over(pod) and not keeps_inits(node, vendors)
            usage.add(pod.key, replace(holding.grants, are_inits_over=is_over))
            found += _holder_views(pod, node, usage, vendors)
        found += _share_views(pod, node, vendors)
    return found


def _reruns(
    pods: Iterable[Pod], usage: NodeUsage, vendors: Sequence[VendorProtocol]
) -> Iterable[Problem]:
    for pod in pods:
        holding = holding_of(pod, vendors)
        if holding is None or not holding.is_bound:
            continue
        if why := rerun_in_words(pod, holding.grants, usage.cards):
            yield Problem(where=f"pod {pod.key}", why=why)


def _second_allocators(node: Node, vendors: Iterable[VendorProtocol]) -> Iterable[Problem]:
    for vendor in vendors:
        if why := vendor.rival_on(node):
            yield Problem(where=f"node {node.name}", why=why)


def _devices_of(
    node: Node, vendors: Iterable[VendorProtocol], problems: list[Problem]
) -> list[Device]:
    found: list[Device] = []
    for vendor in vendors:
        try:
            found += vendor.registered_on(node)
        except WireError as e:
            problems.append(Problem(where=f"node {node.name}", why=str(e)))
    return sorted(found, key=lambda device: (device.vendor.word, device.index, device.uuid))


def _share_views(pod: Pod, node: Node, vendors: Iterable[VendorProtocol]) -> Iterable[HolderView]:
    for container, shares in () if pod.is_over else fixed_asks(pod, vendors):
        yield HolderView(
            namespace=pod.namespace,
            pod=pod.name,
            container=container,
            node=node.name,
            phase=pod.phase,
            is_served=pod.has_started,
            shares=shares,
        )


def _unclear(pod: Pod, vendors: Iterable[VendorProtocol]) -> Iterable[Problem]:
    """Grants that can't be read, or that match no container."""
    for vendor in vendors:
        key = vendor.keys.grants.allocated
        text = pod.annotations.get(key)
        problem = vendor.held_by(pod).problem if text and not pod.is_over else ""
        if text and problem:
            why = f"{problem}; {key} is {cut(text, MAX_EXCERPT)!r}"
            yield Problem(where=f"pod {pod.key}", why=why)


def _misplaced(node: Node, usage: NodeUsage) -> Iterable[Problem]:
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


def _closed(node: Node, devices: Iterable[Device], problems: list[Problem]) -> Mapping[Uuid, str]:
    """Why cards are unhealthy or closed, as their daemon says; also added to the problems."""
    where = f"node {node.name}"
    try:
        reasons = decode_closed(node.annotations)
    except WireError as e:
        problems.append(Problem(where=where, why=str(e)))
        return {}
    indexes: dict[str, int] = {device.uuid: device.index for device in devices}
    found: dict[Uuid, str] = {}
    for uuid, why in sorted(reasons.items()):
        card = f"{where}, card {indexes[uuid]}" if uuid in indexes else f"{where}, card {uuid}"
        found[Uuid(uuid)] = cut(why, MAX_SENTENCE)
        problems.append(Problem(where=card, why=found[Uuid(uuid)]))
    return found


def _holder_views(
    pod: Pod, node: Node, usage: NodeUsage, vendors: Iterable[VendorProtocol]
) -> Iterable[HolderView]:
    limiters = limiters_of(pod.annotations)
    for vendor in vendors:
        held = vendor.held_by(pod)
        for container, grants in _by_container(held).items():
            for grant in grants:
                card = usage.cards.get(grant.uuid)
                yield HolderView(
                    namespace=pod.namespace,
                    pod=pod.name,
                    container=container,
                    node=node.name,
                    phase=pod.phase,
                    is_served=not held.is_waiting(container),
                    index=card.device.index if card else None,
                    uuid=vendor.uuid_of(grant),
                    memory_mib=grant.memory_mib,
                    cores=shown_cores(grant.vendor, grant.cores),
                    limiter=limiters.get(container, ""),
                )


def _by_container(held: HeldGrants) -> Mapping[str, ContainerGrants]:
    """Grants by container, or by slot where the container is unknown."""
    if held.by_container:
        return held.by_container
    return {f"slot {number}": slot for number, slot in enumerate(held.slots) if slot}


def shown_cores(vendor: Vendor | str, cores: int) -> int:
    """The percentage as it is; for a mask its number of cores."""
    return cores.bit_count() if rules_of(vendor).cores_are_mask else cores


def _card_view(node: Node, card: DeviceUsage, why: str) -> CardView:
    device = card.device
    return CardView(
        node=node.name,
        index=device.index,
        uuid=device.uuid,
        model=device.model,
        vendor=device.vendor.word,
        mode=device.mode,
        numa=device.numa,
        is_healthy=device.healthy,
        slots=device.slots,
        slots_used=card.slots_used,
        memory_mib=device.memory_mib,
        memory_used_mib=card.memory_used_mib,
        cores=shown_cores(device.vendor, device.cores),
        cores_used=shown_cores(device.vendor, card.cores_used),
        why=why or ("" if device.healthy else device.unhealthy_reason),
    )


def _node_view(
    node: Node,
    cards: int,
    vendors: Sequence[VendorProtocol],
    now_s: float,
    problems: list[Problem],
    *,
    is_standalone: bool,
) -> NodeView:
    word, age_s = _handshake_of(node, vendors, now_s, problems)
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
        allocatable=allocatable_shown(node, vendors),
        identity=node.annotations.get(names.NODE_IDENTITY, ""),
        limiter=cut(node.annotations.get(names.NODE_LIMITER, ""), MAX_EXCERPT),
        hand_over=cut(node.annotations.get(names.NODE_HAND_OVER, ""), MAX_SENTENCE),
        is_standalone=is_standalone,
    )


def _handshake_texts(node: Node, vendors: Iterable[VendorProtocol]) -> Iterable[tuple[str, str]]:
    """Each handshake of the node, with its annotation."""
    for vendor in vendors:
        text = node.annotations.get(vendor.keys.handshake)
        if text is not None:
            yield vendor.keys.handshake, text


def _handshake_of(
    node: Node, vendors: Iterable[VendorProtocol], now_s: float, problems: list[Problem]
) -> tuple[str, int | None]:
    """The kind of the first handshake that can be read, and its age."""
    for key, text in _handshake_texts(node, vendors):
        try:
            handshake = decode_handshake(text, key)
        except WireError as e:
            problems.append(Problem(where=f"node {node.name}", why=str(e)))
            continue
        age_s = None if handshake.time_s is None else int(now_s - handshake.time_s)
        return handshake.kind, age_s
    return "", None
