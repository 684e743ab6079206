"""Pods whose annotations say otherwise than the ledger. The ledger counts; people should know."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from hami_node.logs import kv
from hami_node.model import Pod
from hami_node.node.holdings.claims import Claims
from hami_node.record.ledger import Entry, Ledger
from hami_node.vendors.protocol import VendorProtocol

log = logging.getLogger(__name__)


class Drift:
    """Compares on request. Used by one thread."""

    def __init__(self, ledger: Ledger, vendors: Sequence[VendorProtocol]) -> None:
        """Compare with `ledger` what annotations claim of these vendors' cards."""
        self._ledger, self._claims = ledger, Claims(vendors)
        self._vendors = tuple(vendors)
        self._words = frozenset(vendor.cards.word for vendor in vendors)
        self._drifted: dict[str, tuple[str, ...]] = {}

    def look(self, pods: Iterable[Pod]) -> int:
        """The number of pods that differ; each is logged when that begins, changes or ends."""
        by_uid = {pod.uid: pod for pod in pods if not pod.is_over}
        found: dict[str, tuple[str, ...]] = {}
        for entry in self._ledger.entries():
            pod = by_uid.get(entry.pod_uid)
            if pod is not None and self._differs(pod, entry):
                found[pod.uid] = (*found.get(pod.uid, ()), entry.container)
        self._claims.keep(by_uid.keys())
        for uid, containers in found.items():
            if self._drifted.get(uid) != containers:
                log.warning(
                    "annotations_differ_from_record",
                    extra=kv(pod=by_uid[uid].key, containers=containers, counts="the record"),
                )
        for uid in self._drifted.keys() & by_uid.keys() - found.keys():
            log.info("annotations_as_recorded", extra=kv(pod=by_uid[uid].key))
        self._drifted = found
        return len(found)

    def _differs(self, pod: Pod, entry: Entry) -> bool:
        """An entry of no container or of a borrowed slot has nothing to be compared with.

        Nor has one of fixed shares, which are in no annotation, nor of a card that others serve.
        """
        if not entry.container or entry.lender != entry.container:
            return False
        if entry.vendor not in self._words or self._is_fixed(entry):
            return False
        claims = {claim.word: claim for claim in self._claims.of(pod)}
        claim = claims.get(entry.vendor)
        return claim is None or claim.held.by_container.get(entry.container, ()) != entry.grants

    def _is_fixed(self, entry: Entry) -> bool:
        return any(vendor.is_fixed(entry.resource) for vendor in self._vendors)
