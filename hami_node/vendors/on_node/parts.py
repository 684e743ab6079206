"""Parts of divided cards: made for a container before its answer, removed after its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hami_node.clock import Deadline
from hami_node.model import ContainerGrants, Device, Uuid
from hami_node.ports import Backend, Clock, OpenRecord
from hami_node.vendors.divided import NO_FAILURES, PartView
from hami_node.vendors.on_node.answer import MadePart, Slice


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSources:
    """What a maker of parts is built from, beside its vendor's settings.

    Attributes:
        cards: all cards as the backend has last found them, offered or not.
        records: opens records of its own.
        started_with: the vendor's settings as the daemon found its cards.
    """

    backend: Backend
    cards: Callable[[], tuple[Device, ...]]
    records: OpenRecord
    clock: Clock
    started_with: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartHolder:
    """A container on record; its grants name parts of cards, or cards that are not divided.

    Attributes:
        annotations: its pod's, as far as they are known; a tenant may have written them.
        is_adopted: somebody else's program has served it, before this daemon took over; kubelet's
            list shows that, for anybody can write such a pod.
        answer: what this daemon has told it, as it is on record; "" where that is not known.
    """

    pod_uid: str
    namespace: str
    pod: str
    container: str
    grants: ContainerGrants
    annotations: Mapping[str, str]
    is_adopted: bool = False
    answer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsSituation:
    """What a keeper of parts should know of its node.

    Attributes:
        holders: containers on record; None while it is not known who holds what, and nothing may
            be removed.
        is_held: asked again for a pod's uid just before its parts go: True while the pod is there
            and has not ended, or kubelet or the record still have it.
    """

    holders: tuple[PartHolder, ...] | None = None
    is_held: Callable[[str], bool] = lambda _: True


@dataclass(frozen=True, slots=True, kw_only=True)
class PartNote:
    """Something for people to know; an Event about a pod, or about the node where `pod` is ""."""

    reason: str
    message: str
    namespace: str = ""
    pod: str = ""
    pod_uid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsKept:
    """What a pass has found.

    Attributes:
        notes: each is returned once, when it becomes true.
        next_s: when the next pass is worth it; None for the next change.
    """

    notes: tuple[PartNote, ...] = ()
    next_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsState:
    """What a keeper of parts has on record, and what it could not do.

    Attributes:
        own: the parts that it has made or has begun to make.
        waits: cards that can't be divided yet as the settings ask, and why.
        failures: failed calls into the driver since the start; see `DividedCards`.
    """

    own: tuple[PartView, ...] = ()
    waits: Mapping[Uuid, str] = field(default_factory=dict)
    failures: Mapping[tuple[str, str], int] = field(default_factory=lambda: NO_FAILURES)


class CardParts(Protocol):
    """Makes and removes the parts of a vendor's cards on this node. Any thread may call it."""

    def make(self, granted: Slice, deadline: Deadline) -> tuple[MadePart | None, ...]:
        """The parts that the grants name, grant by grant; None for a grant of no part. Idempotent.

        What is made is this container's alone, on record before it is begun, and goes when its pod
        has ended, whatever becomes of the call.

        Raises:
            AllocationError: a part can't be made in time, or its place is taken; says by what.
        """

    def keep(self, situation: PartsSituation) -> PartsKept:
        """One pass: finish or undo what was begun, remove what nobody holds. Never raises."""

    def marked(self, cards: tuple[Device, ...]) -> tuple[Device, ...]:
        """The cards of a scan, with what is on record of them for their offer. Never waits."""

    def in_use(self) -> Mapping[Uuid, str]:
        """Cards on which parts are made or removed right now, with what is done. Never waits."""

    def state(self) -> PartsState:
        """What is on record now, for people. Never waits."""
