"""What containers really use of their cards: how a vendor tells."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hami_node.model import Container, Device, Uuid
from hami_node.ports import ContainerUse, UnreadUse


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A container that holds cards of the vendor and may be running.

    `cards` are in the order in which it sees them: by (index, uuid); () where this node does not
    offer all of them now: its use can't be told, and nobody may have it wait for others. `spec` is
    the container as its pod has it; None while the pod is not known.
    """

    pod_uid: str
    namespace: str
    pod: str
    container: str
    cards: tuple[Device, ...]
    spec: Container | None = None

    @property
    def folder_name(self) -> str:
        """As `answer.Slice` names the container's folder."""
        return f"{self.pod_uid}_{self.container}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UseFindings:
    """What one pass over the containers found.

    Attributes:
        uses: card by card; containers that have not used a card yet are left out.
        unread: containers whose use can't be read.
        unclear: cards of which the driver's list of processes would tell more.
    """

    uses: tuple[ContainerUse, ...] = ()
    unread: tuple[UnreadUse, ...] = ()
    unclear: frozenset[Uuid] = frozenset()


class UsageReader(Protocol):
    """Reads what containers use. Called from one thread."""

    def read(
        self,
        holders: Sequence[Holder],
        running: Mapping[Uuid, Collection[int]],
        *,
        is_last: bool = False,
    ) -> UseFindings:
        """One pass over all containers.

        Args:
            holders: all that may be running.
            running: PIDs on the node of the processes on the cards that were unclear before.
            is_last: the daemon stops after this pass.
        """
