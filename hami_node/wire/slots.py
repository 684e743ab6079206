"""Which slot of a reservation belongs to which container, solved against the pod's spec.

HAMi writes slots in four layouts: 2.4 without empty slots and without init containers, 2.7 with
empty slots but without init containers, 2.9 with a slot for every container, init containers
first, and 2.10 the same with empty slots lost. A plugin empties a slot once it is served, and
2.10 adds one `;` each time. None of them names the layout, but every container that asks for
cards has exactly one slot with as many entries, in the pod's order; that decides it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from hami_node.model import ContainerGrants, ContainerKind, Pod
from hami_node.wire.grants import encode_grants

MAX_SEARCHED: Final = 256
"""With more slots than any pod has, only what has kept its position or order is understood: the
search goes one level deeper for each."""
MAX_ALTERNATIVES: Final = 8
"""Enough to show a person that a reservation has several meanings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotMap:
    """The solved mapping.

    Attributes:
        granted: what `vgpu-devices-allocated` gives each container by name, in the pod's order;
            a container without a slot is not in it.
        waiting: the positions in `remaining` of containers that are not served yet, by name.
        remaining: the slots of `vgpu-devices-to-allocate`.
        has_init_slots: False when the writer leaves out init containers that ask (2.4 to 2.8).
    """

    granted: Mapping[str, ContainerGrants]
    waiting: Mapping[str, int]
    remaining: tuple[ContainerGrants, ...]
    has_init_slots: bool

    def grants_of(self, container: str) -> ContainerGrants | None:
        """The container's grants, or None when it has no slot."""
        return self.granted.get(container)

    def is_waiting(self, container: str) -> bool:
        """True while the container's slot has not been emptied."""
        return container in self.waiting

    def without(self, container: str) -> str:
        """The to-allocate text once this container is served; the same text if it was already.

        The slot is emptied and keeps its position, as every generation's reader expects.
        """
        position = self.waiting.get(container)
        return encode_grants(
            tuple(() if i == position else slot for i, slot in enumerate(self.remaining))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AmbiguousSlots:
    """More than one mapping fits; each alternative is complete. None may be picked."""

    alternatives: tuple[SlotMap, ...]

    @property
    def why(self) -> str:
        """For people: what differs between the alternatives."""
        waiting = (", ".join(item.waiting) or "none" for item in self.alternatives)
        return "it is unclear which containers are still to be served: " + " or ".join(waiting)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotMismatch:
    """No mapping fits; `why` is for people."""

    why: str


def assign_slots(
    pod: Pod,
    counts: Mapping[str, int],
    allocated: Sequence[ContainerGrants],
    to_allocate: Sequence[ContainerGrants],
) -> SlotMap | AmbiguousSlots | SlotMismatch:
    """Find each container's slot and whether it is still to be served.

    Args:
        pod: its containers, init containers first.
        counts: how many cards each container asks for; 0 or no entry for none.
        allocated: decoded `vgpu-devices-allocated`.
        to_allocate: decoded `vgpu-devices-to-allocate`.
    """
    owners = _owners(pod, counts, allocated)
    if isinstance(owners, SlotMismatch):
        return owners
    granted = {owner: allocated[position] for position, owner in owners.items()}
    inits = _init_names(pod)
    asking_init = next(filter(inits.__contains__, _asking(pod, counts)), None) if inits else None
    has_init_slots = asking_init is None or asking_init in granted
    found = [
        SlotMap(
            granted=granted,
            waiting=waiting,
            remaining=tuple(to_allocate),
            has_init_slots=has_init_slots,
        )
        for waiting in _waiting(owners, allocated, to_allocate)
    ]
    if not found:
        return SlotMismatch(why="what is left to allocate is not part of what was allocated")
    return found[0] if len(found) == 1 else AmbiguousSlots(alternatives=tuple(found))


def slot_positions(
    pod: Pod, counts: Mapping[str, int], allocated: Sequence[ContainerGrants]
) -> dict[str, int]:
    """The position of each container's slot in `allocated`; none where that is unclear."""
    owners = _owners(pod, counts, allocated)
    if isinstance(owners, SlotMismatch):
        return {}
    return {name: position for position, name in owners.items()}


def _asking(pod: Pod, counts: Mapping[str, int]) -> list[str]:
    return [item.name for item in pod.containers if counts.get(item.name, 0) > 0]


def _init_names(pod: Pod) -> frozenset[str]:
    return frozenset([item.name for item in pod.containers if item.kind is not ContainerKind.APP])


def _owners(
    pod: Pod, counts: Mapping[str, int], allocated: Sequence[ContainerGrants]
) -> dict[int, str] | SlotMismatch:
    """The container of each filled slot, by the slot's position.

    Filled slots and containers that ask are in the same order. The number of filled slots
    shows whether init containers have slots: no number fits both readings.
    """
    filled = [position for position, slot in enumerate(allocated) if slot]
    inits = _init_names(pod)
    all_asking = _asking(pod, counts)
    apps = [name for name in all_asking if name not in inits]
    asking = all_asking if len(filled) == len(all_asking) else apps
    if len(filled) != len(asking):
        return SlotMismatch(
            why=f"{len(filled)} containers have a reservation, {len(all_asking)} ask for cards"
        )
    for position, name in zip(filled, asking, strict=True):
        if len(allocated[position]) != counts[name]:
            return SlotMismatch(
                why=f"container {name} asks for {counts[name]} cards, "
                f"its reservation has {len(allocated[position])}"
            )
    return dict(zip(filled, asking, strict=True))


def _waiting(
    owners: Mapping[int, str],
    allocated: Sequence[ContainerGrants],
    to_allocate: Sequence[ContainerGrants],
) -> list[dict[str, int]]:
    """Every way to match what is left to slots of `allocated`: names to positions in `to_allocate`.

    Slots that kept their positions are unambiguous. Where positions have moved (2.4 and 2.7 drop
    empty slots when they write again), kubelet's order decides: it serves a pod's containers
    first to last, so what is left is the end of the list. Only what fits neither is searched.
    """
    if to_allocate is allocated:  # nothing is served yet
        return [{name: position for position, name in owners.items()}]
    left = [position for position, slot in enumerate(to_allocate) if slot]
    if len(to_allocate) >= len(allocated) and all(
        position < len(allocated) and allocated[position] == to_allocate[position]
        for position in left
    ):
        return [{owners[position]: position for position in left}]
    positions = sorted(owners)
    filled, wanted = [allocated[position] for position in positions], [to_allocate[i] for i in left]
    if len(left) <= len(filled) and filled[len(filled) - len(left) :] == wanted:
        tail = positions[len(positions) - len(left) :]
        return [dict(zip((owners[position] for position in tail), left, strict=True))]
    return [
        dict(zip((owners[positions[at]] for at in chosen), left, strict=True))
        for chosen in islice(_embeddings(wanted, filled), MAX_ALTERNATIVES)
    ]


def _embeddings(
    wanted: Sequence[ContainerGrants], filled: Sequence[ContainerGrants]
) -> Iterator[tuple[int, ...]]:
    """Every way to find `wanted` inside `filled` in the same order.

    `latest[k]` is the last position of the k-th that lets the rest still fit: no branch of the
    search fails, so the first few answers cost little whatever the input.
    """
    if len(filled) > MAX_SEARCHED:
        return
    latest = [0] * len(wanted)
    position = len(filled)
    for k in range(len(wanted) - 1, -1, -1):
        position = next((i for i in range(position - 1, -1, -1) if filled[i] == wanted[k]), -1)
        if position < 0:
            return
        latest[k] = position

    def extend(chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        k = len(chosen)
        if k == len(wanted):
            yield chosen
            return
        for i in range(chosen[-1] + 1 if chosen else 0, latest[k] + 1):
            if filled[i] == wanted[k]:
                yield from extend((*chosen, i))

    yield from extend(())
