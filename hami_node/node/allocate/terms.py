"""On what terms containers are served: what one may ask, what it gets, what stands against that.

A resource has one of two, as long as the daemon lives. `Reserved`: a scheduler has reserved slices
in the pod's annotations, and device IDs are only tokens. `Shares`: each device ID is a share of a
card, so kubelet itself decides, and annotations say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from hami_node.engine.card_rules import rules_of
from hami_node.engine.check import check_fixed, check_reservation, is_covered
from hami_node.engine.compat import Compat
from hami_node.engine.objection import Objection
from hami_node.engine.resize import growth_objection, with_container
from hami_node.engine.usage import DeviceUsage, PodGrants
from hami_node.errors import GrantMismatch, WireError
from hami_node.model import Ask, Container, ContainerGrants, ContainerKind, Device, Pod, Uuid
from hami_node.node.allocate.refusals import RECREATE
from hami_node.node.resource import NodeResource
from hami_node.node.state import NodeState
from hami_node.record.ledger import Entry, Source
from hami_node.vendors.held_grants import HeldGrants
from hami_node.vendors.protocol import VendorProtocol
from hami_node.vendors.request import asks_of, wishes_of
from hami_node.wire import names
from hami_node.wire.reservation import count_of
from hami_node.wire.resize import decode_approval, decode_slot

NOTHING_HELD: Final = HeldGrants()
SERVED: Final = ("served",)
"""In place of device IDs that are not known."""
REST: Final = "the rest is held by containers that were served under other settings of this node"
WHOLE_CARD: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings of one call. They change with the configuration, all at once.

    Attributes:
        vendor: whose cards are asked for.
        vendors: all vendors, for a pod's asks and wishes.
    """

    vendor: VendorProtocol
    vendors: tuple[VendorProtocol, ...]
    compat: Compat


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A container that a call may be for.

    Attributes:
        held: what the pod's annotations hold of the vendor's cards.
        lender: the container whose slot is used; its own name, or for an init container without
            a slot that of an app container, whose reservation stays. "" when there is none;
            `problem` is the reason then.
        grants: what it gets.
        entry: what is on record for it, where that is what it gets again.
        is_repeat: the container was served before; it gets the same response again.
        is_spent: it has started, or its slot is empty: a call can be for it only if no other
            container waits.
        problem: why this container can't be served, for messages; "" when it can.
    """

    pod: Pod
    container: Container
    held: HeldGrants
    lender: str = ""
    grants: ContainerGrants = ()
    entry: Entry | None = None
    is_repeat: bool = False
    is_spent: bool = False
    problem: str = ""

    @property
    def name(self) -> str:
        """`namespace/pod/container`, for messages."""
        return f"{self.pod.key}/{self.container.name}"

    @property
    def is_borrowing(self) -> bool:
        """True when the slot belongs to another container."""
        return self.lender != self.container.name


def repeat_of(pod: Pod, container: Container, held: HeldGrants, entry: Entry) -> Candidate:
    """A container on record: whatever its annotations say, it gets the same again."""
    why = entry.problem
    return Candidate(
        pod=pod,
        container=container,
        held=held,
        lender=entry.lender,
        grants=entry.grants,
        entry=entry,
        is_repeat=True,
        is_spent=pod.has_started,
        problem=why and f"the record of its grants can't be read ({why})",
    )


class _Terms:
    """What both have in common.

    Attributes:
        vendor: whose cards they are, as its protocol was when the daemon started.
    """

    def __init__(
        self,
        node: NodeState,
        resource: NodeResource,
        vendor: VendorProtocol,
    ) -> None:
        """Serve containers that ask for this resource."""
        self.vendor = vendor
        self._node, self._live, self._ledger = node, node.live, node.ledger
        self._resource = resource

    def cards(self) -> Mapping[Uuid, Device]:
        """The cards that the resource offers."""
        return {card.uuid: card for card in self._resource.inventory.cards}

    def usage(self, pod: Pod) -> Mapping[Uuid, DeviceUsage]:
        """Of all cards, by the served containers of all pods but this one."""
        return self._live.cards(self._node.cards(), leave_out=pod.uid)


class Reserved(_Terms):
    """The reservation is served as it stands.

    It is emptied with the answer, and refused pods get the phase; the node lock tells who is meant
    where kubelet's list can't be read.
    """

    is_reserved = True

    def held_by(self, pod: Pod) -> HeldGrants:
        """What the pod's annotations hold for it: the reservation. Never raises."""
        return self.vendor.held_by(pod)

    def candidate(
        self, pod: Pod, container: Container, held: HeldGrants, *, is_repeat: bool = False
    ) -> Candidate:
        """The container as one that a call may be for, with its own slot or another container's.

        `is_repeat`: it was served before.
        """
        slots = held.slot_map
        lender, problem, is_spent = "", held.problem, pod.has_started
        if slots is not None and slots.grants_of(container.name) is not None:
            lender = container.name
            if not is_repeat and not slots.is_waiting(lender):
                problem, is_spent = "its reservation was used up before", True
        elif slots is not None and container.kind is ContainerKind.SIDECAR:
            problem = (
                "the scheduler reserved nothing for this sidecar, which runs beside the others: "
                "move its limits to an app container, or use a scheduler that supports sidecars"
            )
        elif slots is not None:
            count = count_of(container, self._resource.name)
            lender = next(iter(lenders(held.by_container, pod, count)), "")
            if not lender:
                problem = f"no reservation of {count} cards is left for this container"
        return Candidate(
            pod=pod,
            container=container,
            held=held,
            lender=lender,
            grants=held.by_container.get(lender, ()),
            is_repeat=is_repeat,
            is_spent=is_spent,
            problem=problem,
        )

    def is_final(self, entry: Entry, pod: Pod, held: HeldGrants, ids: frozenset[str]) -> bool:
        """True where a container that kubelet lists without IDs gets again what is on record.

        Once its slot is used up. Of what others served only a pod that runs is believed.
        """
        del ids
        is_sure = entry.source is Source.SERVED or pod.has_started
        return is_sure and not held.is_waiting(entry.container)

    def served(self, pod: Pod, held: HeldGrants) -> Mapping[str, tuple[str, ...]]:
        """A stand-in for the IDs of served containers, without kubelet's list: by used up slots."""
        del pod
        slots = held.slot_map
        if slots is None:
            return {}
        return {name: SERVED for name in slots.granted if not slots.is_waiting(name)}

    def ask(self, candidate: Candidate, rules: Rules) -> Ask:
        """What the container's own limits ask for, and the defaults for what they leave out.

        Raises:
            GrantMismatch: a limit has a value that can't be read or served.
        """
        try:
            asks = asks_of(candidate.container, rules.vendors)
        except WireError as e:
            raise GrantMismatch(f"{candidate.name}: {e}") from e
        for ask in asks:
            if ask.vendor is rules.vendor.cards:
                return ask
        raise GrantMismatch(f"{candidate.name}: it asks for no {rules.vendor.counted[0]}")

    def granted(self, candidate: Candidate, ask: Ask, device_ids: Sequence[str]) -> Candidate:
        """With all that it gets: for an init container without a slot what it borrows of an app's.

        Raises:
            GrantMismatch: there is nothing to give it.
        """
        del device_ids
        if candidate.is_repeat or not candidate.is_borrowing:
            return candidate
        held, cards = candidate.held.by_container, self.cards()
        for lender in lenders(held, candidate.pod, ask.count):
            loan = lent(held[lender], ask, cards)
            if loan is not None:
                return replace(candidate, lender=lender, grants=loan)
        raise GrantMismatch(
            f"{candidate.name}: the scheduler reserved nothing for this init container, and no app "
            f"container's reservation covers what it asks for: ask for no more than the app "
            "containers do, then delete and recreate the pod"
        )

    def objection(self, candidate: Candidate, ask: Ask, rules: Rules) -> Objection | None:
        """Why it must not be given that, now or again: its own limits, and the cards' live use.

        What was served before is no more than its limits ask for, or was approved, whatever the
        annotations say now.
        """
        pod, usage = candidate.pod, self.usage(candidate.pod)
        own = self._live.of_pod(pod, self.vendor)
        if candidate.is_repeat:
            approved = approved_grants(self.vendor, candidate, usage, own)
            return is_covered(usage, candidate.grants, ask, approved)
        wishes = wishes_of(pod.annotations, rules.vendors)
        return check_reservation(usage, candidate.grants, ask, wishes, rules.compat, own=own)


