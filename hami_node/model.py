"""The nouns of the project: cards, wishes, grants, pods and nodes as frozen values.

Units: memory in MiB, cores in percent of one card (100 = the whole card). None means absent.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NewType

Uuid = NewType("Uuid", str)
"""A card's identity, unique in the cluster: the driver's UUID, or one made of node and index."""


class Vendor:
    """The maker of a card: the word used in a pod's grants, never a model name.

    There is one object for each vendor, compared by identity; `engine.card_rules.CardRules` adds
    the rules for its cards. An unknown vendor stays text in a grant.
    """

    def __init__(self, word: str) -> None:
        """`word` is what grants and registrations contain."""
        self.word: Final = word

    def __str__(self) -> str:
        return self.word

    def __repr__(self) -> str:
        return f"<vendor {self.word}>"


PairScores = Mapping[Uuid, Mapping[Uuid, int]]
"""Score of the link between two cards, the higher the faster; a missing pair counts 0."""

NO_SCORES: Final[PairScores] = MappingProxyType({})


DEFAULT_MODE: Final = "hami-core"
"""Cards are shared by limits that a library enforces inside the container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One physical card as its node offers it.

    Attributes:
        index: the driver's number of the card.
        model: the driver's name, or what a node registered as type.
        mode: how the card is shared, as the vendor or a foreign node writes it; "" for none.
        numa: NUMA node; None when unknown.
        slots: how many containers may share the card.
        memory_mib: offered memory (scaled).
        physical_memory_mib: what the card really has; None when only the offer is known.
        cores: offered cores in percent (scaled), or their bit mask, as the vendor counts them.
        unhealthy_reason: why `healthy` is False, for people; "" when healthy.
        ids: what kubelet counts instead of slots, one name for each; () for `<uuid>-<i>`.
        detail: what only the vendor reads; hashable, None for nothing.
    """

    uuid: Uuid
    index: int
    vendor: Vendor
    model: str
    mode: str = DEFAULT_MODE
    numa: int | None = None
    healthy: bool = True
    unhealthy_reason: str = ""
    slots: int = 1
    memory_mib: int = 0
    physical_memory_mib: int | None = None
    cores: int = 100
    pci_bus: str = ""
    ids: tuple[str, ...] = ()
    detail: Hashable = None

    @property
    def device_ids(self) -> list[str]:
        """The IDs that kubelet counts, one for each slot. They survive restarts."""
        return list(self.ids) or [f"{self.uuid}-{i}" for i in range(self.slots)]


def united(cards: Iterable[Device]) -> tuple[Device, ...]:
    """Each card once: those that are offered in several pieces with the slots of all of them."""
    found: dict[Uuid, Device] = {}
    for card in cards:
        had = found.get(card.uuid)
        if had is not None:
            card = replace(had, slots=had.slots + card.slots, ids=(*had.ids, *card.ids))
        found[card.uuid] = card
    return tuple(found.values())


NO_OWN_IDS: Final[Mapping[str, Uuid]] = MappingProxyType({})


def own_ids(cards: Iterable[Device]) -> Mapping[str, Uuid]:
    """The card behind each device ID that is not made from a card's UUID."""
    return {name: card.uuid for card in cards for name in card.ids}


def uuid_of(device_id: str, own: Mapping[str, Uuid] = NO_OWN_IDS) -> Uuid:
    """The card behind a device ID; `own` are those that are not made from a card's UUID."""
    return own.get(device_id) or Uuid(device_id.rpartition("-")[0])


_MAX_SLOT_DIGITS: Final = 6


