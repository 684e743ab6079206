"""Fixed shares: the device IDs that kubelet hands out are what a container gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from hami_node.clock import Deadline
from hami_node.engine.check import check_fixed
from hami_node.engine.objection import Objection
from hami_node.engine.ranking import BINPACK
from hami_node.errors import GrantMismatch, WireError
from hami_node.model import Ask, Pod
from hami_node.node.allocate.pod_writer import PodWriter
from hami_node.node.allocate.terms import AllocateRules, CardState
from hami_node.node.cards.preference import CardChoice, choose_ids
from hami_node.node.identity.candidate import Candidate
from hami_node.node.identity.refusals import RECREATE
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire.reservation import count_of

REST: Final = "the rest is held by containers that were served under other settings of this node"


class ShareTerms:
    """No scheduler has reserved anything, and nothing is written to the pod but Events."""

    def __init__(self, state: CardState, vendor: VendorProtocol, writer: PodWriter) -> None:
        """Serve a resource of fixed shares."""
        self._state, self._vendor, self._resource = state, vendor, state.resource.name
        self._writer = writer

    def ask(self, candidate: Candidate, rules: AllocateRules) -> Ask:
        """A number of shares, and nothing of the vendor's beside them."""
        container = candidate.container
        try:
            self._vendor.refuse_beside(container, self._resource)
        except WireError as e:
            raise GrantMismatch(f"{candidate.name}: {e}") from e
        return Ask(vendor=rules.vendor.cards, count=count_of(container, self._resource))

    def granted(self, candidate: Candidate, ask: Ask, device_ids: Sequence[str]) -> Candidate:
        """The shares that the IDs name; those of one card add up to one grant."""
        if candidate.loan is not None:  # on record
            return candidate
        cards = self._state.by_uuid()
        known = {name for card in cards.values() for name in card.device_ids}
        unknown = sorted(set(device_ids) - known)
        if unknown or len(set(device_ids)) != ask.count:
            shown = (
                f"no shares of this node's cards: {unknown[0]}" if unknown else "too few or many"
            )
            raise GrantMismatch(
                f"{candidate.name}: kubelet names {len(device_ids)} devices of {self._resource}, "
                f"{shown} (the container asks for {ask.count}): {RECREATE}"
            )
        try:
            held = self._vendor.fixed_grants(self._resource, device_ids, cards)
            return replace(candidate, loan=held)
        except WireError as e:
            raise GrantMismatch(f"{candidate.name}: {e}: {RECREATE}") from e

    def objection(self, candidate: Candidate, ask: Ask, rules: AllocateRules) -> Objection | None:
        """The cards' health and live use. kubelet has counted the shares, but not other holders."""
        pod = candidate.pod
        found = check_fixed(
            self._state.usage(pod.uid),
            candidate.grants,
            ask,
            rules.compat,
            own=self._state.live.of_pod(pod, rules.vendor),
        )
        if found is None or found.amounts is None:
            return found
        return replace(found, detail=found.detail or REST)

    def repeat_objection(self, candidate: Candidate, ask: Ask) -> Objection | None:
        """What it was given is on record, or follows from the IDs that kubelet lists for it."""
        del candidate, ask
        return None

    def prefer(
        self, available: Sequence[str], must: Sequence[str], size: int, deadline: Deadline
    ) -> list[str]:
        """Distinct cards where there are enough, linked; else the fullest first."""
        del deadline
        return choose_ids(
            available, must, size, choice=fullest_first(self._state.resource.choice())
        )

    def commit(self, candidate: Candidate, deadline: Deadline, limiter: str) -> None:
        """The ledger has it: nothing to write."""
        del candidate, deadline, limiter

    def refuse(self, pod: Pod, why: str) -> None:
        """An Event."""
        self._writer.tell(pod, why)


def fullest_first(choice: CardChoice) -> CardChoice:
    """Whatever the node's policy: an empty card can still be cut into shares of another size."""
    return replace(choice, policy=BINPACK)