class Shares(_Terms):
    """No scheduler has reserved anything, and nothing is written to the pod but Events."""

    is_reserved = False

    def held_by(self, pod: Pod) -> HeldGrants:
        """Nothing."""
        del pod
        return NOTHING_HELD

    def candidate(
        self, pod: Pod, container: Container, held: HeldGrants, *, is_repeat: bool = False
    ) -> Candidate:
        """Its grants follow from the call's IDs."""
        return Candidate(
            pod=pod,
            container=container,
            held=held,
            lender=container.name,
            is_repeat=is_repeat,
            is_spent=pod.has_started,
        )

    def is_final(self, entry: Entry, pod: Pod, held: HeldGrants, ids: frozenset[str]) -> bool:
        """With the same IDs; with others only where it may run with what it was given.

        An answer that kubelet never received was for IDs that it may give to others now.
        """
        del held
        return pod.has_started or frozenset(entry.device_ids) == ids

    def served(self, pod: Pod, held: HeldGrants) -> Mapping[str, tuple[str, ...]]:
        """Those on record."""
        del held
        return {
            entry.container: entry.device_ids or SERVED
            for entry in self._ledger.of_pod(pod.uid)
            if entry.resource == self._resource.name
        }

    def ask(self, candidate: Candidate, rules: Rules) -> Ask:
        """A number of shares, and nothing of the vendor's beside them."""
        container, resource = candidate.container, self._resource.name
        try:
            self.vendor.refuse_beside(container, resource)
        except WireError as e:
            raise GrantMismatch(f"{candidate.name}: {e}") from e
        return Ask(vendor=rules.vendor.cards, count=count_of(container, resource))

    def granted(self, candidate: Candidate, ask: Ask, device_ids: Sequence[str]) -> Candidate:
        """The shares that the IDs name; those of one card add up to one grant."""
        if candidate.entry is not None:
            return candidate
        resource, cards = self._resource.name, self.cards()
        known = {name for card in cards.values() for name in card.device_ids}
        unknown = sorted(set(device_ids) - known)
        if unknown or len(set(device_ids)) != ask.count:
            shown = (
                f"no shares of this node's cards: {unknown[0]}" if unknown else "too few or many"
            )
            raise GrantMismatch(
                f"{candidate.name}: kubelet names {len(device_ids)} devices of {resource}, "
                f"{shown} (the container asks for {ask.count}): {RECREATE}"
            )
        try:
            grants = self.vendor.fixed_grants(resource, device_ids, cards)
        except WireError as e:
            raise GrantMismatch(f"{candidate.name}: {e}: {RECREATE}") from e
        return replace(candidate, grants=grants)

    def objection(self, candidate: Candidate, ask: Ask, rules: Rules) -> Objection | None:
        """The cards' health and live use. kubelet has counted the shares, but not other holders.

        What was given before is on record, or follows from the IDs that kubelet lists for it.
        """
        if candidate.is_repeat:
            return None
        own = self._live.of_pod(candidate.pod, self.vendor)
        usage = self.usage(candidate.pod)
        found = check_fixed(usage, candidate.grants, ask, rules.compat, own=own)
        if found is None or found.amounts is None:
            return found
        return replace(found, detail=found.detail or REST)


