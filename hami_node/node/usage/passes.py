"""Every few seconds: what containers use of their cards, and everybody of each card."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from typing import Final

from hami_node.metrics.usage import Usage
from hami_node.model import Uuid
from hami_node.node.holdings.live_use import LiveUse
from hami_node.node.holdings.pod_names import PodNames
from hami_node.node.parts import ClusterParts, NodeParts
from hami_node.node.usage.holders import Holders
from hami_node.node.usage.parts import uses_of_parts
from hami_node.node.vendor_cards import VendorCards
from hami_node.ports import ContainerUse, HostUse
from hami_node.record.ledger import Key, Ledger
from hami_node.vendors.on_node.usage import UsageReader
from hami_node.vendors.protocol import VendorProtocol

log = logging.getLogger(__name__)

CHECK_S: Final = 5.0
"""How soon a changed interval counts."""


Found = tuple[Usage, frozenset[Key]]
"""What is used, and containers that may have more memory in force than the ledger counts."""


class _OfVendor:
    """One vendor's cards, holders and reader."""

    def __init__(self, owner: VendorCards, protocol: VendorProtocol) -> None:
        self._owner = owner
        self._holders = Holders(protocol)
        self._reader: UsageReader | None = owner.usage_reader
        self._unclear: frozenset[Uuid] = frozenset()

    def look(self, ledger: Ledger, live: LiveUse, names: PodNames, *, is_last: bool) -> Found:
        cards = {card.uuid: card for card in self._owner.cards()}
        hosts = self._owner.backend.host_use(self._unclear)
        seen = tuple((cards[uuid], use) for uuid, use in hosts.items() if uuid in cards)
        of_parts = self._of_parts(hosts, names)
        if self._reader is None:
            return Usage(containers=of_parts, hosts=seen), frozenset()
        pods = {pod.uid: pod for pod in live.pods()}
        holders, unread = self._holders.of(ledger.entries(), pods, cards)
        running = {uuid: use.processes or () for uuid, use in hosts.items()}
        found = self._reader.read(holders, running, is_last=is_last)
        self._unclear = found.unclear
        beyond = self._holders.beyond(cards, found.uses, found.unread)
        uses, lost = (*found.uses, *of_parts), (*found.unread, *unread)
        return Usage(containers=uses, unread=lost, hosts=seen), beyond

    def _of_parts(self, hosts: Mapping[Uuid, HostUse], names: PodNames) -> tuple[ContainerUse, ...]:
        if not any(use.parts for use in hosts.values()):
            return ()
        return tuple(uses_of_parts(hosts, self._owner.divided(), names.by_uid()))


class UsagePasses:
    """Looks again and again, as a step of the loop; the last result is in `usage`."""

    def __init__(
        self,
        parts: NodeParts,
        cluster: ClusterParts,
        on_beyond: Callable[[Collection[Key]], None] = lambda _: None,
    ) -> None:
        """Wire the sources.

        `on_beyond` gets the containers that may have more in force than the ledger counts.
        """
        self._on_beyond = on_beyond
        self._settings, self._clock = parts.settings, parts.clock
        self._ledger, self._live = cluster.ledger, cluster.live
        self._names = PodNames(cluster.ledger, cluster.live.pods)
        pairs = zip(parts.vendor_cards, cluster.served, strict=True)
        self._vendors = tuple(_OfVendor(owner, protocol) for owner, protocol in pairs)
        self._last_s = -math.inf
        self._is_on = True  # what a killed daemon has told containers is taken back in any case
        self.usage = Usage()

    def look_if_due(self) -> float:
        """One pass if it is due; seconds until it is, or until the interval is read again."""
        interval_s, now_s = self._settings().usage_interval_s, self._clock.monotonic()
        if self._is_on and not interval_s:
            self.look(is_last=True)
            self.usage = Usage()
        elif interval_s and now_s - self._last_s >= interval_s:
            self._last_s = now_s
            self.look()
        self._is_on = bool(interval_s)
        left_s = self._last_s + interval_s - self._clock.monotonic() if interval_s else CHECK_S
        return min(max(left_s, 0.01), CHECK_S)

    def end(self) -> None:
        """The last pass: what containers were told is taken back."""
        if self._settings().usage_interval_s:
            self.look(is_last=True)

    def look(self, *, is_last: bool = False) -> None:
        """One pass."""
        found = [self._look_at(each, is_last=is_last) for each in self._vendors]
        self.usage = Usage(
            containers=tuple(use for usage, _ in found for use in usage.containers),
            unread=tuple(use for usage, _ in found for use in usage.unread),
            hosts=tuple(host for usage, _ in found for host in usage.hosts),
        )
        self._on_beyond(frozenset(key for _, beyond in found for key in beyond))

    def _look_at(self, vendor: _OfVendor, *, is_last: bool) -> Found:
        try:
            return vendor.look(self._ledger, self._live, self._names, is_last=is_last)
        except Exception:  # any bug: rather no numbers than no daemon
            log.exception("usage_not_read")
            return Usage(), frozenset()
