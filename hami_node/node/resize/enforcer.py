"""The limits of running containers: put into force, read back, and kept in force."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hami_node.errors import HamiError, RegionError
from hami_node.logs import kv
from hami_node.model import Container, ContainerGrants, Device, Uuid
from hami_node.node.holdings.recorded import answer_of
from hami_node.node.parts import NodeParts
from hami_node.node.resize.step import Step
from hami_node.ports import Clock
from hami_node.record.ledger import Entry
from hami_node.vendors.on_node.answer import ContainerResponse, Slice
from hami_node.vendors.on_node.limits import CardLimit, LimitWriter
from hami_node.vendors.protocol import VendorProtocol
from hami_node.vendors.spec import protocol_of
from hami_node.wire.resize import encode_slot

log = logging.getLogger(__name__)

SETTLE_S: Final = 0.3
"""An allocation that was allowed under the old limit is counted by then."""


class NotYet(HamiError):
    """It can't be carried out now; a later pass tries again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeVendor:
    """A vendor whose running containers can be resized."""

    protocol: VendorProtocol
    writer: LimitWriter


def resize_vendors(parts: NodeParts) -> dict[str, ResizeVendor]:
    """The vendors whose running containers can be resized here, by their words."""
    found, settings = {}, parts.settings()
    for owner in parts.vendor_cards:
        protocol, writer = protocol_of(owner.vendor, settings), owner.limit_writer
        if writer is not None and protocol.resize_words is not None:
            found[protocol.cards.word] = ResizeVendor(protocol=protocol, writer=writer)
    return found


class Enforcer:
    """Used by one thread."""

    def __init__(
        self,
        vendors: Mapping[str, ResizeVendor],
        devices: Callable[[], tuple[Device, ...]],
        clock: Clock,
    ) -> None:
        """Write through the vendors, by their words; `devices` are all cards of this node."""
        self._vendors, self._devices, self._clock = vendors, devices, clock

    def problem(self, steps: Sequence[Step]) -> str:
        """Why the limits of these containers can't be changed at all; "" if they can."""
        for step in steps:
            part = Slice(pod_uid=step.entry.pod_uid, container=step.container, grants=step.target)
            problem = self._writer(step.entry).problem(part, answer_of(step.entry))
            if problem:
                return problem
        return ""

    def apply(self, steps: Sequence[Step], stop: threading.Event) -> str:
        """Put the targets into force; why they can't stay so, "" if they can.

        Raises:
            NotYet: not all could be written, or something else stands there.
        """
        for step in steps:
            self.write(step, step.target)
        is_less = any(step.is_less for step in steps)
        if is_less and self._clock.wait(stop, SETTLE_S):
            raise NotYet("hami-node is being restarted")
        found = [self._in_force(step) for step in steps]
        reasons = (step.overused(limits) for step, limits in zip(steps, found, strict=True))
        return next(filter(None, reasons), "")

    def write(self, step: Step, grants: ContainerGrants) -> None:
        """Put other amounts for a step's container into force.

        Raises:
            NotYet: not all could be written.
        """
        part = self._slice(step.entry, step.container, grants)
        try:
            self._writer(step.entry).write(part)
        except RegionError as e:
            raise NotYet(f"the usage file of container {step.container.name} {e}") from e

    def answer(self, step: Step, given: ContainerResponse) -> ContainerResponse:
        """The answer that the container was given, with what it holds now."""
        part = self._slice(step.entry, step.container, step.held)
        return self._writer(step.entry).answer(given, part)

    def keep(self, entry: Entry, container: Container) -> bool:
        """Compare the limits in force with the ledger; True if they had to be written again."""
        try:
            if not self._writer(entry).keep(self._slice(entry, container, entry.grants)):
                return False
        except (RegionError, NotYet) as e:
            log.debug("limits_not_compared", extra=kv(container=entry.name, why=str(e)))
            return False
        fields = kv(container=entry.name, grants=encode_slot(entry.grants))
        log.warning("limits_written_again", extra=fields)
        return True

    def _in_force(self, step: Step) -> tuple[CardLimit, ...]:
        part = self._slice(step.entry, step.container, step.target)
        writer, name = self._writer(step.entry), step.container.name
        try:
            found = writer.read(part)
        except RegionError as e:
            raise NotYet(f"the usage file of container {name} {e}") from e
        if _limits(found) != _limits(writer.wanted(part)):
            raise NotYet(f"container {name} has overwritten its limits")
        return found

    def _slice(self, entry: Entry, container: Container, grants: ContainerGrants) -> Slice:
        cards = {card.uuid: card for card in self._devices()}
        if missing := [grant.uuid for grant in grants if grant.uuid not in cards]:
            raise NotYet(f"card {', '.join(missing)} is not found now")
        return Slice(pod_uid=entry.pod_uid, container=container, grants=grants, cards=cards)

    def _writer(self, entry: Entry) -> LimitWriter:
        return self._vendors[entry.vendor].writer


def _limits(limits: Sequence[CardLimit]) -> list[tuple[Uuid, int, int]]:
    return [(limit.uuid, limit.memory_mib, limit.cores) for limit in limits]
