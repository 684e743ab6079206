"""Divided cards for people: in the metrics, and on the page with the settings in force."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from prometheus_client.metrics_core import Metric

from hami_node.config.settings import MetricNames
from hami_node.metrics.daemon import DaemonMetrics
from hami_node.metrics.families import Row, gauge, short
from hami_node.metrics.usage import ZONE
from hami_node.node.holdings.pod_names import NOBODY, PodName, PodNames
from hami_node.node.report.part_errors import PartErrorLabels
from hami_node.node.state import NodeState
from hami_node.vendors.divided import DividedCards, PartState, PartView
from hami_node.vendors.protocol import VendorProtocol

HOLDER: Final = (
    ("zone", "namespace", "pod", "container", "vdevice_index"),
    ("zone", "podnamespace", "podname", "ctrname", "vdeviceid"),
)
"""The first labels that HAMi's monitor has for a part, and those from before 2.9."""
PART_DOC: Final = "1 for each part of a divided card that a container has."


def divided_series(node: NodeState, errors: Mapping[PartErrorLabels, int]) -> Iterator[Metric]:
    """All families, those without divided cards empty; `errors` the driver has blamed on parts."""
    metrics, settings = node.metrics, node.settings()
    owners = zip(node.vendor_cards, node.served, strict=True)
    found = [(owner.divided(), protocol) for owner, protocol in owners]
    names: Mapping[str, PodName] = {}
    if any(divided.cards for divided, _ in found):
        names = PodNames(node.ledger, node.view.pods).by_uid()
    yield from _cards(metrics, [divided for divided, _ in found], names)
    failures = {key: count for each, _ in found for key, count in each.failures.items()}
    yield metrics.kept("part_call_failures", failures.items())
    yield metrics.kept("container_part_xid_events", errors.items())
    if settings.usage_metrics in (MetricNames.HAMI, MetricNames.BOTH):
        yield from _monitor(found, names, is_legacy=False)
    if settings.legacy_metrics:
        yield from _monitor(found, names, is_legacy=True)


def divided_details(node: NodeState) -> Mapping[str, object]:
    """For the page with the settings in force, by the names of the resources; {} for none."""
    shown = {owner.names: owner.divided() for owner in node.vendor_cards}
    cards = {names: _plain(divided) for names, divided in shown.items() if divided.cards}
    return {"divided-cards": cards} if cards else {}


def _cards(
    metrics: DaemonMetrics, found: Sequence[DividedCards], names: Mapping[str, PodName]
) -> Iterator[Metric]:
    cards = [card for divided in found for card in divided.cards]
    modes = (((card.uuid, str(card.index), card.mode, card.pending), 1) for card in cards)
    yield metrics.gauge("card_mode_info", modes)
    counts = (
        ((card.uuid, str(card.index), state.value), [p.state for p in card.parts].count(state))
        for card in cards
        for state in PartState
    )
    yield metrics.gauge("card_parts", counts)
    parts = [part for card in cards for part in card.parts]
    yield metrics.gauge("part_info", ((_facts(part), 1) for part in parts))
    holders = (_holder(part, names.get(part.pod_uid, NOBODY)) for part in parts)
    had = ((labels, 1) for labels in holders if labels[1])
    yield metrics.gauge("container_part_info", had)


def _facts(part: PartView) -> tuple[str, ...]:
    place = f"{part.start}+{part.size}"
    return short((part.card, part.uuid, part.kind, place, part.state.value))


def _holder(part: PartView, pod: PodName) -> tuple[str, ...]:
    return short((*pod, part.container, part.card, part.uuid))


def _monitor(
    found: Iterable[tuple[DividedCards, VendorProtocol]],
    names: Mapping[str, PodName],
    *,
    is_legacy: bool,
) -> Iterator[Metric]:
    """The parts that containers have, under HAMi's names."""
    families: dict[str, tuple[tuple[str, ...], list[Row]]] = {}
    for divided, protocol in found:
        for part in divided.parts:
            pod, info = names.get(part.pod_uid, NOBODY), None
            if pod != NOBODY:
                info = protocol.part_info(part, is_legacy=is_legacy)
            if info is not None:
                name, facts = info
                labels = (*HOLDER[is_legacy], *facts)
                whose = (ZONE, *pod, part.container, str(part.position))
                rows = families.setdefault(name, (labels, []))[1]
                rows.append((short((*whose, *facts.values())), 1))
    for name, (labels, rows) in families.items():
        yield gauge(name, PART_DOC, labels, rows)


def _plain(divided: DividedCards) -> Mapping[str, object]:
    failures = {f"{name}: {why}": count for (name, why), count in divided.failures.items()}
    cards = msgspec.to_builtins(divided.cards)
    return {"failures": failures, "cards": cards}
