"""What a container needs of its MIG instances on the host: device nodes, and CDI specs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hami_node.errors import AllocationError
from hami_node.logs import kv
from hami_node.model import Device, Uuid
from hami_node.vendors.nvidia.driver.location import DriverRoot
from hami_node.vendors.nvidia.mig.details import minors_of
from hami_node.vendors.nvidia.node.handover.cdi_spec import (
    CdiSpec,
    DriverOnHost,
    HostNode,
    make_instance_spec,
)
from hami_node.vendors.nvidia.node.handover.driver_files import no_minor, node
from hami_node.vendors.nvidia.node.handover.handed import Instance
from hami_node.vendors.nvidia.node.handover.mig.caps import CapNodes, unseen
from hami_node.vendors.nvidia.node.handover.mig.spec_files import InstanceSpecs

log = logging.getLogger(__name__)


UNSEEN: Final = (
    "the host's /dev/nvidia-caps is not mounted here (daemonset/components/mig): unless something "
    "else makes the device nodes of MIG instances there, as MIG Manager does, NVIDIA's runtime "
    "leaves them out, and containers can't use their instances"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the cards of a node are: the driver's root, None for simulated cards; their minors."""

    root: DriverRoot | None
    minors: Mapping[Uuid, int] = field(default_factory=dict)


class Instances:
    """Hands over the instances of one node. Used by one thread at a time."""

    def __init__(self, spec_folder: Path, caps: CapNodes) -> None:
        """Nothing is read or made yet."""
        self._specs, self._caps = InstanceSpecs(spec_folder), caps
        self._is_told = False

    @staticmethod
    def place(root: DriverRoot | None, cards: Iterable[Device]) -> Place:
        """Where these cards are; without a root they are simulated."""
        return Place(root=root, minors=minors_of(cards))

    def for_kubelet(self, instances: Iterable[Instance], place: Place) -> tuple[HostNode, ...]:
        """Device nodes that are on the host, of the cards and of both capabilities of each.

        Raises:
            AllocationError: the driver does not report them, or one is not there.
        """
        found: list[HostNode] = []
        for instance in instances:
            its = self._nodes(instance, place)
            for cap in its[1:]:
                if self._ensure(cap, place) is None:
                    raise AllocationError(unseen(instance))
            found += its
        return tuple(found)

    def for_runtime(self, instances: Iterable[Instance], place: Place) -> None:
        """In its CDI modes the runtime leaves out capabilities that have no node, without a word.

        Raises:
            AllocationError: they are known to have none, and can't be given one.
        """
        for instance in instances:
            try:
                its = self._nodes(instance, place)
            except AllocationError as e:
                self._tell(str(e))
                continue
            for cap in its[1:]:
                if self._ensure(cap, place) is None:
                    self._tell(UNSEEN)

    def for_engine(self, instances: Iterable[Instance], place: Place, driver: DriverOnHost) -> None:
        """A spec for each. The engine makes nodes whose numbers are known; others have to be there.

        Raises:
            AllocationError: the driver does not report the nodes, or one is not there.
            OSError: a spec can't be written.
        """
        for instance in instances:
            its = self._nodes(instance, place)
            for cap in its[1:]:
                if cap.numbers is None:
                    self._ensure(cap, place)
            self._specs.write(instance, make_instance_spec(instance.name, its, driver))

    def keep(
        self,
        cards: Sequence[Device],
        held: frozenset[str] | None,
        place: Place,
        driver: DriverOnHost | None,
    ) -> frozenset[str]:
        """Bring the specs up to date; see `InstanceSpecs.keep`. Raises OSError.

        `driver` is None where no specs are wanted, or its files are not there.
        """

        def spec_of(instance: Instance) -> CdiSpec | None:
            if driver is None:
                return None
            try:
                return make_instance_spec(instance.name, self._nodes(instance, place), driver)
            except AllocationError:
                return None

        return self._specs.keep(cards, held, spec_of)

    def _nodes(self, instance: Instance, place: Place) -> tuple[HostNode, ...]:
        """Its card's node and both capabilities'; none for simulated cards.

        Raises:
            AllocationError: the driver does not report them.
        """
        if place.root is None:
            return ()
        minor = place.minors.get(instance.card)
        if minor is None:
            raise AllocationError(no_minor(instance.card))
        parent = node(place.root, f"nvidia{minor}")
        return parent, *self._caps.of(place.root, minor, instance)

    def _tell(self, reason: str) -> None:
        """Once: it is the same for every container."""
        if not self._is_told:
            self._is_told = True
            log.warning("mig_device_nodes_not_seen", extra=kv(reason=reason))

    def _ensure(self, cap: HostNode, place: Place) -> bool | None:
        return self._caps.ensure(place.root, cap) if place.root is not None else False
