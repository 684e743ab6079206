"""The limits of a container that runs: read, written and answered again after a resize."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hami_node.model import Uuid
from hami_node.vendors.on_node.answer import ContainerResponse, Slice


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLimit:
    """What a container may use of one card now, and what it uses.

    Attributes:
        memory_mib: 0 for no limit.
        cores: percent; 100 for no limit.
        used_mib: rounded up.
    """

    uuid: Uuid
    memory_mib: int
    cores: int
    used_mib: int = 0


class LimitWriter(Protocol):
    """Changes the limits of one vendor's containers while they run."""

    def problem(self, granted: Slice, answer: ContainerResponse | None) -> str:
        """Why this container's limits can't be changed, for people; "" if they can.

        `answer` is what it was started with; None where that is unknown.
        """

    def wanted(self, granted: Slice) -> tuple[CardLimit, ...]:
        """The limits that these grants mean, card by card."""

    def read(self, granted: Slice) -> tuple[CardLimit, ...]:
        """The limits in force, for the same cards in the same order.

        Raises:
            RegionError: they can't be read; that may pass. The message continues a sentence.
        """

    def write(self, granted: Slice) -> None:
        """Put the limits that these grants mean into force.

        Raises:
            RegionError: not all of them are written; that may pass.
        """

    def keep(self, granted: Slice) -> bool:
        """Write the limits again where others stand; True if they did.

        Whatever cards the container names: its first cards are those that it was given.

        Raises:
            RegionError: as `write`.
        """

    def answer(self, given: ContainerResponse, granted: Slice) -> ContainerResponse:
        """The answer that the container was given, with these limits and else to the byte."""
