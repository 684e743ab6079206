"""What all vendors' reservations have in common: keys, counts, the end of init containers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from hami_node.errors import WireError
from hami_node.model import Container, ContainerKind, Pod, Vendor
from hami_node.wire import names
from hami_node.wire.values import parse_whole_quantity

SHARED_KEYS = (
    names.POD_NODE,
    names.POD_TIME,
    names.POD_BIND_PHASE,
    names.POD_BIND_TIME,
    names.POD_RESIZE_APPROVED,
    names.POD_RESIZE_STATE,
    names.POD_VICTIMS,
)
"""What a scheduler writes into a pod whatever the vendor; each vendor has keys of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantKeys:
    """The annotations of a pod that hold the grants of one vendor.

    Attributes:
        allocated: annotation with the grants as reserved.
        to_allocate: annotation with what is still to be served; "" where the vendor's own plugin
            serves and no such annotation is written.
        parts: annotation that names parts of divided cards; "" for none.
    """

    vendor: Vendor
    allocated: str
    to_allocate: str = ""
    parts: str = ""

    @property
    def records(self) -> tuple[str, ...]:
        """The annotations that record what a pod holds; they stay as reserved."""
        return (self.allocated, self.parts) if self.parts else (self.allocated,)


def count_of(container: Container, resource: str) -> int:
    """How many device IDs kubelet allocates for the container; 0 for none or an invalid value."""
    text = container.limits.get(resource)
    if text is None:
        return 0
    try:
        return max(parse_whole_quantity(text, resource), 0)
    except WireError:
        return 0


def counts_of(pod: Pod, resource: str) -> dict[str, int]:
    """Counts by container name, only of containers that request it, in the pod's order."""
    counts = {container.name: count_of(container, resource) for container in pod.containers}
    return {name: count for name, count in counts.items() if count}


def encode_victims(victims: Mapping[str, tuple[str, ...]]) -> str:
    """By node that may be nominated: uids of the pods that are evicted there."""
    return msgspec.json.encode(victims, order="sorted").decode()


def victims_of(pod: Pod) -> Mapping[str, frozenset[str]]:
    """What is noted on the pod; nothing where that can't be read."""
    try:
        return msgspec.json.decode(
            pod.annotations.get(names.POD_VICTIMS, "{}"), type=dict[str, frozenset[str]]
        )
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return {}


def are_inits_over(pod: Pod) -> bool:
    """True once every plain init container has succeeded."""
    inits = [item for item in pod.containers if item.kind is ContainerKind.INIT]
    return bool(inits) and all(item.is_terminated_ok for item in inits)
