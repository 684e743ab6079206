"""Has the parts of divided cards looked after: what nobody holds any more goes, people are told."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from hami_node.logs import kv
from hami_node.model import Pod
from hami_node.node.present import PresentPods
from hami_node.node.state import NodeState
from hami_node.node.vendor_cards import VendorCards
from hami_node.ports import EventNote
from hami_node.record.ledger import Source
from hami_node.vendors.on_node.parts import (
    CardParts,
    PartHolder,
    PartNote,
    PartsKept,
    PartsSituation,
)
from hami_node.vendors.protocol import VendorProtocol

log = logging.getLogger(__name__)

UNKNOWN_S: Final = 10.0
"""When it is asked again who is there, while that could not be told."""


class PartKeeper:
    """A step of the loop. It sleeps while no vendor of this node divides cards."""

    def __init__(self, node: NodeState) -> None:
        """Of this node."""
        self._node, self._present = node, PresentPods(node)

    def look(self) -> float | None:
        """One pass over all vendors; seconds until the next one, None for the next change."""
        owners = zip(self._node.vendor_cards, self._node.served, strict=True)
        dividing = [
            (owner, vendor, parts) for owner, vendor in owners if (parts := owner.parts) is not None
        ]
        if not dividing:
            return None
        listed = self._present.listed()
        kept = [self._kept(*each, listed) for each in dividing]
        for note in (note for each in kept for note in each.notes):
            self._tell(note)
        waits = [each.next_s for each in kept if each.next_s is not None]
        return min([*waits, UNKNOWN_S] if listed is None else waits, default=None)

    def _kept(
        self, owner: VendorCards, vendor: VendorProtocol, parts: CardParts, listed: set[str] | None
    ) -> PartsKept:
        situation = PartsSituation()
        if listed is not None:
            situation = replace(
                situation,
                holders=tuple(self._holders(owner, vendor)),
                is_held=lambda uid: self._is_held(uid, listed),
            )
        try:
            before = parts.state()
            kept = parts.keep(situation)
            if parts.state() != before:
                owner.offer_again()  # the driver's side may be the same as before
        except Exception:  # any bug: the daemon serves on
            log.exception("card_parts_broken")
            return PartsKept()
        return kept

    def _is_held(self, uid: str, listed: set[str]) -> bool:
        """Asked any time later: kubelet's list is read again before it keeps something for ever."""
        if uid in self._present.held():
            return True
        if uid not in listed or uid in self._present.over():
            return False  # before 1.34 kubelet lists pods that have ended, too
        now = self._present.listed()
        return now is None or uid in now

    def _holders(self, owner: VendorCards, vendor: VendorProtocol) -> Iterator[PartHolder]:
        """The containers on record; what one has borrowed is its lender's."""
        live, resources = self._node.live, {each.name for each in owner.resources}
        pods = {pod.uid: pod for pod in live.pods()}
        for entry in self._node.ledger.entries():
            is_own = entry.vendor == vendor.cards.word and entry.lender == entry.container
            if not is_own or entry.problem:  # its pod is held all the same: it is on record
                continue
            pod = pods.get(entry.pod_uid)
            yield PartHolder(
                pod_uid=entry.pod_uid,
                namespace=entry.namespace,
                pod=entry.pod,
                container=entry.container,
                grants=entry.grants,
                annotations=pod.annotations if pod is not None else {},
                is_adopted=entry.source is not Source.SERVED
                and entry.resource in resources  # what another plugin serves is no proof
                and live.is_listed(entry),
                answer=entry.answer,
            )

    def _tell(self, note: PartNote) -> None:
        """Say it in the log, and in an Event about the pod, or about the node."""
        fields = kv(reason=note.reason, why=note.message, pod=note.pod or None)
        log.warning("card_parts", extra=fields)
        if note.pod:
            pod = Pod(uid=note.pod_uid, namespace=note.namespace, name=note.pod)
            self._node.notify(EventNote.about(pod, note.reason, note.message))
        else:
            self._node.notify_node(note.reason, note.message)
