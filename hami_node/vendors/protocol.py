"""How a vendor's cards are read from Kubernetes objects and written to them.

Code that handles all vendors is written against `VendorProtocol`. Its methods do what HAMi's
vendors have in common; a vendor overrides what differs. Pure: same input, same output.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from hami_node.engine.card_rules import CardRules
from hami_node.engine.quota import Limits
from hami_node.engine.usage import DeviceUsage
from hami_node.errors import WireError
from hami_node.model import (
    NO_CARD_WISHES,
    NO_SCORES,
    Ask,
    CardWishes,
    Container,
    ContainerGrants,
    Device,
    Grant,
    Node,
    PairScores,
    Pod,
    Uuid,
)
from hami_node.vendors.divided import PartView
from hami_node.vendors.held_grants import HeldGrants
from hami_node.vendors.quantities import allocatable_of, check_quantities, count_of
from hami_node.wire import register
from hami_node.wire.grants import decode_grants, encode_grants
from hami_node.wire.quotas import REQUESTS, ResourceQuota
from hami_node.wire.reservation import GrantKeys, counts_of
from hami_node.wire.slots import AmbiguousSlots, SlotMap, SlotMismatch, assign_slots

NO_RESERVATION = (
    "it has no reservation: it did not come through the scheduler (check its schedulerName and "
    "that spec.nodeName was not set by hand)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorKeys:
    """The names of one vendor's annotations.

    Attributes:
        grants: on pods, the grants.
        register: on nodes, the cards.
        handshake: on nodes, who wrote last; "" if the vendor has none.
        reservation: every annotation of a pod that only a scheduler may write for this vendor,
            beside those that all vendors share.
    """

    grants: GrantKeys
    register: str
    handshake: str = ""
    reservation: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class VendorProtocol:
    """How one vendor's cards are read from Kubernetes objects and written to them.

    An object holds the names and defaults of the settings in force.

    Attributes:
        cards: the scheduling rules, which are also the vendor's identity.
        title: what people call the cards.
        keys: its annotations.
        resources: every extended resource that a container may name.
        counted: those of them whose count kubelet allocates devices for, the first that counts.
        memory, cores: the resources with an amount on each card; "" if the vendor has none.
        memory_factor: MiB that one unit of the memory resource means, in pods and in quotas.
        core_name: what cores that are granted individually are called.
        wish_keys: annotations of a pod that wish for certain cards; those that belong together
            are grouped.
        meanings: what its reasons and doubts mean, as sentences for a refusal.
        lasting: its reasons that stay whatever other pods do.
        asks_handshakes: its daemons report on a scheduler's request; else on their own.
        silent_s: a daemon that has reported once and then is silent for this long is down.
        part_metric: what HAMi's scheduler calls the metric of parts of divided cards; "" for none.
        legacy_part_metric: what it called it before 2.9.
        resize_words: in the request to resize a running container, the words for MiB and for
            percent of cores on each card; None where its cards can't be resized.
    """

    cards: CardRules
    title: str
    keys: VendorKeys
    resources: tuple[str, ...]
    counted: tuple[str, ...]
    memory: str = ""
    cores: str = ""
    memory_factor: int = 1
    core_name: str = "cores"
    wish_keys: tuple[tuple[str, ...], ...] = ()
    meanings: Mapping[StrEnum, str] = field(default_factory=lambda: MappingProxyType({}))
    lasting: frozenset[StrEnum] = frozenset()
    asks_handshakes: bool = False
    silent_s: float = 90.0
    part_metric: str = ""
    legacy_part_metric: str = ""
    resize_words: tuple[str, str] | None = None

    # -- what a pod asks for -----------------------------------------------------------------------
    def ask_of(self, container: Container) -> Ask | None:
        """What the container asks for; None for nothing.

        Raises:
            WireError: a value that can't be served; `key` names the resource.
        """
        check_quantities(container, self.resources)
        count = count_of(container, self.counted[0])
        if not count:
            return None
        memory_mib = (count_of(container, self.memory) if self.memory else None) or None
        return Ask(
            vendor=self.cards,
            count=count,
            memory_mib=memory_mib,
            memory_percent=100 if memory_mib is None else None,
            cores=(count_of(container, self.cores) if self.cores else None) or 0,
        )

    def refuse_conflict(self, container: Container) -> None:
        """Refuse a request of which kubelet would hand out more than is reserved.

        It can be decoded as HAMi decodes it; but no pod that is created or placed may have it.

        Raises:
            WireError: it names what contradicts what.
        """
        del container

    def wishes_of(self, annotations: Mapping[str, str]) -> CardWishes:
        """Which cards the pod's annotations wish for; never raises."""
        del annotations
        return NO_CARD_WISHES

    def asks_in_words(self, ask: Ask) -> str:
        """The ask for people: `2 x 3000 MiB, 30 % of cores`, with the vendor's title."""
        memory = f"{ask.memory_percent} %" if ask.memory_mib is None else f"{ask.memory_mib} MiB"
        cores = f", {ask.cores} % of cores" if ask.cores else ""
        return f"{ask.count} x {self.title} {memory}{cores}"

    def is_named(self, container: Container) -> bool:
        """True when the container names one of the vendor's resources."""
        return any(
            resource in container.limits or resource in container.requests
            for resource in self.resources
        )

    def counted_in(self, pod: Pod) -> str:
        """The resource whose count kubelet allocates for the pod's containers."""
        return next((name for name in self.counted if counts_of(pod, name)), self.counted[0])

    def counts_in(self, pod: Pod) -> Mapping[str, int]:
        """How many of that resource each of the pod's containers requests, by its name."""
        return next(filter(None, (counts_of(pod, name) for name in self.counted)), {})

    def limits_in(self, quota: ResourceQuota) -> Limits:
        """What a ResourceQuota allows of the vendor's cards."""
        return Limits(
            memory_mib=quota.limit(self.memory),
            cores=quota.limit(self.cores),
            requests=(quota.limit(self.memory, REQUESTS), quota.limit(self.cores, REQUESTS)),
        )

    # -- fixed shares ------------------------------------------------------------------------------
    def is_fixed(self, resource: str) -> bool:
        """True for a resource of which each device ID is a share of one card, or a part of it.

        No scheduler reserves anything of it: the IDs that kubelet hands out are what a container
        gets. The answer does not depend on whether this node serves the resource now.
        """
        del resource
        return False

    def fixed_grants(
        self, resource: str, device_ids: Collection[str], cards: Mapping[Uuid, Device]
    ) -> ContainerGrants:
        """What these device IDs are: a grant for each card, or for each part, in a fixed order.

        Args:
            resource: a fixed resource.
            device_ids: those of a container, at least one.
            cards: the cards of this node.

        Raises:
            WireError: one is no share or part of a card of this node.
        """
        del device_ids, cards
        raise WireError(resource, "", "is no resource of fixed shares")

    def fixed_on(self, node: Node) -> tuple[DeviceUsage, ...]:
        """The cards that a node shows people in fixed shares, with what is taken of them.

        Raises:
            WireError: they can't be read.
        """
        del node
        return ()

    def refuse_beside(self, container: Container, resource: str) -> None:
        """Refuse a container that asks for a fixed resource, and wants more of this vendor.

        Raises:
            WireError: it names what else the container asks for or sets.
        """
        named = {**container.requests, **container.limits}
        for other, amount in sorted(named.items()):
            is_ours = other in self.resources or self.is_fixed(other)
            if is_ours and other != resource and amount != "0":
                hint = f"can't be asked for beside {resource}, which says it all: remove it"
                raise WireError(other, amount, hint)

    # -- what a node offers ------------------------------------------------------------------------
    def registered_on(self, node: Node) -> tuple[Device, ...]:
        """The cards that the node has registered, in order of registration.

        Raises:
            WireError: the registration can't be read, or a card has no name or is named twice.
        """
        text = node.annotations.get(self.keys.register, "").strip()
        devices = self.decode_register(text, node) if text else ()
        unique = {device.uuid for device in devices}
        if len(unique) < len(devices) or "" in unique:
            raise WireError(self.keys.register, text, "a card without a name, or named twice")
        return devices

    def decode_register(self, text: str, node: Node) -> tuple[Device, ...]:
        """Read a registration that is not empty.

        Raises:
            WireError: an unknown form.
        """
        del node
        key = self.keys.register
        if not register.is_json(text):
            return register.decode_csv_register(text, key, self.cards)
        rows = register.decode_rows(register.ROWS, text, key)
        return tuple(register.device_of(row, self.cards) for row in rows)

    def offered_by(self, node: Node) -> tuple[Device, ...]:
        """The cards that may be scheduled on: registered, and served to kubelet.

        Raises:
            WireError: the registration can't be read, or the cards are not served now.
        """
        devices = self.registered_on(node)
        if devices and not any(allocatable_of(node, resource) for resource in self.counted):
            shown = node.allocatable.get(self.counted[0], "absent")
            key = f"allocatable {self.counted[0]}"
            raise WireError(key, shown, "the node's device plugin is not running")
        return devices

    def pair_scores_of(self, node: Node) -> PairScores:
        """Links between the node's cards.

        Raises:
            WireError: they can't be read.
        """
        del node
        return NO_SCORES

    def marks_of(self, node: Node) -> tuple[str | None, ...]:
        """All that a node's offer depends on: equal marks mean an equal offer."""
        allocatable = (node.allocatable.get(resource) for resource in self.counted)
        return (node.annotations.get(self.keys.register), *allocatable)

    def rival_on(self, node: Node) -> str:
        """Who else gives out the node's cards, by its labels, and what to do; "" for nobody."""
        del node
        return ""

    def is_judged(self, node: Node) -> bool:
        """True where silence means that the node's daemon is down."""
        del node
        return True

    # -- what a pod holds --------------------------------------------------------------------------
    def held_by(self, pod: Pod) -> HeldGrants:
        """What the pod holds by its annotations; never raises.

        A pod that requests no card holds none, whatever its annotations contain.
        """
        text = pod.annotations.get(self.keys.grants.allocated)
        counts = self.counts_in(pod)
        if not text or not counts:
            return HeldGrants(problem="" if not counts else NO_RESERVATION)
        keys = self.keys.grants
        try:
            written = decode_grants(text, keys.allocated, keys.vendor)
        except WireError as e:
            return HeldGrants(problem=f"its reservation can't be read ({e})")
        slots = self.with_parts(pod, written)
        try:
            left = pod.annotations.get(keys.to_allocate, "")
            is_same = left == text  # it is not served yet
            waiting = written if is_same else decode_grants(left, keys.to_allocate, keys.vendor)
        except WireError as e:
            problem = f"its reservation can't be read ({e})"
        else:
            solved = assign_slots(pod, counts, written, waiting)
            if isinstance(solved, SlotMap):
                owned = self._owned(pod, solved)
                return HeldGrants(by_container=owned, slots=slots, slot_map=solved)
            problem = f"its reservation does not match its containers ({solved.why})"
        # Which containers are served is unclear; what each holds may be clear anyway.
        owned = self._owned(pod, assign_slots(pod, counts, written, ()))
        return HeldGrants(by_container=owned, slots=slots, problem=problem)

    def written_on(self, pod: Pod) -> tuple[ContainerGrants, ...]:
        """The grants as written, slot by slot, whatever the pod requests; () if unreadable."""
        keys = self.keys.grants
        text = pod.annotations.get(keys.allocated, "")
        try:
            return self.with_parts(pod, decode_grants(text, keys.allocated, keys.vendor))
        except WireError:
            return ()

    def _owned(
        self, pod: Pod, solved: SlotMap | AmbiguousSlots | SlotMismatch
    ) -> Mapping[str, ContainerGrants]:
        if not isinstance(solved, SlotMap):
            return MappingProxyType({})
        containers = [solved.granted.get(container.name, ()) for container in pod.containers]
        named = zip(pod.containers, self.with_parts(pod, containers), strict=True)
        return {
            container.name: grants
            for container, grants in named
            if container.name in solved.granted
        }

    def uuid_of(self, grant: Grant) -> str:
        """The card's UUID as the vendor writes it, with the part that the grant names."""
        return grant.uuid

    def part_info(
        self, part: PartView, *, is_legacy: bool = False
    ) -> tuple[str, Mapping[str, str]] | None:
        """The series in which HAMi's monitor shows a part that a container has, if any.

        Its name, and its labels without the container and its number for the part; `is_legacy`:
        as before 2.9.
        """
        del part, is_legacy
        return None

    def part_labels(self, pod: Pod, *, is_legacy: bool = False) -> tuple[Mapping[str, str], ...]:
        """The labels of each part in `part_metric` or its legacy, the node aside."""
        del pod, is_legacy
        return ()

    def with_parts(
        self, pod: Pod, containers: Sequence[ContainerGrants]
    ) -> tuple[ContainerGrants, ...]:
        """The written grants with the parts of divided cards that they name."""
        del pod
        return tuple(containers)

    def parts_text(self, containers: Sequence[ContainerGrants]) -> str:
        """The annotation that names the parts of divided cards; "" where the grants name none."""
        del containers
        return ""

    def with_made(
        self, pod: Pod, container: int, made: Mapping[int, tuple[str, tuple[int, ...]]]
    ) -> Mapping[str, str]:
        """The pod's annotations that tell readers which parts were made for a container.

        Args:
            pod: whatever else its annotations say stays.
            container: the position of the container among the pod's, init containers first.
            made: each part's own UUID and the driver's numbers for it, by the grant's position.

        Raises:
            WireError: the annotations can't be read.
        """
        del pod, container, made
        return {}

    # -- what a scheduler writes -------------------------------------------------------------------
    def annotations_of(
        self,
        node: Node,
        containers: Sequence[Container],
        grants: Sequence[ContainerGrants],
        devices: Mapping[Uuid, Device],
    ) -> dict[str, str]:
        """The annotations of a placed pod for this vendor's grants, without the times.

        Args:
            node: the chosen node.
            containers: the pod's containers, init containers first.
            grants: what each of them gets of this vendor, in the same order; not all are empty.
            devices: the node's cards.
        """
        del node, containers, devices
        keys, text = self.keys.grants, encode_grants(grants)
        return {key: text for key in (keys.allocated, keys.to_allocate) if key}

    def stamps_of(self, now_s: float) -> dict[str, str]:
        """The vendor's own times on a pod placed now, beside the time that all vendors share."""
        del now_s
        return {}
