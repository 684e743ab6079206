"""CDI specs of MIG instances: one small file for each, so that none waits for the others.

A file is there before the answer that names its instance, and goes after the instance has gone.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from hami_node.logs import kv
from hami_node.model import Device, Uuid
from hami_node.vendors.nvidia.mig.details import mig_of, minor_of, minors_of
from hami_node.vendors.nvidia.node.handover.card_names import cdi_name
from hami_node.vendors.nvidia.node.handover.cdi_spec import CdiSpec
from hami_node.vendors.nvidia.node.handover.handed import Instance
from hami_node.vendors.nvidia.node.handover.spec_file import SpecFile

log = logging.getLogger(__name__)

_NAME: Final = re.compile(r"hami-node\.io-gpu-(MIG-[A-Za-z0-9_-]{1,100})\.json", re.ASCII)


def file_name(instance: str) -> str:
    """The name of an instance's file; engines read all names that end like this."""
    return f"hami-node.io-gpu-{instance}.json"


class InstanceSpecs:
    """The files in a folder that the container engine reads. Used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        """Nothing is read or made yet."""
        self._folder = folder
        self._seen: dict[str, Uuid] = {}
        self._new: set[str] = set()  # in answers, and in no scan yet

    def write(self, instance: Instance, spec: CdiSpec) -> None:
        """Have the file of an instance that is there now, whatever the last scan has seen.

        A file with the same capabilities is of an instance that is gone: the driver numbers them
        by the place of an instance in its lists, and uses the numbers again.

        Raises:
            OSError: it can't be written.
        """
        for name, other in self._present():
            if name != instance.name and not _caps(spec).isdisjoint(_caps(other)):
                self._remove(name)
                self._new.discard(name)
        self._new.add(instance.name)
        self._put(instance.name, spec)

    def keep(
        self,
        cards: Sequence[Device],
        held: frozenset[str] | None,
        spec_of: Callable[[Instance], CdiSpec | None],
    ) -> frozenset[str]:
        """Files of what is held are right, those of what is gone go; what went since the last time.

        A file goes with its instance even if a container on record names it: the next instance has
        the same capabilities, and that container would be given them when it starts again.

        Args:
            cards: with their instances, as last seen.
            held: CDI names in answers; None while these are not known.
            spec_of: the spec of an instance; None where it can't be told now.

        Raises:
            OSError: a file can't be written or removed.
        """
        present = dict(self._present())
        existing = {found.name: found for card in cards for found in instances_on(card)}
        self._new -= existing.keys()
        newer = frozenset(
            path for name in self._new & present.keys() for path in _caps(present[name])
        )
        for name, found in existing.items():
            is_wanted = name in present if held is None else cdi_name(name) in held
            spec = spec_of(found) if is_wanted else None
            if spec is not None and newer.isdisjoint(_caps(spec)):
                self._put(name, spec)
        parents = _parents(cards)
        for name in present.keys() - existing.keys() - self._new:
            if _parent(present[name]) in parents:  # others may be another daemon's
                self._remove(name)
        return self._gone(existing, {card.uuid for card in cards if _is_readable(card)})

    def _put(self, name: str, spec: CdiSpec) -> None:
        file = self._file(name)
        if file.write(spec):
            log.info("cdi_spec_of_instance_written", extra=kv(file=str(file.path)))

    def _remove(self, name: str) -> None:
        if self._file(name).remove():
            log.info("cdi_spec_of_instance_removed", extra=kv(instance=name))

    def _gone(self, existing: Mapping[str, Instance], known: set[Uuid]) -> frozenset[str]:
        gone = {name for name, card in self._seen.items() if name not in existing and card in known}
        self._seen |= {name: found.card for name, found in existing.items()}
        for name in gone:
            del self._seen[name]
        return frozenset(gone)

    def _present(self) -> Iterator[tuple[str, CdiSpec]]:
        """Our files by the instance that they are for, if it is the only one in there."""
        try:
            names = sorted(os.listdir(self._folder))
        except OSError:
            return
        for found in filter(None, map(_NAME.fullmatch, names)):
            spec = self._file(found[1]).read()
            if spec is not None and [device.name for device in spec.devices] == [found[1]]:
                yield found[1], spec

    def _file(self, name: str) -> SpecFile:
        return SpecFile(self._folder, file_name(name))


def instances_on(card: Device) -> Iterator[Instance]:
    """The instances with a MIG device that the driver reports for a card."""
    mig = mig_of(card)
    for found in mig.instances if mig is not None else ():
        if found.device is not None:
            yield Instance(
                uuid=found.device.uuid,
                card=card.uuid,
                gpu_instance_id=found.device.gpu_instance_id,
                compute_instance_id=found.device.compute_instance_id,
            )


def _caps(spec: CdiSpec) -> frozenset[str]:
    """The nodes of an instance's capabilities."""
    return frozenset(node.path for node in spec.devices[0].container_edits.device_nodes[1:])


def _parent(spec: CdiSpec) -> str:
    """The node of an instance's card; "" where it has none."""
    return next((node.path for node in spec.devices[0].container_edits.device_nodes), "")


def _is_readable(card: Device) -> bool:
    """What the driver reports of the card's instances is all that there are."""
    mig = mig_of(card)
    is_all = mig is None or not (mig.problem or mig.restriction)
    return minor_of(card) is not None and is_all


def _parents(cards: Sequence[Device]) -> frozenset[str]:
    """The nodes of cards whose instances are known."""
    minors = minors_of(cards)
    return frozenset(
        f"/dev/nvidia{minors[card.uuid]}"
        for card in cards
        if card.uuid in minors and _is_readable(card)
    )
