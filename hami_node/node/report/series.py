"""What a scrape reads of this node's state: memory alone, and nothing that Allocate waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.metrics_core import Metric

from hami_node.engine.usage import DeviceUsage, NodeUsage
from hami_node.metrics.cards import card_series, share_series
from hami_node.metrics.cluster_use import PodUse, shares_of
from hami_node.metrics.families import bounded, short
from hami_node.model import Device, Pod, Uuid
from hami_node.node.state import NodeState
from hami_node.record.ledger import Source
from hami_node.vendors.holding import holding_of
from hami_node.vendors.offer import registered_cards
from hami_node.vendors.on_node.limiter import LimiterState
from hami_node.vendors.protocol import VendorProtocol
from hami_node.vendors.spec import protocols_of


def state_series(
    node: NodeState,
    models: Mapping[Uuid, str],
    limiters: Sequence[LimiterState],
    taken: Mapping[str, bool],
) -> Iterator[Metric]:
    """Cards, registrations, the record, the limiter.

    Args:
        node: this node.
        models: the types of cards as the node object shows them.
        limiters: what limits the containers that start now.
        taken: the resources that ever were another plugin's, and whether they are now.
    """
    yield from _backends(node)
    yield from _holdings(node, models)
    yield from _registrations(node, taken)
    yield from _record(node)
    metrics = node.metrics
    infos = ((short((state.version, state.sha256)), 1) for state in limiters if state.version)
    yield metrics.gauge("limiter_info", infos)
    yield metrics.value("limiter_missing", any(state.is_missing for state in limiters))
    yield metrics.value("limiter_defective", any(state.is_defective for state in limiters))


def shown_models(node: NodeState) -> dict[Uuid, str]:
    """The types that the node object shows of our cards: their series join with others by them."""
    return {card.uuid: card.model for card in _registered(node, node.served)}


def _registered(node: NodeState, vendors: Sequence[VendorProtocol]) -> Iterable[Device]:
    shown = node.view.node()
    return () if shown is None else registered_cards(shown, vendors)


def _holdings(node: NodeState, models: Mapping[Uuid, str]) -> Iterator[Metric]:
    """This daemon's cards and those of others, and what each container holds of them."""
    cards, pods, held = node.cards(), node.live.pods(), node.live.holders()
    usage, name = node.live.cards(cards), node.metrics.node
    of_others, holders = _held_of_others(node, pods)
    every = {**{card.uuid: usage[card.uuid] for card in cards}, **of_others}
    typed = ((use, models.get(uuid, use.device.model)) for uuid, use in every.items())
    yield from card_series(name, typed)
    holders += (PodUse(pod, pod.node_name, held[pod.uid]) for pod in pods if pod.uid in held)
    shares = (share for item in holders for share in shares_of(item, every, {}))
    yield from share_series(name, shares)


def _held_of_others(
    node: NodeState, pods: Iterable[Pod]
) -> tuple[Mapping[Uuid, DeviceUsage], list[PodUse]]:
    """The cards that other plugins serve, with what pods hold of them by their annotations."""
    vendors = [vendor for vendor in node.vendors if vendor.served is None]
    others = protocols_of(vendors, node.settings())
    usage, holders = NodeUsage(_registered(node, others)), list[PodUse]()
    for pod in pods if usage.cards else ():
        holding = holding_of(pod, others)
        if holding is not None:
            usage.add(pod.uid, holding.grants)
            holders.append(PodUse(pod, pod.node_name, holding.grants))
    return usage.cards, holders


def _backends(node: NodeState) -> Iterator[Metric]:
    """What finds the cards, and the driver's errors since its session began."""
    metrics, owners = node.metrics, node.vendor_cards
    yield metrics.value("simulated", node.is_simulated)
    ages_s: dict[str, float] = {}
    for owner in owners:
        name, age_s = owner.backend.name, owner.backend.last_pass_age_s()
        ages_s[name] = max(age_s, ages_s.get(name, 0.0))
    ages = (((name,), age_s) for name, age_s in ages_s.items())
    yield metrics.gauge("backend_pass_age_seconds", ages)
    xids = {
        (str(uuid), str(code), "true" if code in owner.harmless_errors else "false"): count
        for owner in owners
        for (uuid, code), count in owner.backend.error_counts().items()
    }
    yield metrics.kept("xid_events", bounded(xids.items()).items())


def _registrations(node: NodeState, taken: Mapping[str, bool]) -> Iterator[Metric]:
    """Where kubelet stands with each resource."""
    metrics, cycles = node.metrics, {each.name: each.lifecycle for each in node.resources}
    registered = (((name,), cycle.registered.is_set()) for name, cycle in cycles.items())
    yield metrics.gauge("registered", registered)
    rows = (((name,), is_taken) for name, is_taken in taken.items())
    yield metrics.gauge("resource_taken", rows)
    counts = (
        ((name,), cycle.registrations) for name, cycle in cycles.items() if cycle.registrations
    )
    yield metrics.kept("registrations", counts)


def _record(node: NodeState) -> Iterator[Metric]:
    """What is on record, and what limits the containers that are."""
    metrics, entries = node.metrics, node.ledger.entries()
    sources = Counter(entry.source for entry in entries)
    rows = (((source.value,), sources[source]) for source in Source)
    yield metrics.gauge("record_entries", rows)
    limited = (
        ((entry.namespace, entry.pod, entry.container, *short((entry.limiter,))), 1)
        for entry in entries
        if entry.limiter
    )
    yield metrics.gauge("container_limiter_info", limited)
