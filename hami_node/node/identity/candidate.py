"""A container that an Allocate call may be for, and the grants that it would get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hami_node.errors import NoPendingPod
from hami_node.model import Container, ContainerGrants, ContainerKind, Pod
from hami_node.node.holdings.recorded import answer_of
from hami_node.node.identity.init_borrowing import lenders
from hami_node.record.ledger import Entry
from hami_node.vendors.held_grants import HeldGrants
from hami_node.vendors.on_node.answer import ContainerResponse, MadePart
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire.reservation import GrantKeys, count_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A container that an Allocate call may be for.

    Attributes:
        vendor: whose cards it asks for.
        held: what the pod's annotations hold of that vendor's cards.
        lender: the container whose slot is used; its own name, or for an init container without
            a slot that of an app container, whose reservation stays. "" when there is none;
            `problem` is the reason then.
        is_repeat: the container was served before; it gets the same response again.
        loan: what it gets where that is not its own slot: what it takes of its lender's grants, or
            what the ledger says it was given.
        answer: the response that it was given before; None where that is unknown.
        is_resized: the ledger has other amounts for it than it was given at first.
        is_spent: it has started, or its slot is empty: a call can be for it only if no other
            container waits.
        made: the parts of divided cards that exist for its grants, grant by grant.
        problem: why this container can't be served, for messages; "" when it can.
    """

    pod: Pod
    container: Container
    vendor: VendorProtocol
    held: HeldGrants
    lender: str = ""
    loan: ContainerGrants | None = None
    is_repeat: bool = False
    answer: ContainerResponse | None = None
    is_resized: bool = False
    is_spent: bool = False
    made: tuple[MadePart | None, ...] = ()
    problem: str = ""

    @property
    def name(self) -> str:
        """`namespace/pod/container`, for messages."""
        return f"{self.pod.key}/{self.container.name}"

    @property
    def grants(self) -> ContainerGrants:
        """What the reservation holds for the container; () when there is none."""
        if self.loan is not None:
            return self.loan
        return self.held.by_container.get(self.lender, ())

    @property
    def keys(self) -> GrantKeys:
        """The annotations that contain its grants."""
        return self.vendor.keys.grants

    @property
    def is_borrowing(self) -> bool:
        """True when the slot belongs to another container."""
        return self.lender != self.container.name


def candidate_of(
    vendor: VendorProtocol,
    pod: Pod,
    container: Container,
    held: HeldGrants,
    count: int,
    *,
    is_repeat: bool = False,
) -> Candidate:
    """The grants that a call for this container would get, or why it gets none.

    Args:
        vendor: whose cards it asks for.
        pod: its pod.
        container: the container.
        held: what the pod's annotations hold of that vendor's cards.
        count: how many cards it asks for.
        is_repeat: it was served before.
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
        lender = next(iter(lenders(held.by_container, pod, count)), "")
        if not lender:
            problem = f"no reservation of {count} cards is left for this container"
    return Candidate(
        pod=pod,
        container=container,
        vendor=vendor,
        held=held,
        lender=lender,
        is_repeat=is_repeat,
        is_spent=is_spent,
        problem=problem,
    )


def repeat_of(
    vendor: VendorProtocol, pod: Pod, container: Container, held: HeldGrants, entry: Entry
) -> Candidate:
    """A container that the ledger has: whatever its annotations say, it gets the same again."""
    why = entry.problem
    return Candidate(
        pod=pod,
        container=container,
        vendor=vendor,
        held=held,
        lender=entry.lender,
        loan=entry.grants,
        is_repeat=True,
        answer=answer_of(entry),
        is_resized=entry.resize is not None,
        is_spent=pod.has_started,
        problem=why and f"the record of its grants can't be read ({why})",
    )


def only_candidate(found: Sequence[Candidate], count: int, resource: str) -> Candidate:
    """The candidate that the call is for, distinguished by counts if necessary.

    Raises:
        NoPendingPod: there is none, or several are possible; the text names them.
    """
    if len(found) == 1:
        candidate = found[0]
        asked = count_of(candidate.container, resource)
        if asked != count:
            raise NoPendingPod(
                f"kubelet asks for {count} {resource}, and the only container that waits, "
                f"{candidate.name}, asks for {asked}: delete and recreate the pod"
            )
        return candidate
    matching = [
        candidate for candidate in found if count_of(candidate.container, resource) == count
    ]
    if len(matching) == 1:
        # The others ask for other numbers of devices: the call can't be for them.
        return matching[0]
    if not found:
        raise NoPendingPod(f"no pod waits for {count} {resource} here: delete and recreate the pod")
    listed = ", ".join(sorted(candidate.name for candidate in found))
    raise NoPendingPod(
        f"{len(found)} containers could be meant ({listed}) and hami-node does not guess: "
        "delete and recreate the pods, one at a time",
        candidates=tuple(candidate.pod for candidate in found),
        is_passing=True,
    )
