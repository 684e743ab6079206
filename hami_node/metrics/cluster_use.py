"""Cards at one moment, of a node or of the cluster, and what containers hold of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, NamedTuple

from hami_node.engine.quota import Quota
from hami_node.engine.usage import DeviceUsage, NodeUsage, PodGrants, counting_of
from hami_node.model import Device, Grant, Pod, Uuid, Vendor

MIB: Final = 1024 * 1024
MAX_LABEL_CHARS: Final = 120
MAX_SHARES: Final = 128
"""Shares of one pod that are shown: 16 cards by 8 containers. Its annotations can claim more."""


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
        """What each container holds of each card."""
        withheld = {
            node: {card.uuid: card for card in cards} for node, cards in self.withheld.items()
        }
        for item in self.pods:
            yield from shares_of(item, self.offered.get(item.node, {}), withheld.get(item.node, {}))


def shares_of(
    item: PodUse, offered: Mapping[Uuid, DeviceUsage], withheld: Mapping[Uuid, Device]
) -> Iterator[Share]:
    """What each container of a pod holds of each of its node's cards; at most `MAX_SHARES`."""
    return islice(_shares_of(item, offered, withheld), MAX_SHARES)


def _shares_of(
    item: PodUse, offered: Mapping[Uuid, DeviceUsage], withheld: Mapping[Uuid, Device]
) -> Iterator[Share]:
    _, node, grants = item
    for index, held in enumerate(grants.containers):
        if not held or not grants.holds(index):
            continue
        for grant in held if len(held) == 1 else _by_card(held):
            use = offered.get(grant.uuid)
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


def held_mib(grant: Grant, card: Device | None) -> int:
    """The memory of a grant; without an amount that is all of the card's, 0 if it is gone."""
    return grant.memory_mib or (card.memory_mib if card else 0)


def cores_ratio(vendor: Vendor | str, cores: int, card: Device | None) -> float | None:
    """Cores as a share of a whole card; None for a card that is gone or has none."""
    counting = counting_of(vendor)
    whole = counting.whole_card(card)
    return counting.core_count(cores) / whole if whole else None


def numbered_cores(cores: int, granted: int) -> Iterator[tuple[int, bool]]:
    """Each core of a mask, and whether it is granted."""
    for core in range(cores.bit_length()):
        if cores >> core & 1:
            yield core, bool(granted >> core & 1)
