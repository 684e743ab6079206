"""Every few seconds: what containers use of their cards, and everybody of each card."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final

from hami_node.metrics.usage import Usage
from hami_node.model import Device, Grant, Pod, Uuid
from hami_node.node.holdings.pod_names import NOBODY, PodName, PodNames
from hami_node.node.state import NodeState
from hami_node.node.vendor_cards import VendorCards
from hami_node.ports import ContainerUse, HostUse, UnreadUse
from hami_node.record.ledger import Entry, Key
from hami_node.vendors.divided import DividedCards
from hami_node.vendors.on_node.usage import Holder

log = logging.getLogger(__name__)

CHECK_S: Final = 5.0
"""How soon a changed interval counts."""
CARD_UNKNOWN: Final = "card-unknown"
"""The reason where a container holds a card that this node does not offer now."""

Cards = Mapping[Uuid, Device]


class UsagePasses:
    """Looks again and again, as a step of the loop; the last result is in `usage`."""

    def __init__(self, node: NodeState, on_beyond: Callable[[Collection[Key]], None]) -> None:
        """`on_beyond` gets the containers that may have more in force than the ledger counts."""
        self._node, self._on_beyond = node, on_beyond
        self._unclear: dict[str, frozenset[Uuid]] = {}
        """By the vendor's word: cards of which the next pass has to know the processes."""
        self._last_s = -math.inf
        self._is_on = True  # what a killed daemon has told containers is taken back in any case
        self.usage = Usage()

    def look(self) -> float:
        """One pass if it is due; seconds until it is, or until the interval is read again."""
        clock = self._node.clock
        interval_s, now_s = self._node.settings().usage_interval_s, clock.monotonic()
        if self._is_on and not interval_s:
            self._pass(is_last=True)
            self.usage = Usage()
        elif interval_s and now_s - self._last_s >= interval_s:
            self._last_s = now_s
            self._pass(is_last=False)
        self._is_on = bool(interval_s)
        left_s = self._last_s + interval_s - clock.monotonic() if interval_s else CHECK_S
        return min(max(left_s, 0.01), CHECK_S)

    def end(self) -> None:
        """The last pass: what containers were told is taken back."""
        if self._node.settings().usage_interval_s:
            self._pass(is_last=True)

    def _pass(self, *, is_last: bool) -> None:
        found, beyond = list[Usage](), set[Key]()
        owners = zip(self._node.vendor_cards, self._node.served, strict=True)
        for owner, word in ((owner, vendor.cards.word) for owner, vendor in owners):
            try:
                usage, more = self._of_vendor(owner, word, is_last=is_last)
            except Exception:  # any bug: rather no numbers than no daemon
                log.exception("usage_not_read")
                continue
            found.append(usage)
            beyond |= more
        self.usage = Usage(
            containers=tuple(use for usage in found for use in usage.containers),
            unread=tuple(use for usage in found for use in usage.unread),
            hosts=tuple(host for usage in found for host in usage.hosts),
        )
        self._on_beyond(beyond)

    def _of_vendor(
        self, owner: VendorCards, word: str, *, is_last: bool
    ) -> tuple[Usage, frozenset[Key]]:
        """What is used of one vendor's cards, and who may have more in force than is on record."""
        node, cards = self._node, {card.uuid: card for card in owner.cards()}
        hosts = owner.backend.host_use(self._unclear.get(word, frozenset()))
        seen = tuple((cards[uuid], use) for uuid, use in hosts.items() if uuid in cards)
        of_parts: tuple[ContainerUse, ...] = ()
        if any(use.parts for use in hosts.values()):
            names = PodNames(node.ledger, node.live.pods).by_uid()
            of_parts = tuple(uses_of_parts(hosts, owner.divided(), names))
        if owner.usage_reader is None:
            return Usage(containers=of_parts, hosts=seen), frozenset()
        entries = [entry for entry in node.ledger.entries() if entry.vendor == word]
        holders, unread = holders_of(entries, {pod.uid: pod for pod in node.live.pods()}, cards)
        running = {uuid: use.processes or () for uuid, use in hosts.items()}
        found = owner.usage_reader.read(holders, running, is_last=is_last)
        self._unclear[word] = found.unclear
        usage = Usage(
            containers=(*found.uses, *of_parts), unread=(*found.unread, *unread), hosts=seen
        )
        return usage, beyond_record(entries, cards, found.uses, found.unread)


