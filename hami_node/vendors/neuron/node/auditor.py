"""On a Neuron node: whether what pods were granted, and what they hold, obeys the rules.

AWS's own plugin serves the devices to kubelet. We compare three things: the ids that a scheduler
wrote, the IDs that kubelet lists, and the grants that our extender counts. We never write a pod.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from hami_node.errors import WireError
from hami_node.logs import kv
from hami_node.model import ContainerKind, Node, Pod, Uuid
from hami_node.ports import Clock, EventNote, HeldContainer
from hami_node.vendors.neuron import names
from hami_node.vendors.neuron.codec import decode_neuron_ids, neuron_uuid
from hami_node.vendors.neuron.node.check import (
    NeuronClaim,
    NeuronFinding,
    NeuronShape,
    check_listed,
    check_neuron_pod,
    cores_listed,
    held_cores,
    shown_numbers,
)
from hami_node.vendors.neuron.node.devices import geometry_of
from hami_node.vendors.neuron.placement import NeuronUnit
from hami_node.vendors.neuron.protocol import NeuronProtocol
from hami_node.vendors.neuron.requests import NeuronResources
from hami_node.vendors.on_node.publication import Closed
from hami_node.vendors.spec import AuditOutlets, HeldByUid
from hami_node.wire.reservation import count_of

log = logging.getLogger(__name__)

EVENT: Final = "NeuronGrantInvalid"
SIGNS_S: Final = 15.0
"""How long the driver's counters are not read again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Audited:
    """A pod that uses Neuron, or holds it.

    Attributes:
        claim: what it requests and what a scheduler wrote.
        listed: the cores that kubelet lists for it; None where nothing is known.
        counted: the cores that our extender counts for it.
    """

    pod: Pod
    claim: NeuronClaim
    listed: frozenset[int] | None
    counted: frozenset[int]

    def holds(self, shape: NeuronShape) -> frozenset[int]:
        """The cores that others must not have: as kubelet lists them, else as they are written."""
        return self.listed if self.listed else held_cores(self.claim, shape)

    def has_drifted(self, shape: NeuronShape) -> bool:
        """It holds other cores than a scheduler wrote."""
        written = held_cores(self.claim, shape)
        return bool(self.listed) and bool(written) and self.listed != written


