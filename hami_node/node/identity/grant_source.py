"""Where a container's grants come from: the pod's annotations, or kubelet's device IDs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from hami_node.model import Container, Pod
from hami_node.node.identity.candidate import Candidate, candidate_of
from hami_node.record.ledger import Entry, Ledger, Source
from hami_node.vendors.held_grants import HeldGrants
from hami_node.vendors.protocol import VendorProtocol

NOTHING_HELD: Final = HeldGrants()
SERVED: Final = ("served",)
"""In place of device IDs that are not known."""


class GrantSource(Protocol):
    """Reads what a pod may be given of one resource.

    Attributes:
        uses_lock: where kubelet's list can't be read, the node lock's owner is the one that is
            meant; else the only container that could be.
    """

    uses_lock: bool

    def held_by(self, pod: Pod) -> HeldGrants:
        """What the pod's annotations hold for it; never raises."""

    def candidate(
        self, pod: Pod, container: Container, held: HeldGrants, count: int, *, is_repeat: bool
    ) -> Candidate:
        """The container as one that a call for so many devices may be for."""

    def is_final(
        self, entry: Entry, pod: Pod, held: HeldGrants, ids: frozenset[str], *, is_known: bool
    ) -> bool:
        """True where a container that kubelet lists without IDs gets again what is on record.

        Args:
            entry: what is on record for it.
            pod: its pod.
            held: what the pod's annotations hold.
            ids: the device IDs of the call.
            is_known: the kubelet that runs now was given that answer.
        """

    def served(self, pod: Pod, held: HeldGrants, ledger: Ledger) -> Mapping[str, tuple[str, ...]]:
        """Device IDs, or a stand-in, of the containers that were served, without kubelet's list."""


class Reservations:
    """A scheduler has reserved the grants in annotations; device IDs are only tokens."""

    uses_lock = True

    def __init__(self, vendor: VendorProtocol) -> None:
        """Read reservations of this vendor's cards."""
        self._vendor = vendor

    def held_by(self, pod: Pod) -> HeldGrants:
        """The reservation."""
        return self._vendor.held_by(pod)

    def candidate(
        self, pod: Pod, container: Container, held: HeldGrants, count: int, *, is_repeat: bool
    ) -> Candidate:
        """With its own slot, or another container's."""
        return candidate_of(self._vendor, pod, container, held, count, is_repeat=is_repeat)

    def is_final(
        self, entry: Entry, pod: Pod, held: HeldGrants, ids: frozenset[str], *, is_known: bool
    ) -> bool:
        """Once its slot is used up. Of what others served only a pod that runs is believed."""
        del ids, is_known
        is_sure = entry.source is Source.SERVED or pod.has_started
        return is_sure and not held.is_waiting(entry.container)

    def served(self, pod: Pod, held: HeldGrants, ledger: Ledger) -> Mapping[str, tuple[str, ...]]:
        """Those whose slot is used up."""
        del pod, ledger
        slots = held.slot_map
        granted = slots.granted if slots is not None else ()
        return {
            name: SERVED for name in granted if slots is not None and not slots.is_waiting(name)
        }


class DeviceShares:
    """Each device ID is a share of a card: kubelet itself decides, annotations say nothing."""

    uses_lock = False

    def __init__(self, vendor: VendorProtocol, resource: str) -> None:
        """Read containers that ask for this resource of fixed shares."""
        self._vendor, self._resource = vendor, resource

    def held_by(self, pod: Pod) -> HeldGrants:
        """Nothing."""
        del pod
        return NOTHING_HELD

    def candidate(
        self, pod: Pod, container: Container, held: HeldGrants, count: int, *, is_repeat: bool
    ) -> Candidate:
        """Its grants follow from the call's IDs."""
        del count
        return Candidate(
            pod=pod,
            container=container,
            vendor=self._vendor,
            held=held,
            lender=container.name,
            is_repeat=is_repeat,
            is_spent=pod.has_started,
        )

    def is_final(
        self, entry: Entry, pod: Pod, held: HeldGrants, ids: frozenset[str], *, is_known: bool
    ) -> bool:
        """With the same IDs; with others only where it may run with what it was given.

        An answer that kubelet never received was for IDs that it may give to others now.
        """
        del held
        return is_known or pod.has_started or frozenset(entry.device_ids) == ids

    def served(self, pod: Pod, held: HeldGrants, ledger: Ledger) -> Mapping[str, tuple[str, ...]]:
        """Those on record."""
        del held
        return {
            entry.container: entry.device_ids or SERVED
            for entry in ledger.of_pod(pod.uid)
            if entry.resource == self._resource
        }


def source_of(vendor: VendorProtocol, resource: str) -> GrantSource:
    """Where the grants of a resource come from."""
    if vendor.is_fixed(resource):
        return DeviceShares(vendor, resource)
    return Reservations(vendor)