def is_own_id(device_id: str, uuids: Collection[str], ids: Collection[str] = ()) -> bool:
    """Whether this is `<uuid>-<i>` of one of our cards, or of a card like ours that was lost.

    `ids` are those of our cards that have another form.
    """
    if device_id in ids:
        return True
    uuid, slot = uuid_of(device_id), device_id.rpartition("-")[2]
    if not (slot.isdecimal() and slot.isascii() and len(slot) <= _MAX_SLOT_DIGITS):
        return False
    return uuid in uuids or any(uuid.count("-") == ours.count("-") for ours in uuids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What one container requests from one vendor.

    Attributes:
        count: number of cards, at least 1.
        memory_mib: memory on each card; None when not given (then `memory_percent` counts).
        memory_percent: share of each card's memory; None when not given.
        cores: percent of each card, or the number of cores on each, as the vendor counts them.
        detail: what only the vendor reads; hashable, None for nothing.
    """

    vendor: Vendor
    count: int
    memory_mib: int | None = None
    memory_percent: int | None = None
    cores: int = 0
    detail: Hashable = None

    def memory_mib_on(self, device_memory_mib: int) -> int:
        """Memory in MiB that the ask means on a card of that size; percentages are truncated."""
        if self.memory_mib is not None:
            return self.memory_mib
        if self.memory_percent is not None:
            return device_memory_mib * self.memory_percent // 100
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A slice of one card that a scheduler gave to one container.

    `vendor` is the word as written for a vendor that is not ours ("DCU" in a mixed cluster).
    `cores` is in percent, or the bit mask of the granted cores. `part` names the part of a divided
    card, which only the vendor reads; None for a slice of the whole card.
    """

    uuid: Uuid
    vendor: Vendor | str
    memory_mib: int
    cores: int
    part: Hashable = None


ContainerGrants = tuple[Grant, ...]
"""The grants of one container, in annotation order; () when it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UuidWish:
    """Which cards a pod may have (`use`; None = any) and may not have (`nouse`)."""

    use: frozenset[str] | None = None
    nouse: frozenset[str] = frozenset()

    def admits(self, uuid: str) -> bool:
        """True where both lists allow the card."""
        return (self.use is None or uuid in self.use) and uuid not in self.nouse


@dataclass(frozen=True, slots=True, kw_only=True)
class CardWishes:
    """Which cards of one vendor a pod may have.

    Attributes:
        use_types: lower-case parts of model names, one of which must occur; () = any model.
        nouse_types: lower-case parts of model names, none of which may occur.
        modes: accepted sharing modes; None = any.
        uuids: cards by UUID.
        is_numa_bound: all cards of a container on one NUMA node.
        detail: what only the vendor reads; hashable, None for nothing.
    """

    use_types: tuple[str, ...] = ()
    nouse_types: tuple[str, ...] = ()
    modes: frozenset[str] | None = None
    uuids: UuidWish = UuidWish()
    is_numa_bound: bool = False
    detail: Hashable = None


NO_CARD_WISHES: Final = CardWishes()
"""Any card will do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodWishes:
    """What a pod's annotations require of its cards, apart from quantities.

    Attributes:
        cards: wishes by vendor; vendors without wishes are left out.
        gpu_policy, node_policy: as written; None when the pod does not set it.
        scoring_weights: as written; None when the pod does not set it.
    """

    cards: tuple[tuple[Vendor, CardWishes], ...] = ()
    gpu_policy: str | None = None
    node_policy: str | None = None
    scoring_weights: str | None = None

    def of(self, vendor: Vendor) -> CardWishes:
        """The wishes for cards of that vendor."""
        for owner, wishes in self.cards:
            if owner is vendor:
                return wishes
        return NO_CARD_WISHES


class ContainerKind(StrEnum):
    """The role of a container in its pod; a sidecar is an init container that keeps running."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container of a pod's spec with the quantities it names, as text, and its state.

    `env` holds literal values, and "" for some that come from elsewhere; `is_terminated` is true
    while it has ended and was not started again, `is_terminated_ok` if that was with exit code 0.
    """

    name: str
    kind: ContainerKind = ContainerKind.APP
    limits: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    is_privileged: bool = False
    is_terminated: bool = False
    is_terminated_ok: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """The parts of a pod that the product reads. `containers` has init containers first.

    `has_containers` is true once the container runtime has made one of them. `refusal` is
    kubelet's message where it could not admit the pod;
    `nominated_node` the node on which kube-scheduler makes room for it, "" for none;
    `is_preempted` is true once kube-scheduler evicts it for another pod;
    `unscheduled` tells apart what kube-scheduler says of a pod that it could not bind, "" for none.
    """

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
    has_containers: bool = False
    refusal: str = ""
    priority: int = 0
    never_preempts: bool = False
    nominated_node: str = ""
    is_preempted: bool = False
    unscheduled: str = ""

    @property
    def has_started(self) -> bool:
        """True once kubelet has started a container: it has admitted the pod before."""
        return self.has_containers or self.phase == "Running"

    @property
    def is_over(self) -> bool:
        """True once every container has ended for good."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def key(self) -> str:
        """`namespace/name`, for people."""
        return f"{self.namespace}/{self.name}"

    @property
    def version(self) -> int:
        """The resourceVersion as a number that grows; 0 where there is none."""
        return version_number(self.resource_version)


NO_CONDITIONS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The parts of a node that the product reads. Quantities are text.

    `conditions` are those that kubelet does not write itself: the reason by the condition's type;
    `engine_version` is name and version of the container engine, as `containerd://2.0.1`.
    """

    name: str
    uid: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    capacity: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    resource_version: str = ""
    is_unschedulable: bool = False
    is_ready: bool = True
    conditions: Mapping[str, str] = field(default_factory=lambda: NO_CONDITIONS)
    kubelet_version: str = ""
    engine_version: str = ""

    @property
    def version(self) -> int:
        """The resourceVersion as a number that grows; 0 where there is none."""
        return version_number(self.resource_version)


VERSION_DIGITS: Final = 20
"""etcd counts in 64 bits."""


def version_number(resource_version: str) -> int:
    """A resourceVersion as a number that grows; 0 for any other text."""
    is_number = resource_version.isdecimal() and len(resource_version) <= VERSION_DIGITS
    return int(resource_version) if is_number else 0
