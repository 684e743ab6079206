"""Which group a pod belongs to, and how many pods of it have to get cards at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hami_node.errors import WireError
from hami_node.model import Pod
from hami_node.wire import names

MAX_MINIMUM: Final = 1_000
"""Larger groups are refused: each member costs a decision when the first is placed."""

LONGEST_NAME: Final = 253
"""As of any object: an annotation may have 256 KiB, and names outlive the pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroup:
    """A group; pods of other namespaces are never in it."""

    namespace: str
    name: str
    minimum: int

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


def group_key(pod: Pod) -> str:
    """`namespace/name` of the pod's group, whether it has a minimum or not; "" without a group."""
    notes, labels = pod.annotations, pod.labels
    name = (
        notes.get(names.POD_GROUP)
        or labels.get(names.POD_GROUP)
        or labels.get(names.COSCHEDULING_GROUP)
        or labels.get(names.KUEUE_GROUP)
        or notes.get(names.VOLCANO_GROUP)
    )
    return f"{pod.namespace}/{name}" if name else ""


def decode_pod_group(pod: Pod) -> PodGroup | None:
    """The pod's group; None without one, or where another's group says no minimum.

    Raises:
        WireError: the minimum is no number from 1 to `MAX_MINIMUM`, or is missing; or the name is
            too long.
    """
    key = group_key(pod)
    if not key:
        return None
    notes, where = pod.annotations, names.POD_GROUP_MIN
    text = notes.get(where)
    if text is None and names.KUEUE_GROUP in pod.labels:
        where = names.KUEUE_GROUP_TOTAL
        text = notes.get(where)
    is_ours = names.POD_GROUP in notes or names.POD_GROUP in pod.labels
    if text is None and not is_ours:
        return None
    minimum = int(text) if text and len(text) <= 9 and text.isascii() and text.isdigit() else 0
    if not 1 <= minimum <= MAX_MINIMUM:
        raise WireError(where, text or "", f"has to be a number from 1 to {MAX_MINIMUM}")
    name = key.partition("/")[2]
    if len(name) > LONGEST_NAME:
        raise WireError(names.POD_GROUP, name, f"has more than {LONGEST_NAME} characters")
    return PodGroup(namespace=pod.namespace, name=name, minimum=minimum)
