"""What a pod holds of one vendor's cards, as its annotations say. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from hami_node.model import ContainerGrants
from hami_node.wire.slots import SlotMap


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGrants:
    """What a pod holds of one vendor, by its annotations.

    Attributes:
        by_container: each container's grants by its name; empty when that is unclear.
        slots: the grants as written, slot by slot.
        slot_map: the slot of each container, and which are still to be served; None when unclear.
        problem: why something is unclear, for people; "" when nothing is.
    """

    by_container: Mapping[str, ContainerGrants] = field(
        default_factory=lambda: MappingProxyType({})
    )
    slots: tuple[ContainerGrants, ...] = ()
    slot_map: SlotMap | None = None
    problem: str = ""

    def is_waiting(self, container: str) -> bool:
        """True while the container's slot has not been served."""
        return self.slot_map is not None and self.slot_map.is_waiting(container)

    @property
    def is_any_waiting(self) -> bool:
        """True while a container is still to be served."""
        return self.slot_map is not None and bool(self.slot_map.waiting)

    @property
    def is_served(self) -> bool:
        """True once every container with grants was served."""
        return self.slot_map is not None and bool(self.slot_map.granted) and not self.is_any_waiting
