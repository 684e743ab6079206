"""The cluster at one moment: all cards, and what containers hold of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from hami_node.engine.quota import Quota
from hami_node.engine.usage import DeviceUsage, NodeUsage, PodGrants, counting_of
from hami_node.metrics.cards import MAX_LABEL_CHARS, MAX_SHARES
from hami_node.model import Device, Grant, Pod, Uuid


class PodUse(NamedTuple):
    """What a pod holds on a node."""

    pod: Pod
    node: str
    grants: PodGrants


CardUse = tuple[str, DeviceUsage, bool]
"""The node of a card, what is taken of the card, and whether it is offered."""

Share = tuple[PodUse, int, Grant, Device | None]
"""What the container with that index in its pod holds of a card; None for a card that is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterUse:
    """The cluster at one moment.

    Attributes:
        offered: every offered card with what is taken of it, by node.
        pods: who holds something.
        withheld: registered cards that are not offered now, by node.
        quotas: limits and use by namespace.
    """

    offered: Mapping[str, Mapping[Uuid, DeviceUsage]]
    pods: Sequence[PodUse] = ()
    withheld: Mapping[str, Sequence[Device]] = field(default_factory=dict)
    quotas: Mapping[str, Quota] = field(default_factory=dict)

    def cards(self) -> Iterator[CardUse]:
        """Every card, node by node."""
        withheld = self._withheld()
        for node in sorted(self.offered.keys() | withheld.keys()):
            for use in self.offered.get(node, {}).values():
                yield node, use, True
            if node in withheld:
                for use in withheld[node].cards.values():
                    yield node, use, False

    def _withheld(self) -> dict[str, NodeUsage]:
        """What is taken of cards that are not offered, by node."""
        usages = {node: NodeUsage(cards) for node, cards in self.withheld.items()}
        for item in self.pods if usages else ():
            if item.node in usages:
                usages[item.node].add(item.pod.uid, item.grants)
        return usages

    def shares(self) -> Iterator[Share]:
        """What each container holds of each card; of one pod at most `MAX_SHARES`."""
        withheld = {
            node: {card.uuid: card for card in cards} for node, cards in self.withheld.items()
        }
        for item in self.pods:
            pod_shares = self._shares_of(item, withheld.get(item.node, {}))
            yield from islice(pod_shares, MAX_SHARES)

    def _shares_of(self, item: PodUse, withheld: Mapping[Uuid, Device]) -> Iterator[Share]:
        _, node, grants = item
        offered = self.offered.get(node)
        for index, held in enumerate(grants.containers):
            if not held or not grants.holds(index):
                continue
            for grant in held if len(held) == 1 else _by_card(held):
                use = offered.get(grant.uuid) if offered else None
                card = use.device if use else withheld.get(grant.uuid)
                if card is not None or len(grant.uuid) + len(node) <= 3 * MAX_LABEL_CHARS:
                    yield item, index, grant, card


def _by_card(grants: Iterable[Grant]) -> Iterable[Grant]:
    """Several grants of one card as one."""
    sums: dict[Uuid, Grant] = {}
    for grant in grants:
        known = sums.get(grant.uuid)
        if known is None:
            sums[grant.uuid] = grant
            continue
        is_mask = counting_of(grant.vendor).cores_are_mask
        cores = known.cores | grant.cores if is_mask else known.cores + grant.cores
        memory_mib = known.memory_mib + grant.memory_mib
        sums[grant.uuid] = replace(known, memory_mib=memory_mib, cores=cores)
    return sums.values()
