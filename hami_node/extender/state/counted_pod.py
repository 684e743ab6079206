"""What the state records about one pod, and how two reservations of a pod are told apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from hami_node.engine.card_rules import rules_of
from hami_node.engine.usage import DeviceUsage, PodGrants
from hami_node.model import Pod
from hami_node.vendors.holding import stamped_age_s
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names

Marks = tuple[str | bool | None, ...]

NOTHING: Final = PodGrants(containers=())
"""What a pod holds that is charged nowhere."""

MAX_VOID: Final = 32
"""A pod whose bindings fail is filtered again every few seconds, for days; a request that the API
server is still working on is at most minutes old."""


@dataclass(slots=True)
class Counted:
    """What is charged for one pod. Guarded by the state's lock.

    Attributes:
        pod: its newest known state.
        born_s: monotonic time at which it was first seen.
        marks: of the pod when it was charged from its annotations.
        node: where it is charged; "" if it is not.
        grants: what is charged there.
        since_s: monotonic time of the charge, while the pod is not bound; None once it is.
        token: of the reservation whose patch is in flight; 0 without such a patch.
        void: marks of reservations that no longer count although the pod may still carry them;
            the latest `MAX_VOID`, oldest first.
        is_binding: a call to bind it is running.
        is_doubtful: a binding was sent, and it is unknown whether it was made.
    """

    pod: Pod
    born_s: float
    marks: Marks = ()
    node: str = ""
    grants: PodGrants = NOTHING
    since_s: float | None = None
    token: int = 0
    void: tuple[Marks, ...] = ()
    is_binding: bool = False
    is_doubtful: bool = False

    def is_void(self, vendors: Iterable[VendorProtocol]) -> bool:
        """True when the reservation that the pod carries no longer counts."""
        return bool(self.void) and reservation_marks(self.pod, vendors) in self.void

    def disown(self, marks: Marks) -> None:
        """The reservation with these marks no longer counts."""
        self.own(marks)
        self.void = (*self.void, marks)[-MAX_VOID:]

    def own(self, marks: Marks) -> None:
        """The reservation with these marks counts (again)."""
        self.void = tuple(void for void in self.void if void != marks)

    def is_outdated(self, pod: Pod) -> bool:
        """True if this state of the pod is older than the known state.

        Our own patch may be answered before the watch shows it; and no pod is ever unbound.
        """
        is_older = pod.version < self.pod.version
        return is_older or bool(self.pod.node_name and not pod.node_name)

    def age_s(self, monotonic_s: float, unix_s: float) -> float | None:
        """How old an unbound reservation is, by our clock or the time in its annotations."""
        if self.since_s is None or self.token or self.is_binding:
            return None
        return max(monotonic_s - self.since_s, stamped_age_s(self.pod, unix_s))


def reservation_marks(pod: Pod, vendors: Iterable[VendorProtocol]) -> Marks:
    """What distinguishes one reservation of a pod from the next."""
    grants = (vendor.keys.grants.allocated for vendor in vendors)
    return tuple(pod.annotations.get(key, "") for key in (names.POD_NODE, names.POD_TIME, *grants))


def is_overfull(card: DeviceUsage | None) -> bool:
    """True for a card that is overcommitted, must not be used, or is gone.

    The parts of a divided card are counted one by one; the sums of their rounded amounts may
    exceed the card's.
    """
    if card is None or not card.device.healthy or card.contradiction or card.slots_free < 0:
        return True
    rules = rules_of(card.device.vendor)
    if rules.is_divided(card.device):
        return False
    return card.memory_free_mib < 0 or (not rules.cores_are_mask and card.cores_free < 0)
