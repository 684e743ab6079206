"""What a scrape reads of this node's state: memory alone, and nothing that Allocate waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric

from hami_node.engine.usage import DeviceUsage, NodeUsage
from hami_node.metrics.cards import card_series, share_series
from hami_node.metrics.cluster_use import PodUse, shares_of
from hami_node.metrics.daemon import DaemonMetrics
from hami_node.metrics.families import bounded, short
from hami_node.model import Device, Node, Pod, Uuid
from hami_node.node.holdings.live_use import LiveUse
from hami_node.node.vendor_cards import VendorCards
from hami_node.record.ledger import Entry, Source
from hami_node.vendors.holding import holding_of
from hami_node.vendors.offer import registered_cards
from hami_node.vendors.on_node.limiter import LimiterState
from hami_node.vendors.protocol import VendorProtocol


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCards:
    """The cards that the annotations of the node object list.

    Attributes:
        node: the node object; None while it is unknown.
        served: vendors whose cards this daemon serves.
        others: vendors whose cards other device plugins serve.
    """

    node: Callable[[], Node | None] = lambda: None
    served: Sequence[VendorProtocol] = ()
    others: Sequence[VendorProtocol] = ()

    def models(self) -> dict[Uuid, str]:
        """The types of those that this daemon serves: its series join with others by them."""
        return {card.uuid: card.model for card in self._read(self.served)}

    def of_others(self, pods: Iterable[Pod]) -> tuple[Mapping[Uuid, DeviceUsage], list[PodUse]]:
        """Those that others serve, with what pods hold of them by their annotations."""
        usage, holders = NodeUsage(self._read(self.others)), list[PodUse]()
        for pod in pods if usage.cards else ():
            holding = holding_of(pod, self.others)
            if holding is not None:
                usage.add(pod.uid, holding.grants)
                holders.append(PodUse(pod, pod.node_name, holding.grants))
        return usage.cards, holders

    def _read(self, vendors: Iterable[VendorProtocol]) -> Iterable[Device]:
        node = self.node()
        return () if node is None else registered_cards(node, vendors)


def holdings(
    metrics: DaemonMetrics, cards: tuple[Device, ...], live: LiveUse, shown: NodeCards
) -> Iterator[Metric]:
    """This daemon's cards and those of others, and what each container holds of them."""
    pods, usage, held = live.pods(), live.cards(cards), live.holders()
    of_others, holders = shown.of_others(pods)
    every = {**{card.uuid: usage[card.uuid] for card in cards}, **of_others}
    models = shown.models()
    typed = ((use, models.get(uuid, use.device.model)) for uuid, use in every.items())
    yield from card_series(metrics.node, typed)
    holders += (PodUse(pod, pod.node_name, held[pod.uid]) for pod in pods if pod.uid in held)
    shares = (share for item in holders for share in shares_of(item, every, {}))
    yield from share_series(metrics.node, shares)


def backends(metrics: DaemonMetrics, owners: Sequence[VendorCards]) -> Iterator[Metric]:
    """What finds the cards, and the driver's errors since its session began."""
    is_simulated = any(owner.backend.is_simulated for owner in owners)
    yield metrics.value("simulated", is_simulated)
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


def registrations(
    metrics: DaemonMetrics, owners: Sequence[VendorCards], taken: Mapping[str, bool]
) -> Iterator[Metric]:
    """Where kubelet stands with each resource; `taken` are those that ever were another's."""
    cycles = {each.name: each.lifecycle for owner in owners for each in owner.resources}
    registered = (((name,), cycle.registered.is_set()) for name, cycle in cycles.items())
    yield metrics.gauge("registered", registered)
    rows = (((name,), is_taken) for name, is_taken in taken.items())
    yield metrics.gauge("resource_taken", rows)
    counts = (
        ((name,), cycle.registrations) for name, cycle in cycles.items() if cycle.registrations
    )
    yield metrics.kept("registrations", counts)


def recorded(metrics: DaemonMetrics, entries: Sequence[Entry], drifted: int) -> Iterator[Metric]:
    """What is on record, and what limits the containers that are."""
    sources = Counter(entry.source for entry in entries)
    rows = (((source.value,), sources[source]) for source in Source)
    yield metrics.gauge("record_entries", rows)
    yield metrics.value("record_drift_pods", drifted)
    limited = (
        ((entry.namespace, entry.pod, entry.container, *short((entry.limiter,))), 1)
        for entry in entries
        if entry.limiter
    )
    yield metrics.gauge("container_limiter_info", limited)


def limiters(metrics: DaemonMetrics, states: Sequence[LimiterState]) -> Iterator[Metric]:
    """What limits the containers that start now."""
    infos = ((short((state.version, state.sha256)), 1) for state in states if state.version)
    yield metrics.gauge("limiter_info", infos)
    yield metrics.value("limiter_missing", any(state.is_missing for state in states))
    yield metrics.value("limiter_defective", any(state.is_defective for state in states))
