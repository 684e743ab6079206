"""What the containers of a pod were served, read from its annotations and remembered."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from itertools import zip_longest

from hami_node.engine.usage import PodGrants
from hami_node.logs import kv
from hami_node.model import ContainerGrants, ContainerKind, Pod
from hami_node.node.allocate.init_borrowing import lenders
from hami_node.vendors.protocol import HeldGrants, VendorProtocol
from hami_node.wire.reservation import are_inits_over, count_of

log = logging.getLogger(__name__)

Marks = tuple[str, ...]
Slot = tuple[str, str]
"""A vendor's word and a container's name."""


class ServedGrants:
    """Reads a pod only when its annotations changed. Not thread-safe: its owner holds a lock.

    The owner of a pod may write its annotations; so what its containers were seen to hold counts
    unchanged for as long as the pod exists.
    """

    def __init__(
        self, vendors: Sequence[VendorProtocol], has_served: Callable[[VendorProtocol, str], bool]
    ) -> None:
        """Read grants of these vendors. `has_served` looks up `<uid>_<container>` folders."""
        self._vendors, self._has_served = tuple(vendors), has_served
        self._known: dict[str, tuple[Marks, PodGrants]] = {}
        self._held: dict[str, dict[Slot, ContainerGrants]] = {}

    def of(self, pod: Pod) -> PodGrants:
        """What the pod's containers were served."""
        marks = self._marks(pod)
        known = self._known.get(pod.uid)
        if known is not None and known[0] == marks:
            return known[1]
        grants = self._read(pod)
        self._known[pod.uid] = (marks, grants)
        return grants

    def last_known(self) -> dict[str, PodGrants]:
        """What was read last, by uid."""
        return {uid: grants for uid, (_, grants) in self._known.items()}

    def read_again(self, uid: str) -> None:
        """A folder of the pod may have been created without a change of its annotations."""
        self._known.pop(uid, None)

    def keep(self, uids: Collection[str]) -> None:
        """Forget all other pods."""
        self._known = {uid: known for uid, known in self._known.items() if uid in uids}
        self._held = {uid: held for uid, held in self._held.items() if uid in uids}

    def _marks(self, pod: Pod) -> Marks:
        forms = [vendor.keys.grants for vendor in self._vendors]
        keys = [key for form in forms for key in (*form.records, form.to_allocate) if key]
        return (*(pod.annotations.get(key, "") for key in keys), str(are_inits_over(pod)))

    def _read(self, pod: Pod) -> PodGrants:
        seen = self._held.setdefault(pod.uid, {})
        unclear: list[Sequence[ContainerGrants]] = []
        for vendor in self._vendors:
            held, word = vendor.held_by(pod), vendor.cards.word
            if held.slot_map is not None:
                for name, grants in self._served(pod, vendor, held).items():
                    seen.setdefault((word, name), grants)
            elif held.problem and pod.annotations.get(vendor.keys.grants.allocated):
                log.warning("reservation_unclear", extra=kv(pod=pod.key, why=held.problem))
                if not any(owner == word for owner, _ in seen):
                    unclear.append(held.slots)
        by_name = _by_container(seen)
        known = [by_name.get(container.name, ()) for container in pod.containers]
        if any(unclear):
            # Everything that it may hold, summed up: rather a refused pod than an overfull card.
            return PodGrants(containers=_joined([known, *unclear]))
        return PodGrants(
            containers=tuple(known),
            kinds=tuple(container.kind for container in pod.containers),
            are_inits_over=are_inits_over(pod),
        )

    def _served(
        self, pod: Pod, vendor: VendorProtocol, held: HeldGrants
    ) -> dict[str, ContainerGrants]:
        """Its emptied slots, and every slot that an init container may be using."""
        served = served_slots(held)
        counted = vendor.counted_in(pod)
        for container in pod.containers:
            count = count_of(container, counted)
            is_owner = container.name in held.by_container
            if container.kind is ContainerKind.APP or not count or is_owner:
                continue
            if self._has_served(vendor, f"{pod.uid}_{container.name}"):
                borrowed_from = lenders(held.by_container, pod, count)
                served |= {name: held.by_container[name] for name in borrowed_from}
        return served


def served_slots(held: HeldGrants) -> dict[str, ContainerGrants]:
    """The grants of containers whose slots were emptied, by name."""
    if held.slot_map is None:
        return {}
    return {name: grants for name, grants in held.by_container.items() if not held.is_waiting(name)}


def _by_container(held: dict[Slot, ContainerGrants]) -> dict[str, ContainerGrants]:
    found: dict[str, ContainerGrants] = {}
    for (_, name), grants in held.items():
        found[name] = (*found.get(name, ()), *grants)
    return found


def _joined(layers: Sequence[Sequence[ContainerGrants]]) -> tuple[ContainerGrants, ...]:
    """For each container, the grants of all layers."""
    return tuple(
        tuple(grant for grants in container for grant in grants)
        for container in zip_longest(*layers, fillvalue=())
    )
