"""What the state notes about one pod, and how two states of a pod are told apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hami_node.engine.usage import DeviceUsage
from hami_node.extender.holdings import stamped_age_s
from hami_node.model import Pod, Vendor
from hami_node.wire import names

Marks = tuple[str | bool | None, ...]

RESERVATION: Final = (
    names.POD_NODE,
    names.POD_TIME,
    names.POD_ALLOCATED,
    names.POD_NEURON_ALLOCATED,
)
"""The annotations that tell one reservation of a pod from the next."""
MAX_VOID: Final = 32
"""A pod whose bindings fail is filtered anew every few seconds, for days; a request that the API
server still has under way is minutes old at most."""


@dataclass(slots=True)
class Counted:
    """What is charged for one pod. Guarded by the state's lock.

    Attributes:
        pod: the newest state of it that is known.
        born_s: monotonic time at which it was first heard of.
        marks: of the pod when it was charged from its annotations.
        node: where it is charged; "" for nothing.
        since_s: monotonic time of the charge, while the pod is not bound; None once it is.
        token: of the reservation whose patch is under way; 0 without one.
        void: marks of reservations that no longer count although the pod may still carry them;
            the latest `MAX_VOID`, oldest first.
        is_binding: a call to bind it is under way.
        is_doubtful: a binding was sent, and nobody knows whether it was made.
    """

    pod: Pod
    born_s: float
    marks: Marks = ()
    node: str = ""
    since_s: float | None = None
    token: int = 0
    void: tuple[Marks, ...] = ()
    is_binding: bool = False
    is_doubtful: bool = False

    @property
    def is_void(self) -> bool:
        """True when the reservation that the pod carries no longer counts."""
        return bool(self.void) and reservation_marks(self.pod) in self.void

    def disown(self, marks: Marks) -> None:
        """The reservation with these marks counts no more."""
        self.own(marks)
        self.void = (*self.void, marks)[-MAX_VOID:]

    def own(self, marks: Marks) -> None:
        """The reservation with these marks counts (again)."""
        self.void = tuple(one for one in self.void if one != marks)

    def is_outdated(self, pod: Pod) -> bool:
        """True for a state of the pod from before the one that is known.

        Our own patch may be answered before the watch gets there; and no pod is ever unbound.
        """
        is_older = version_of(pod) < version_of(self.pod)
        return is_older or bool(self.pod.node_name and not pod.node_name)

    def age_s(self, monotonic_s: float, unix_s: float) -> float | None:
        """How old an unbound reservation is, by our clock or the time that stands on it."""
        if self.since_s is None or self.token or self.is_binding:
            return None
        return max(monotonic_s - self.since_s, stamped_age_s(self.pod, unix_s))


def version_of(pod: Pod) -> int:
    """The resourceVersion as a number that grows; 0 for one that is none."""
    return int(pod.resource_version) if pod.resource_version.isdigit() else 0


def reservation_marks(pod: Pod) -> Marks:
    """What tells one reservation of a pod from the next."""
    return tuple(pod.annotations.get(key, "") for key in RESERVATION)


def has_grants(pod: Pod) -> bool:
    """True for a pod that carries grants, whatever they are worth."""
    said = pod.annotations
    return bool(said.get(names.POD_ALLOCATED) or said.get(names.POD_NEURON_ALLOCATED))


def is_overfull(card: DeviceUsage | None) -> bool:
    """True for a card that holds more than it has, that must not be used, or that is gone."""
    if card is None:
        return True
    is_neuron = card.device.vendor is Vendor.AWS_NEURON
    return (
        not card.device.healthy
        or bool(card.contradiction)
        or card.slots_free < 0
        or card.memory_free_mib < 0
        or (not is_neuron and card.cores_free < 0)
    )
