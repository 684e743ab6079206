"""What the keeper of MIG instances needs of the driver. `vendors/nvidia/nvml/mig` provides it."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from hami_node.clock import Deadline
from hami_node.errors import HamiError
from hami_node.model import Uuid
from hami_node.vendors.nvidia.mig.layout import (
    MigCard,
    MigDevice,
    MigPlacement,
)


class MigFailure(StrEnum):
    """Why a call about MIG failed, as far as somebody acts on it."""

    BUSY = "in use"
    """A process is on it (IN_USE)."""
    NO_ROOM = "no room"
    """The placement is taken (INSUFFICIENT_RESOURCES); only a look at the card tells by what."""
    GONE = "gone"
    """There is no such instance (NOT_FOUND), or the card is not in MIG mode (NOT_SUPPORTED)."""
    NO_RIGHTS = "no rights"
    """NO_PERMISSION: the overlay for MIG is not applied."""
    UNANSWERED = "unanswered"
    """The call has not returned in time. It goes on: only a look at the card tells its outcome."""
    FAILED = "failed"
    """Anything else; the card is lost, for example."""


class MigError(HamiError):
    """A call about MIG failed; the text names the call, the card and NVML's code."""

    def __init__(self, reason: MigFailure, text: str) -> None:
        """`reason` decides what follows; `text` is for people."""
        super().__init__(text)
        self.reason = reason


class MigDriver(Protocol):
    """MIG of this node's cards. Any thread may call it; every call ends by its deadline.

    Raises (every method): MigError.
    """

    def look(self, card: Uuid, deadline: Deadline) -> MigCard:
        """The card as it is now, with the processes on its instances.

        It is answered only once every earlier call about the card has returned, so it shows their
        outcomes.
        """

    def make_gpu_instance(
        self, card: Uuid, profile_id: int, placement: MigPlacement, deadline: Deadline
    ) -> int:
        """Make a GPU instance at exactly this place; its id."""

    def make_compute_instance(
        self, card: Uuid, gpu_instance_id: int, deadline: Deadline
    ) -> MigDevice:
        """Make the compute instance over all of a GPU instance that has none; the MIG device."""

    def destroy_compute_instance(self, card: Uuid, device: MigDevice, deadline: Deadline) -> None:
        """Destroy the compute instance behind a MIG device.

        GONE if it was gone already, also if another has its numbers now. Without a UUID the
        numbers alone have to do.
        """

    def destroy_gpu_instance(self, card: Uuid, gpu_instance_id: int, deadline: Deadline) -> None:
        """Destroy it, once it has no compute instance. GONE if it was gone already."""

    def processes(self, card: Uuid, deadline: Deadline) -> frozenset[int] | None:
        """PIDs of the programs that compute on the card itself; None where that can't be told."""

    def set_mode(self, card: Uuid, *, is_enabled: bool, deadline: Deadline) -> str:
        """Record the mode; "" once it is in force, else why it is only pending, for people."""