Terms = Reserved | Shares


# -- init containers that a scheduler left out (2.4 to 2.8) ----------------------------------------
def lenders(held: Mapping[str, ContainerGrants], pod: Pod, count: int) -> tuple[str, ...]:
    """App containers with a reservation of as many cards, in the pod's order.

    An init container runs before them and ends before they start, so the reservation stays for its
    owner. It gets what its own limits ask for, and no more, but for parts of divided cards.
    """
    return tuple(
        container.name
        for container in pod.containers
        if container.kind is ContainerKind.APP and len(held.get(container.name, ())) == count
    )


def lent(grants: ContainerGrants, ask: Ask, cards: Mapping[Uuid, Device]) -> ContainerGrants | None:
    """What the ask takes of these grants; None if any of them does not cover it.

    A grant of 0 has no limit: it covers everything. A part of a divided card is lent as a whole.
    """
    loan = []
    for grant in grants:
        card = cards.get(grant.uuid)
        if card is None:
            return None
        memory, cores = ask.memory_mib_on(card.memory_mib), min(ask.cores, WHOLE_CARD)
        if 0 < grant.memory_mib < memory or 0 < grant.cores < cores:
            return None
        is_part = rules_of(card.vendor).is_divided(card)
        loan.append(grant if is_part else replace(grant, memory_mib=memory, cores=cores))
    return tuple(loan)


# -- containers that were resized ------------------------------------------------------------------
def approved_grants(
    vendor: VendorProtocol,
    candidate: Candidate,
    cards: Mapping[Uuid, DeviceUsage],
    own: PodGrants,
) -> ContainerGrants:
    """What the container was resized to; () for one that was not.

    The ledger's note is the proof. Where the ledger was lost, the pod's approval is one as far as
    the cards have room beside what others hold: it may be forged.

    Args:
        vendor: whose cards it has.
        candidate: the container.
        cards: with what the containers of other pods hold.
        own: what those of its pod hold.
    """
    if candidate.entry is not None and candidate.entry.resize is not None:
        return candidate.grants
    pod = candidate.pod
    approval = decode_approval(pod.annotations.get(names.POD_RESIZE_APPROVED, ""), pod.uid)
    text = "" if approval is None else approval.grants.get(candidate.container.name, "")
    try:
        grants = decode_slot(text, names.POD_RESIZE_APPROVED, vendor.cards)
    except WireError:
        return ()
    nothing = PodGrants(containers=((),))
    held = with_container(own, pod.containers.index(candidate.container), grants)
    return () if growth_objection(cards, nothing, held) is not None else grants
