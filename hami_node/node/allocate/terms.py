"""On what terms a container is served: what it may ask, what it gets, what is written for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from hami_node.clock import Deadline
from hami_node.engine.check import check_reservation, is_covered
from hami_node.engine.compat import Compat
from hami_node.engine.objection import Objection
from hami_node.engine.usage import DeviceUsage
from hami_node.errors import GrantMismatch, WireError
from hami_node.model import Ask, Device, Pod, Uuid
from hami_node.node.allocate.approved import approved_grants
from hami_node.node.allocate.pod_writer import PodWriter
from hami_node.node.cards.preference import choose_ids
from hami_node.node.holdings.live_use import LiveUse
from hami_node.node.identity.candidate import Candidate
from hami_node.node.identity.identity import Identity
from hami_node.node.identity.init_borrowing import lenders, lent
from hami_node.node.parts import NodeParts
from hami_node.node.resource import NodeResource
from hami_node.vendors.protocol import VendorProtocol
from hami_node.vendors.request import asks_of, wishes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateRules:
    """The settings of an Allocate. They change with the configuration, all at once.

    Attributes:
        vendor: whose cards are asked for.
        vendors: all vendors, for a pod's asks and wishes.
    """

    vendor: VendorProtocol
    vendors: tuple[VendorProtocol, ...]
    compat: Compat


@dataclass(frozen=True, slots=True)
class CardState:
    """The cards of a resource, and what containers hold of all cards of this node."""

    parts: NodeParts
    live: LiveUse
    resource: NodeResource

    def by_uuid(self) -> Mapping[Uuid, Device]:
        """The cards that the resource offers."""
        return {card.uuid: card for card in self.resource.inventory.cards}

    def usage(self, leave_out: str) -> Mapping[Uuid, DeviceUsage]:
        """Of all cards, by the served containers of all pods but the one with this uid."""
        return self.live.cards(self.parts.cards(), leave_out=leave_out)


class Terms(Protocol):
    """How the containers of one resource are served."""

    def ask(self, candidate: Candidate, rules: AllocateRules) -> Ask:
        """What the container's own limits ask for.

        Raises:
            GrantMismatch: a limit has a value that can't be read or served.
        """

    def granted(self, candidate: Candidate, ask: Ask, device_ids: Sequence[str]) -> Candidate:
        """The container with all that it is to be given.

        Raises:
            GrantMismatch: there is nothing to give it.
        """

    def objection(self, candidate: Candidate, ask: Ask, rules: AllocateRules) -> Objection | None:
        """Why it must not be given that now; None if it may."""

    def repeat_objection(self, candidate: Candidate, ask: Ask) -> Objection | None:
        """Why a container that was served before must not be given the same again."""

    def prefer(
        self, available: Sequence[str], must: Sequence[str], size: int, deadline: Deadline
    ) -> list[str]:
        """The device IDs that kubelet should take. Raises HamiError where that is unknown."""

    def commit(self, candidate: Candidate, deadline: Deadline, limiter: str) -> None:
        """Write down for others that it is served, and with which limiter; or else it isn't.

        Raises:
            GrantMismatch: the pod is no longer what it was.
            KubeError: it can't be written in time.
        """

    def refuse(self, pod: Pod, why: str) -> None:
        """Have the pod told about the refusal. Never raises or waits."""


class ReservedTerms:
    """A scheduler has reserved a slice in the pod's annotations, which is served as it stands."""

    def __init__(self, state: CardState, identity: Identity, writer: PodWriter) -> None:
        """Use these parts."""
        self._state, self._identity, self._writer = state, identity, writer

    def ask(self, candidate: Candidate, rules: AllocateRules) -> Ask:
        """Amounts by the container's limits, and the defaults for what it leaves out."""
        try:
            asks = asks_of(candidate.container, rules.vendors)
        except WireError as e:
            raise GrantMismatch(f"{candidate.name}: {e}") from e
        for ask in asks:
            if ask.vendor is rules.vendor.cards:
                return ask
        raise GrantMismatch(f"{candidate.name}: it asks for no {rules.vendor.counted[0]}")

    def granted(self, candidate: Candidate, ask: Ask, device_ids: Sequence[str]) -> Candidate:
        """The reservation; for an init container without one what it borrows of an app's."""
        del device_ids
        if candidate.is_repeat or not candidate.is_borrowing:
            return candidate
        held = candidate.held.by_container
        cards = self._state.by_uuid()
        for lender in lenders(held, candidate.pod, ask.count):
            loan = lent(held[lender], ask, cards)
            if loan is not None:
                return replace(candidate, lender=lender, loan=loan)
        raise GrantMismatch(
            f"{candidate.name}: the scheduler reserved nothing for this init container, and no app "
            f"container's reservation covers what it asks for: ask for no more than the app "
            "containers do, then delete and recreate the pod"
        )

    def objection(self, candidate: Candidate, ask: Ask, rules: AllocateRules) -> Objection | None:
        """The reservation against the container's own limits and the cards' live use."""
        pod = candidate.pod
        return check_reservation(
            self._state.usage(pod.uid),
            candidate.grants,
            ask,
            wishes_of(pod.annotations, rules.vendors),
            rules.compat,
            own=self._state.live.of_pod(pod, rules.vendor),
        )

    def repeat_objection(self, candidate: Candidate, ask: Ask) -> Objection | None:
        """No more than its limits ask for, or was approved, whatever the annotations say now."""
        usage = self._state.usage(candidate.pod.uid)
        own = self._state.live.of_pod(candidate.pod, candidate.vendor)
        return is_covered(usage, candidate.grants, ask, approved_grants(candidate, usage, own))

    def prefer(
        self, available: Sequence[str], must: Sequence[str], size: int, deadline: Deadline
    ) -> list[str]:
        """IDs on the reserved cards first, so that kubelet, scheduler and container agree."""
        grants = self._identity.find_next(size, must, deadline).grants
        reserved = [grant.uuid for grant in grants]
        return choose_ids(
            available, must, size, reserved=reserved, choice=self._state.resource.choice()
        )

    def commit(self, candidate: Candidate, deadline: Deadline, limiter: str) -> None:
        """Empty its slot in the annotations."""
        self._writer.commit(candidate, deadline, limiter)

    def refuse(self, pod: Pod, why: str) -> None:
        """The phase, the lock and an Event."""
        self._writer.fail(pod, why)
