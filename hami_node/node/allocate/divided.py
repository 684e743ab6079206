"""Parts of divided cards, made for a container before its answer."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Final

from hami_node.clock import Deadline
from hami_node.engine.card_rules import rules_of
from hami_node.errors import AllocationError, RecordError
from hami_node.model import Container, ContainerGrants, ContainerKind, Uuid
from hami_node.node.allocate.refusals import RECREATE
from hami_node.node.allocate.terms import Candidate
from hami_node.node.holdings.live_use import LiveUse
from hami_node.node.vendor_cards import VendorCards
from hami_node.record.bounded import BoundedWork
from hami_node.vendors.on_node.answer import ContainerResponse, MadePart, Slice

COMMIT_S: Final = 3.0
"""What the container's files, the ledger and a request to the API server may still need; at most
half of what is left."""
MARGIN_S: Final = 0.5
"""How much later a maker is given up that does not keep to its deadline."""
CALL_S: Final = 10.0


class PartMaker:
    """Has a container's parts made in time. Not thread-safe: its owner serves one call at a time.

    What is made stays on its maker's own record until the pod has ended, whatever becomes of the
    call: a container that is refused later in the call gives it back by its pod's end.
    """

    def __init__(self, owner: VendorCards, resource: str, live: LiveUse) -> None:
        """Parts of the owner's cards."""
        self._owner, self._live = owner, live
        self._work = BoundedWork(CALL_S, f"what divides the cards of {resource}")

    def with_made(self, granted: Slice, candidate: Candidate, deadline: Deadline) -> Slice:
        """The slice with the parts that its grants name; the same slice if they name none.

        Raises:
            AllocationError: a part can't be made in time, or not at all.
        """
        cards = [granted.cards.get(grant.uuid) for grant in granted.grants]
        has_divided = any(card and rules_of(card.vendor).is_divided(card) for card in cards)
        if not has_divided and all(grant.part is None for grant in granted.grants):
            return granted
        parts = self._owner.parts
        if parts is None:
            raise AllocationError(
                f"{candidate.name}: its reservation is for a part of a divided card, and "
                f"hami-node does not divide cards under the settings of this node: {RECREATE}"
            )
        reserve_s = min(COMMIT_S, deadline.left_s() / 2)
        limit = deadline.before(reserve_s)
        given_up = deadline.before(max(reserve_s - MARGIN_S, reserve_s / 2))
        self._live.noticed(candidate.pod)  # nobody takes it for gone meanwhile
        owned = replace(granted, container=_owner(candidate))
        try:
            made = self._work.do(lambda: parts.make(owned, limit), given_up)
        except RecordError as e:
            raise AllocationError(
                f"{candidate.name}: the parts of its cards were not made in time: {RECREATE}"
            ) from e
        except AllocationError as e:
            raise AllocationError(f"{candidate.name}: {e}") from e
        return replace(granted, made=made)


def _owner(candidate: Candidate) -> Container:
    """The container whose parts they are.

    One that borrows another's slot has that one's. Where the scheduler reserved the same parts for
    an init container and for one that runs after it, they are the first one's.
    """
    mine = _named(candidate.grants)
    for container in candidate.pod.containers:
        if container.name == candidate.lender:
            return container
        theirs = _named(candidate.held.by_container.get(container.name, ()))
        if container.kind is ContainerKind.INIT and theirs == mine:
            return container
    return candidate.container


def _named(grants: ContainerGrants) -> list[tuple[Uuid, Hashable]]:
    return [(grant.uuid, grant.part) for grant in grants]


def is_about(answer: ContainerResponse, made: tuple[MadePart | None, ...]) -> bool:
    """True where an answer names these parts, and not others that were there before."""
    text = repr(answer)
    return all(part.uuid in text for part in made if part is not None)
