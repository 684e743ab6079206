"""The nouns of the project: cards, wishes, grants, pods and nodes as frozen values.

Units: memory in MiB, cores in percent of one card (100 = the whole card). None means absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

Uuid = NewType("Uuid", str)
"""A card's identity: NVML's UUID, or `<node>-AWSNeuron-<index>`."""


class Vendor(StrEnum):
    """Who makes the card; the word that stands in a pod's grants. Never a model name."""

    NVIDIA = "NVIDIA"
    AWS_NEURON = "AWSNeuron"


class Mode(StrEnum):
    """How a card is shared."""

    HAMI_CORE = "hami-core"
    MIG = "mig"
    MPS = "mps"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigPlacement:
    """Memory slices [start, start + size) of a card."""

    start: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MigProfile:
    """One kind of MIG instance that a card can hold (generation 2.10)."""

    name: str
    memory_mib: int
    cores: int
    slice_count: int
    placements: tuple[MigPlacement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigTemplate:
    """One entry of a geometry (generation 2.8): `count` instances of one size."""

    name: str
    memory_mib: int
    cores: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One physical card as its node offers it.

    Attributes:
        index: the driver's number of the card.
        model: NVML's name, or what a node registered as type.
        mode: a `Mode` value, or whatever foreign text a node registered; "" for Neuron.
        numa: NUMA node; None when unknown.
        slots: how many containers may share the card.
        memory_mib: offered memory (scaled).
        physical_memory_mib: what the card really has; None when only the offer is known.
        cores: offered cores in percent (scaled); for Neuron the bit mask of its cores.
        unhealthy_reason: why `healthy` is False, for people; "" when healthy.
        instance_type: EC2 instance type of a Neuron card's node; "" elsewhere.
    """

    uuid: Uuid
    index: int
    vendor: Vendor
    model: str
    mode: str = Mode.HAMI_CORE
    numa: int | None = None
    healthy: bool = True
    unhealthy_reason: str = ""
    slots: int = 1
    memory_mib: int = 0
    physical_memory_mib: int | None = None
    cores: int = 100
    pci_bus: str = ""
    instance_type: str = ""
    mig_profiles: tuple[MigProfile, ...] = ()
    mig_templates: tuple[tuple[MigTemplate, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What one container wants of one vendor.

    Attributes:
        count: number of cards, at least 1.
        memory_mib: memory on each card; None when not given (then `memory_percent` counts).
        memory_percent: share of each card's memory; None when not given.
        cores: percent of each card; for Neuron the number of cores on each device.
        is_whole_device: Neuron devices are asked for, not cores: all cores of each, however many.
    """

    vendor: Vendor
    count: int
    memory_mib: int | None = None
    memory_percent: int | None = None
    cores: int = 0
    is_whole_device: bool = False

    def memory_mib_on(self, device_memory_mib: int) -> int:
        """Memory in MiB this wish means on a card of that size; percentages are truncated."""
        if self.memory_mib is not None:
            return self.memory_mib
        if self.memory_percent is not None:
            return device_memory_mib * self.memory_percent // 100
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A slice of one card that a scheduler gave to one container.

    `uuid` is as written in the annotation: the 2.8 form of a MIG grant ends in `[template-slot]`.
    `vendor` is the word as written where it is not one of ours ("DCU" in a mixed cluster).
    For Neuron `cores` is the bit mask of the granted cores.
    """

    uuid: Uuid
    vendor: Vendor | str
    memory_mib: int
    cores: int


ContainerGrants = tuple[Grant, ...]
"""The grants of one container, in annotation order; () when it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigReservation:
    """A MIG instance (2.10) reserved for one grant.

    `container_index` counts init containers first; `device_index` is the grant's place in it.
    """

    container_index: int
    device_index: int
    uuid: Uuid
    profile: str
    placement: MigPlacement


@dataclass(frozen=True, slots=True, kw_only=True)
class UuidWish:
    """Which cards a pod may have (`use`; None = any) and may not have (`nouse`)."""

    use: frozenset[str] | None = None
    nouse: frozenset[str] = frozenset()

    def admits(self, uuid: str) -> bool:
        """True where both lists allow the card."""
        return (self.use is None or uuid in self.use) and uuid not in self.nouse


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWishes:
    """What a pod's annotations ask of its cards, beside quantities.

    Attributes:
        use_types: lower-case parts of model names, one of which must occur; () = any model.
        nouse_types: lower-case parts of model names, none of which may occur.
        modes: sharing modes that will do; None = any.
        nvidia, neuron: cards by UUID, per vendor.
        is_numa_bound: all cards of a container on one NUMA node.
        gpu_policy, node_policy: as written; None when the pod does not say.
        scoring_weights: as written; None when the pod does not say.
    """

    use_types: tuple[str, ...] = ()
    nouse_types: tuple[str, ...] = ()
    modes: frozenset[str] | None = None
    nvidia: UuidWish = UuidWish()
    neuron: UuidWish = UuidWish()
    is_numa_bound: bool = False
    gpu_policy: str | None = None
    node_policy: str | None = None
    scoring_weights: str | None = None

    def uuids(self, vendor: Vendor) -> UuidWish:
        """The UUID wish for cards of that vendor."""
        return self.neuron if vendor is Vendor.AWS_NEURON else self.nvidia


class ContainerKind(StrEnum):
    """The role of a container in its pod; a sidecar is an init container that keeps running."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container of a pod's spec with the quantities it names, as text, and its state.

    `env` holds only literal values; `is_terminated_ok` is true once it ended with exit code 0.
    """

    name: str
    kind: ContainerKind = ContainerKind.APP
    limits: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    is_privileged: bool = False
    is_terminated_ok: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """The parts of a pod that the product reads. `containers` has init containers first."""

    uid: str
    namespace: str
    name: str
    node_name: str = ""
    phase: str = "Pending"
    scheduler_name: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[Container, ...] = ()
    resource_version: str = ""
    creation_time: str = ""
    is_being_deleted: bool = False

    @property
    def is_over(self) -> bool:
        """True once every container has ended for good."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def key(self) -> str:
        """`namespace/name`, for people."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The parts of a node that the product reads. Quantities are text."""

    name: str
    uid: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    resource_version: str = ""
    is_unschedulable: bool = False
    is_ready: bool = True
