"""Which containers may be running with cards of a vendor, by the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hami_node.model import Container, Device, Grant, Pod, Uuid
from hami_node.ports import ContainerUse, UnreadUse
from hami_node.record.ledger import Entry, Key
from hami_node.vendors.on_node.usage import Holder
from hami_node.vendors.protocol import VendorProtocol

CARD_UNKNOWN = "card-unknown"
"""The reason where a container holds a card that this node does not offer now."""


class Holders:
    """Makes holders of entries."""

    def __init__(self, vendor: VendorProtocol) -> None:
        """Those of one vendor."""
        self._vendor = vendor
        self._known: Sequence[Entry] = ()

    def of(
        self, entries: Sequence[Entry], pods: Mapping[str, Pod], cards: Mapping[Uuid, Device]
    ) -> tuple[list[Holder], list[UnreadUse]]:
        """The containers that may be running, and those whose cards are not known in order.

        Args:
            entries: the whole ledger.
            pods: the pods of this node by uid; a pod that is missing is still being listed.
            cards: those that this node offers.
        """
        own = [entry for entry in entries if entry.vendor == self._vendor.cards.word]
        self._known = own
        holders: list[Holder] = []
        unread: list[UnreadUse] = []
        for entry in own:
            uuids = {grant.uuid for grant in entry.grants if grant.part is None}
            if not uuids or not entry.container or _has_ended(entry, pods.get(entry.pod_uid)):
                continue
            offered = [cards[uuid] for uuid in uuids if uuid in cards]
            if len(offered) < len(uuids):
                unread.append(_unknown(entry))
                offered = []  # in which order it sees them is open
            holders.append(_holder(entry, offered, _spec(entry, pods.get(entry.pod_uid))))
        return holders, unread

    def beyond(
        self,
        cards: Mapping[Uuid, Device],
        uses: Sequence[ContainerUse],
        unread: Sequence[UnreadUse],
    ) -> frozenset[Key]:
        """Which entries of the last call of `of` have more memory in force than they say.

        So may those whose file can't be read, or has their cards behind others: it may hide that.
        """
        limits = {(use.namespace, use.pod, use.container, use.uuid): use for use in uses}
        hidden = {(use.namespace, use.pod, use.container) for use in unread}
        found: set[Key] = set()
        for entry in self._known:
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


def _has_ended(entry: Entry, pod: Pod | None) -> bool:
    if pod is None:
        return False
    ended = {container.name for container in pod.containers if container.is_terminated}
    return pod.is_over or entry.container in ended


def _spec(entry: Entry, pod: Pod | None) -> Container | None:
    if pod is None:
        return None
    return next((item for item in pod.containers if item.name == entry.container), None)


def _holder(entry: Entry, cards: Sequence[Device], spec: Container | None) -> Holder:
    return Holder(
        pod_uid=entry.pod_uid,
        namespace=entry.namespace,
        pod=entry.pod,
        container=entry.container,
        cards=tuple(sorted(cards, key=lambda card: (card.index, card.uuid))),
        spec=spec,
    )


def _is_beyond(use: ContainerUse, grant: Grant, cards: Mapping[Uuid, Device]) -> bool:
    card = cards.get(grant.uuid)
    most = grant.memory_mib or (card.memory_mib if card is not None else 0)
    return bool(most) and not 0 < (use.limit_bytes or 0) <= most << 20


def _unknown(entry: Entry) -> UnreadUse:
    return UnreadUse(
        namespace=entry.namespace,
        pod=entry.pod,
        container=entry.container,
        reason=CARD_UNKNOWN,
    )