# -- who may be running ------------------------------------------------------------------------
def holders_of(
    entries: Sequence[Entry], pods: Mapping[str, Pod], cards: Cards
) -> tuple[list[Holder], list[UnreadUse]]:
    """The containers that may be running, and those whose cards are not known in order.

    Args:
        entries: of the vendor.
        pods: the pods of this node by uid; a pod that is missing is still being listed.
        cards: those that this node offers.
    """
    holders: list[Holder] = []
    unread: list[UnreadUse] = []
    for entry in entries:
        uuids = {grant.uuid for grant in entry.grants if grant.part is None}
        pod = pods.get(entry.pod_uid)
        containers = pod.containers if pod is not None else ()
        spec = next((item for item in containers if item.name == entry.container), None)
        is_over = pod is not None and pod.is_over
        if not uuids or not entry.container or is_over or (spec and spec.is_terminated):
            continue
        offered = [cards[uuid] for uuid in uuids if uuid in cards]
        if len(offered) < len(uuids):
            unread.append(
                UnreadUse(
                    namespace=entry.namespace,
                    pod=entry.pod,
                    container=entry.container,
                    reason=CARD_UNKNOWN,
                )
            )
            offered = []  # in which order it sees them is open
        holders.append(
            Holder(
                pod_uid=entry.pod_uid,
                namespace=entry.namespace,
                pod=entry.pod,
                container=entry.container,
                cards=tuple(sorted(offered, key=lambda card: (card.index, card.uuid))),
                spec=spec,
            )
        )
    return holders, unread


def beyond_record(
    entries: Sequence[Entry],
    cards: Cards,
    uses: Sequence[ContainerUse],
    unread: Sequence[UnreadUse],
) -> frozenset[Key]:
    """Which entries have more memory in force than they say.

    So may those whose file can't be read, or has their cards behind others: it may hide that.
    """
    limits = {(use.namespace, use.pod, use.container, use.uuid): use for use in uses}
    hidden = {(use.namespace, use.pod, use.container) for use in unread}
    found: set[Key] = set()
    for entry in entries:
        name = entry.namespace, entry.pod, entry.container
        for grant in entry.grants:
            if grant.part is not None:
                continue
            use = limits.get((*name, grant.uuid))
            is_shifted = use is not None and use.position >= len(entry.grants)
            is_beyond = use is not None and _is_beyond(use, grant, cards)
            if name in hidden or is_shifted or is_beyond:
                found.add(entry.key)
    return frozenset(found)


def _is_beyond(use: ContainerUse, grant: Grant, cards: Cards) -> bool:
    card = cards.get(grant.uuid)
    most = grant.memory_mib or (card.memory_mib if card is not None else 0)
    return bool(most) and not 0 < (use.limit_bytes or 0) <= most << 20


# -- parts of divided cards ------------------------------------------------------------------------
def uses_of_parts(
    hosts: Mapping[Uuid, HostUse], divided: DividedCards, names: Mapping[str, PodName]
) -> Iterator[ContainerUse]:
    """What containers use of the parts that they have, as the driver says; cores are not told.

    Args:
        hosts: what the driver has read, by card.
        divided: the cards whose parts these are.
        names: pods by uid.
    """
    for card in divided.cards:
        host = hosts.get(card.uuid)
        read = {(use.numbers, use.uuid): use for use in (host.parts if host else ())}
        for part in card.parts:
            use = read.get((part.numbers, part.uuid))
            namespace, pod = names.get(part.pod_uid, NOBODY)
            if use is None or use.memory_bytes is None or not pod:
                continue
            yield ContainerUse(
                namespace=namespace,
                pod=pod,
                container=part.container,
                uuid=card.uuid,
                index=card.index,
                position=part.position,
                memory_bytes=use.memory_bytes,
                context_bytes=None,
                module_bytes=None,
                data_bytes=None,
                core_percent=None,
                limit_bytes=use.limit_bytes,
                core_limit_percent=None,
                last_kernel_s=None,
                part=part.uuid,
                processes=None if use.processes is None else len(use.processes),
            )