class NeuronAuditor:
    """Checks every pod; each finding is reported once per pod. Used by one thread at a time."""

    def __init__(self, protocol: NeuronProtocol, outlets: AuditOutlets) -> None:
        """Set how pods are read, and where findings go: an Event on the pod, a metric by rule."""
        self._protocol, self._resources = protocol, protocol.names
        self._notify, self._count = outlets.notify, outlets.count
        self._signs = _Signs(outlets.sysfs_root, outlets.clock)
        self._reported: dict[str, frozenset[str]] = {}
        self._closed: Mapping[Uuid, Closed] = MappingProxyType({})
        self._drifted = 0

    @property
    def closed(self) -> Mapping[Uuid, Closed]:
        """See `Auditor`: cores that pods hold and nobody counts, and cores with errors."""
        return self._closed

    @property
    def drifted(self) -> int:
        """See `Auditor`."""
        return self._drifted

    def audit(self, node: Node, pods: tuple[Pod, ...], held: HeldByUid) -> int:
        """Check all pods of the node and return the number of findings."""
        geometry = geometry_of(node, self._resources)
        if not geometry.devices:
            self._closed, self._drifted = MappingProxyType({}), 0
            return 0
        shape = NeuronShape(
            devices=geometry.devices,
            cores_per_device=geometry.cores_per_device,
            instance_type=geometry.instance_type,
        )
        audited = [
            found
            for pod in pods
            if not pod.is_over and (found := self._read(node, pod, held.get(pod.uid, ()), shape))
        ]
        number = self._check(node, audited, shape)
        self._drifted = sum(each.has_drifted(shape) for each in audited)
        closed = self._closed_by(node, audited, shape)
        for uuid in closed.keys() - self._closed.keys():
            log.warning("neuron_cores_closed", extra=kv(uuid=uuid, reason=closed[uuid].reason))
        self._closed = MappingProxyType(closed)
        return number

    def _read(
        self, node: Node, pod: Pod, held: Sequence[HeldContainer], shape: NeuronShape
    ) -> _Audited | None:
        listed = cores_listed(held, self._resources, shape)
        claim = claim_of(pod, self._resources)
        if listed is None:
            log.debug("neuron_ids_unknown", extra=kv(pod=pod.key))
        if claim is None and not listed:
            return None
        counted = _counted(self._protocol, node, pod, shape)
        return _Audited(pod=pod, claim=claim or NeuronClaim(), listed=listed, counted=counted)

    # -- findings ----------------------------------------------------------------------------------
    def _check(self, node: Node, audited: Sequence[_Audited], shape: NeuronShape) -> int:
        holds = {each.pod.uid: each.holds(shape) for each in audited}
        keys = {each.pod.uid: each.pod.key for each in audited}
        reported: dict[str, frozenset[str]] = {}
        number = 0
        for each in audited:
            uid = each.pod.uid
            others = {keys[other]: cores for other, cores in holds.items() if other != uid}
            written = check_neuron_pod(each.claim, shape, node.name, others)
            listed = check_listed(each.claim, each.listed or frozenset(), shape, others)
            findings = {finding.detail: finding for finding in (*written, *listed)}
            number += len(findings)
            reported[uid] = frozenset(findings)
            self._report(each.pod, findings.values())
        self._reported = reported
        return number

    def _report(self, pod: Pod, findings: Iterable[NeuronFinding]) -> None:
        for finding in findings:
            if finding.detail in self._reported.get(pod.uid, frozenset()):
                continue
            self._count(finding.fault)
            log.warning(
                "neuron_grant_invalid",
                extra=kv(pod=pod.key, rule=finding.fault, detail=finding.detail),
            )
            self._notify(EventNote.about(pod, EVENT, f"{finding.fault}: {finding.detail}"))

    # -- what can't be given -----------------------------------------------------------------------
    def _closed_by(
        self, node: Node, audited: Iterable[_Audited], shape: NeuronShape
    ) -> dict[Uuid, Closed]:
        audited, each = tuple(audited), shape.cores_per_device
        counted = frozenset[int]().union(*(item.counted for item in audited))
        closed: dict[int, Closed] = dict(self._signs.read(shape))
        for item in audited:
            stray = (item.listed or frozenset()) - counted
            for device in sorted({core // each for core in stray}) if each else ():
                cores = [core for core in sorted(stray) if core // each == device]
                mask = sum(1 << core % each for core in cores)
                reason = _stray_reason(item, cores, shape)
                before = closed.get(device)
                if before is not None:
                    mask, reason = mask | before.cores, f"{before.reason}; {reason}"
                closed[device] = Closed(cores=mask, reason=reason)
        return {neuron_uuid(node.name, device): why for device, why in sorted(closed.items())}


class _Signs:
    """The driver's counters, read now and then."""

    def __init__(self, sysfs_root: Path, clock: Clock) -> None:
        self._root, self._clock = sysfs_root, clock
        self._read_s: float | None = None
        self._shape: NeuronShape | None = None
        self._found: Mapping[int, Closed] = {}

    def read(self, shape: NeuronShape) -> Mapping[int, Closed]:
        now_s = self._clock.monotonic()
        is_old = self._read_s is None or now_s - self._read_s >= SIGNS_S
        if is_old or shape != self._shape:
            self._found = read_signs(self._root, shape.devices, shape.cores_per_device)
            self._read_s, self._shape = now_s, shape
        return self._found


def _stray_reason(item: _Audited, cores: Sequence[int], shape: NeuronShape) -> str:
    written = sorted(held_cores(item.claim, shape))
    instead = f", to which {shown_numbers(written)} were given" if written else ""
    return f"cores {shown_numbers(cores)} are held by {item.pod.key}{instead}"


def _counted(protocol: NeuronProtocol, node: Node, pod: Pod, shape: NeuronShape) -> frozenset[int]:
    """The cores of the pod's grants, which the extender counts."""
    indexes = {neuron_uuid(node.name, index): index for index in range(shape.devices)}
    return frozenset(
        indexes[grant.uuid] * shape.cores_per_device + core
        for slot in protocol.held_by(pod).slots
        for grant in slot
        if grant.uuid in indexes
        for core in range(shape.cores_per_device)
        if grant.cores >> core & 1
    )


def claim_of(pod: Pod, resources: NeuronResources) -> NeuronClaim | None:
    """What a pod requests of Neuron and what a scheduler wrote; None if it requests nothing."""
    running = [
        container for container in pod.containers if container.kind is not ContainerKind.INIT
    ]
    devices = sum(count_of(container, resources.device) for container in running)
    cores = sum(count_of(container, resources.core) for container in running)
    if not devices and not cores:
        return None
    return NeuronClaim(
        devices=devices,
        cores=cores,
        ids=_ids(pod.annotations.get(names.NEURON_IDS)),
        unit=_unit(pod.annotations.get(names.NEURON_RESOURCE_TYPE), resources),
        predicate_node=pod.annotations.get(names.NEURON_PREDICATE_NODE),
    )


def _ids(text: str | None) -> tuple[int, ...] | None:
    if not text:
        return ()
    try:
        return decode_neuron_ids(text)
    except WireError:
        return None  # unreadable: a finding of its own


def _unit(text: str | None, resources: NeuronResources) -> NeuronUnit | None:
    if text is None:
        return None
    return NeuronUnit.CORE if text == resources.core else NeuronUnit.DEVICE


# -- what the Neuron driver's own files say about the health of devices: sysfs is read, not written
# Below `devices/virtual/neuron_device` each device has counters since the driver was loaded.
# Writing to them resets them, or the chip. Before Neuron 2.30 only root may read some of them:
# what can't be read says nothing. Sources: AWS's guide to the sysfs of Neuron; its node problem
# detector, for which of the errors mean that the instance has to be replaced.
FOLDER: Final = "devices/virtual/neuron_device"
MAX_BYTES: Final = 64
OF_DEVICE: Final = (
    "stats/hardware/mem_ecc_uncorrected",
    "stats/hardware/sram_ecc_uncorrected",
    "stats/hardware/health_status/unhealthy_components",
)
OF_CORE: Final = ("hw_nc_ue_error", "hw_hbm_ue_error", "hw_dma_abort_error")
_NUMBER: Final = re.compile(rb"0x[0-9a-fA-F]{1,16}|[0-9]{1,20}")
_DEVICE: Final = re.compile(r"neuron[0-9]{1,3}")


def read_signs(sysfs_root: Path, devices: int, cores_per_device: int) -> Mapping[int, Closed]:
    """What can't be used of devices 0 to `devices` - 1; none where the driver has no such files."""
    folder = sysfs_root / FOLDER
    try:
        there = {path.name for path in folder.iterdir() if _DEVICE.fullmatch(path.name)}
    except OSError:
        return {}
    found: dict[int, Closed] = {}
    for device in range(devices if there else 0):
        sign = _sign_of(folder / f"neuron{device}", cores_per_device)
        if sign is not None:
            found[device] = sign
    return found


def _sign_of(folder: Path, cores_per_device: int) -> Closed | None:
    everything = (1 << cores_per_device) - 1
    if not folder.is_dir():
        return Closed(cores=everything, reason="the driver does not have the device")
    for name in OF_DEVICE:
        count = _number(folder / name)
        if count:
            return Closed(cores=everything, reason=f"the driver counts {count} in {name}")
    bad = list(_bad_cores(folder, cores_per_device))
    if not bad:
        return None
    mask = 0
    for core, _ in bad:
        mask |= 1 << core
    return Closed(cores=mask, reason=f"the driver counts errors of cores: {bad[0][1]}")


def _bad_cores(folder: Path, cores_per_device: int) -> Iterator[tuple[int, str]]:
    """Logical cores with uncorrectable errors; the files are of physical ones."""
    physical = _number(folder / "core_count") or cores_per_device
    merged = max(physical // cores_per_device, 1) if cores_per_device else 1
    for core in range(min(physical, merged * cores_per_device)):
        for name in OF_CORE:
            count = _number(folder / f"neuron_core{core}/stats/status/{name}/total")
            if count:
                yield core // merged, f"{name} of core {core // merged}"


def _number(path: Path) -> int:
    """What the file counts; 0 where it can't be read or is no number."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES).strip()
    except OSError:
        return 0
    return int(text, 0 if text.startswith(b"0x") else 10) if _NUMBER.fullmatch(text) else 0
