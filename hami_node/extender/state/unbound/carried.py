"""A reservation that stands in memory alone, until the Binding of its pod carries it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hami_node.engine.place import PodRequest
from hami_node.model import Node, Pod
from hami_node.vendors.holding import reservation_keys
from hami_node.vendors.protocol import VendorProtocol
from hami_node.wire import names


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What the Binding has to carry.

    Attributes:
        annotations: the reservation as the node's daemon reads it.
        request: what was asked for; a pod that asks for something else by now is not bound.
        version: of the pod as it was decided on; a pod that the watch has passed by is gone.
    """

    annotations: Mapping[str, str]
    request: PodRequest
    version: int = 0


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
