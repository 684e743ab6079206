"""A reservation that stands in memory alone, until the Binding of its pod carries it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hami_node.engine.place import PodRequest
from hami_node.model import Container, Node, Pod
from hami_node.vendors.holding import Holding, holding_of, marks_of, reservation_keys
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names

Marks = tuple[str | bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a pod with these marks and containers holds, so that its echo need not be read again."""

    marks: Marks
    containers: tuple[Container, ...]
    holding: Holding | None

    @classmethod
    def of(cls, pod: Pod, vendors: Sequence[VendorProtocol]) -> Reading:
        """Read it."""
        return cls(
            marks=marks_of(pod, vendors),
            containers=pod.containers,
            holding=holding_of(pod, vendors),
        )

    def is_of(self, pod: Pod, marks: Marks) -> bool:
        """True for a pod with these marks that holds just this."""
        return marks == self.marks and pod.containers == self.containers


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What the Binding has to carry.

    Attributes:
        annotations: the reservation as the node's daemon reads it.
        request: what was asked for; a pod that asks for something else by now is not bound.
        pod: as it was decided on; a pod that the watch has passed by is gone.
        reading: what the node will read of the reservation; None before that is known.
    """

    annotations: Mapping[str, str]
    request: PodRequest
    pod: Pod
    reading: Reading | None = None

    def is_alike(self, pod: Pod) -> bool:
        """True for a state of the pod that asks for exactly what it asked for at the decision."""
        return pod is self.pod or _asking(pod) == _asking(self.pod)


def _asking(pod: Pod) -> tuple[object, ...]:
    """All that a request is made of."""
    return pod.namespace, pod.containers, pod.annotations


def can_carry(node: Node, pod: Pod, vendors: Iterable[VendorProtocol]) -> bool:
    """True if a Binding alone can tell the node's daemon what it has to serve.

    HAMi's plugin needs the node's lock, and its monitor a label of the pod. A Binding can add
    annotations, but can't remove what an earlier decision left.
    """
    if node.annotations.get(names.NODE_IDENTITY) != names.IDENTITY_POD_RESOURCES:
        return False
    if names.POD_NODE in pod.labels:
        return False
    return not any(key in pod.annotations for key in reservation_keys(vendors))
