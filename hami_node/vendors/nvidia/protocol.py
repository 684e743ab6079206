"""NVIDIA cards in Kubernetes objects: what pods request, nodes offer, schedulers write. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from hami_node.engine.usage import DeviceUsage
from hami_node.errors import WireError
from hami_node.model import (
    NO_CARD_WISHES,
    Ask,
    CardWishes,
    Container,
    ContainerGrants,
    ContainerKind,
    Device,
    Grant,
    Node,
    PairScores,
    Pod,
    Uuid,
    uuid_of,
)
from hami_node.vendors.divided import PartView
from hami_node.vendors.nvidia import codec, names, requests
from hami_node.vendors.nvidia.cards import (
    NVIDIA,
    MigDoubt,
)
from hami_node.vendors.nvidia.mig import codec as mig_codec
from hami_node.vendors.nvidia.mig import static
from hami_node.vendors.nvidia.mig.codec import encode_given, is_given, with_given
from hami_node.vendors.nvidia.mig.layout import (
    MigDevice,
    with_known_layout,
)
from hami_node.vendors.nvidia.mode import MigStrategy
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.nvidia.shares import share_of, shares_in
from hami_node.vendors.protocol import VendorKeys, VendorProtocol
from hami_node.vendors.quantities import check_quantities
from hami_node.wire import register
from hami_node.wire.grants import encode_grants
from hami_node.wire.reservation import GrantKeys
from hami_node.wire.values import is_true_word
from hami_node.wire.wishes import decode_uuid_wish, decode_words

KEYS: Final = VendorKeys(
    grants=GrantKeys(
        vendor=NVIDIA,
        allocated=names.POD_ALLOCATED,
        to_allocate=names.POD_TO_ALLOCATE,
        parts=names.POD_MIG_ALLOCATIONS,
    ),
    register=names.NODE_REGISTER,
    handshake=names.NODE_HANDSHAKE,
    reservation=(names.POD_TO_ALLOCATE, names.POD_ALLOCATED, names.POD_MIG_ALLOCATIONS),
)

MEANINGS: Final[Mapping[StrEnum, str]] = MappingProxyType(
    {MigDoubt.NO_INSTANCE: "the reservation is none of the card's MIG instances"}
)

DEFAULTS: Final = NvidiaSettings()

INSTANCE_NUMBERS: Final = ("gpu_instance_id", "compute_instance_id")
"""The numbers of a MIG instance, as metrics call them."""

WISH_KEYS: Final = (
    (names.USE_GPU_TYPE, names.NOUSE_GPU_TYPE),
    (names.USE_GPU_UUID, names.NOUSE_GPU_UUID),
    (names.VGPU_MODE,),
    (names.NUMA_BIND,),
)

WISHED: Final = frozenset(key for group in WISH_KEYS for key in group)


@dataclass(frozen=True, kw_only=True)
class NvidiaProtocol(VendorProtocol):
    """How NVIDIA cards are read from Kubernetes objects and written to them.

    Attributes:
        settings: the names of the resources, and defaults.
        is_101_unset: see `requests.gpu_ask_of`.
    """

    settings: NvidiaSettings
    is_101_unset: bool = False

    # -- what a pod asks for -----------------------------------------------------------------------
    def ask_of(self, container: Container) -> Ask | None:
        """See `VendorProtocol`; a share of cards without a number of cards is refused."""
        check_quantities(container, self.settings.amounts)
        ask = requests.gpu_ask_of(container, self.settings, is_101_unset=self.is_101_unset)
        requests.refuse_share_of_nothing(container, self.settings)
        return ask

    def wishes_of(self, annotations: Mapping[str, str]) -> CardWishes:
        """Types, modes, UUIDs and NUMA binding.

        Source: HAMi device/devices.go:693-738, nvidia/device.go:482.
        """
        if WISHED.isdisjoint(annotations):
            return NO_CARD_WISHES
        modes = decode_words(annotations.get(names.VGPU_MODE))
        return CardWishes(
            use_types=_lower_words(annotations.get(names.USE_GPU_TYPE)),
            nouse_types=_lower_words(annotations.get(names.NOUSE_GPU_TYPE)),
            modes=frozenset(modes) if modes else None,
            uuids=decode_uuid_wish(annotations, names.USE_GPU_UUID, names.NOUSE_GPU_UUID),
            is_numa_bound=is_true_word(annotations.get(names.NUMA_BIND, "")),
        )

    def asks_in_words(self, ask: Ask) -> str:
        """The usual text without a title: most cards are NVIDIA's."""
        return super().asks_in_words(ask).replace(f" {self.title} ", " ", 1)

    # -- fixed shares ------------------------------------------------------------------------------
    def is_fixed(self, resource: str) -> bool:
        """True for names such as `nvidia.com/gpu-1of4`, and for those of MIG instances."""
        return self._has_instances(resource) or (
            shares_in(resource, self.settings.resource_count) > 0
        )

    def _has_instances(self, resource: str) -> bool:
        """True for MIG instances that others make: by name, or those of a node's only profile."""
        if resource == self.settings.resource_count:
            return self.settings.mig_strategy is MigStrategy.SINGLE
        return static.is_resource(resource)

    def fixed_grants(
        self, resource: str, device_ids: Collection[str], cards: Mapping[Uuid, Device]
    ) -> ContainerGrants:
        """Equal shares of memory and cores, those of one card added up, or MIG instances.

        By the cards' numbers, and by the instances' places.
        """
        if not device_ids:
            raise WireError(resource, "", "no device is named")
        if self._has_instances(resource):
            return static.grants_of(resource, device_ids, cards, self.cards)
        shares = shares_in(resource, self.settings.resource_count)
        counts = Counter(map(uuid_of, device_ids))
        for uuid, count in counts.items():
            if uuid not in cards:
                raise WireError(resource, uuid, "is a share of a card that this node does not have")
            if not 0 < count <= shares:
                raise WireError(resource, uuid, f"has no {count} shares of a card")
            if not all(share_of(cards[uuid], 1, shares)):
                why = "is a share of a card whose memory and cores are not known"
                raise WireError(resource, uuid, why)
        return tuple(
            Grant(uuid=uuid, vendor=self.cards, memory_mib=memory_mib, cores=cores)
            for uuid in sorted(counts, key=lambda uuid: (cards[uuid].index, uuid))
            for memory_mib, cores in (share_of(cards[uuid], counts[uuid], shares),)
        )

    def refuse_beside(self, container: Container, resource: str) -> None:
        """No other amount, and no variable of the node's: no webhook has refused it before."""
        super().refuse_beside(container, resource)
        for variable in sorted(container.env):
            why = requests.why_reserved(variable)
            if why:
                raise WireError(variable, container.env[variable], f"{why}: remove it from env")

    def fixed_on(self, node: Node) -> tuple[DeviceUsage, ...]:
        """By the annotation of a standalone daemon."""
        text = node.annotations.get(names.NODE_STANDALONE, "").strip()
        return codec.decode_shares(text) if text else ()

    # -- what a node offers ------------------------------------------------------------------------
    def decode_register(self, text: str, node: Node) -> tuple[Device, ...]:
        """Every generation's form; cards in MIG mode of 2.5 to 2.9 have their known geometries."""
        del node
        devices, known = codec.decode_register(text), self.settings.known_mig_geometries
        return tuple(with_known_layout(device, known) for device in devices)

    def pair_scores_of(self, node: Node) -> PairScores:
        """Links as the node's plugin measured them."""
        text = node.annotations.get(names.NODE_PAIR_SCORES, "")
        return register.decode_pair_scores(text, names.NODE_PAIR_SCORES)

    def marks_of(self, node: Node) -> tuple[str | None, ...]:
        """The links matter too."""
        return (*super().marks_of(node), node.annotations.get(names.NODE_PAIR_SCORES))

    def rival_on(self, node: Node) -> str:
        """NVIDIA's DRA driver, which knows nothing of our grants."""
        return rival_on(node)

    def is_judged(self, node: Node) -> bool:
        """True for csv registrations: plugins of 2.8 and later never answer handshakes."""
        return _is_csv(node)

    # -- what a pod holds --------------------------------------------------------------------------
    def uuid_of(self, grant: Grant) -> str:
        """With the MIG instance, in the form up to 2.9."""
        return mig_codec.joined_uuid(grant)

    def with_parts(
        self, pod: Pod, containers: Sequence[ContainerGrants]
    ) -> tuple[ContainerGrants, ...]:
        """MIG instances; unreadable ones are left out, which contradicts their card."""
        text = pod.annotations.get(names.POD_MIG_ALLOCATIONS, "")
        if is_given(text):
            with suppress(WireError):
                return with_given(containers, text)
        return mig_codec.with_parts(containers, _allocations_of(pod) if text else ())

    def parts_text(self, containers: Sequence[ContainerGrants]) -> str:
        """The MIG instances in the form of 2.10; those up to 2.9 are part of the UUID."""
        rows = mig_codec.encode_mig_allocations(mig_codec.allocations_of(containers))
        return rows or encode_given(containers)

    def with_made(
        self, pod: Pod, container: int, made: Mapping[int, tuple[str, tuple[int, ...]]]
    ) -> Mapping[str, str]:
        """The rows of 2.10 with the identity of the MIG instances; 2.5 to 2.9 have none."""
        text = pod.annotations.get(names.POD_MIG_ALLOCATIONS, "")
        if not text:
            return {}
        devices = {
            index: MigDevice(uuid=uuid, gpu_instance_id=numbers[0], compute_instance_id=numbers[1])
            for index, (uuid, numbers) in made.items()
        }
        return {names.POD_MIG_ALLOCATIONS: mig_codec.with_devices(text, container, devices)}

    def part_info(
        self, part: PartView, *, is_legacy: bool = False
    ) -> tuple[str, Mapping[str, str]] | None:
        """`hami_mig_device_info`, as HAMi 2.10 has it, or `MigInfo`."""
        if len(part.numbers) != len(INSTANCE_NUMBERS) or not part.uuid:
            return None
        if is_legacy:
            return "MigInfo", {"deviceuuid": part.card, "instanceid": str(part.numbers[0])}
        numbers = zip(INSTANCE_NUMBERS, map(str, part.numbers), strict=True)
        labels = {"device_uuid": part.card, "mig_uuid": part.uuid, "profile": part.kind}
        return "hami_mig_device_info", {**labels, **dict(numbers)}

    def part_labels(self, pod: Pod, *, is_legacy: bool = False) -> tuple[Mapping[str, str], ...]:
        """MIG instances that exist; those that a plugin has still to make have no UUID."""
        made = [(row, row.device) for row in _allocations_of(pod) if row.device is not None]
        if is_legacy:
            return tuple(
                {
                    "deviceuuid": row.uuid,
                    "migname": f"{row.instance.profile}-{device.gpu_instance_id}",
                }
                for row, device in made
            )
        return tuple(
            {
                "device_uuid": row.uuid,
                "mig_uuid": device.uuid,
                "profile": row.instance.profile,
                "gpu_instance_id": str(device.gpu_instance_id),
                "compute_instance_id": str(device.compute_instance_id),
                "placement_start": str(row.instance.placement.start),
                "placement_size": str(row.instance.placement.size),
            }
            for row, device in made
        )

    # -- what a scheduler writes -------------------------------------------------------------------
    def annotations_of(
        self,
        node: Node,
        containers: Sequence[Container],
        grants: Sequence[ContainerGrants],
        devices: Mapping[Uuid, Device],
    ) -> dict[str, str]:
        """Grants in both annotations, and MIG instances in the 2.10 form.

        A node that registers in a csv form has a plugin that counts only slots of app containers.
        Source: HAMi 2.10 nvidia/device.go:505.
        """
        del devices
        rows = mig_codec.allocations_of(grants)
        written = grants
        if not rows and _is_csv(node):
            inits = sum(item.kind is not ContainerKind.APP for item in containers)
            if not any(grants[:inits]):
                written = grants[inits:]
        text = encode_grants([tuple(map(_as_written, held)) for held in written])
        texts = {names.POD_TO_ALLOCATE: text, names.POD_ALLOCATED: text}
        allocations = mig_codec.encode_mig_allocations(rows)
        if allocations is not None:
            texts[names.POD_MIG_ALLOCATIONS] = allocations
        return texts


def _allocations_of(pod: Pod) -> tuple[mig_codec.MigAllocation, ...]:
    """The pod's MIG instances in the 2.10 form; () where they can't be read."""
    try:
        return mig_codec.decode_mig_allocations(pod.annotations.get(names.POD_MIG_ALLOCATIONS, ""))
    except WireError:
        return ()


def rival_on(node: Node) -> str:
    """Who else gives out the node's NVIDIA cards, by its labels; "" for nobody."""
    if node.labels.get(names.LABEL_DRA_DRIVER) != "true":
        return ""
    return (
        f"the label {names.LABEL_DRA_DRIVER}=true runs NVIDIA's DRA driver here, a second "
        "allocator of the same cards: serve the node by one of them only"
    )


def _is_csv(node: Node) -> bool:
    """Whether a plugin of 2.4 to 2.7 registered the cards."""
    text = node.annotations.get(names.NODE_REGISTER, "").strip()
    return bool(text) and not register.is_json(text)


def _lower_words(text: str | None) -> tuple[str, ...]:
    return tuple(word.lower() for word in decode_words(text))


def _as_written(grant: Grant) -> Grant:
    return Grant(
        uuid=mig_codec.joined_uuid(grant),
        vendor=grant.vendor,
        memory_mib=grant.memory_mib,
        cores=grant.cores,
    )


def nvidia_protocol(
    settings: NvidiaSettings = DEFAULTS, *, is_101_unset: bool = False
) -> NvidiaProtocol:
    """The protocol with the names, defaults and geometries of these settings."""
    return NvidiaProtocol(
        cards=NVIDIA,
        title="NVIDIA",
        keys=KEYS,
        resources=(*settings.amounts, settings.resource_priority),
        counted=(settings.resource_count,),
        memory=settings.resource_memory,
        cores=settings.resource_cores,
        memory_factor=settings.memory_factor,
        wish_keys=WISH_KEYS,
        meanings=MEANINGS,
        asks_handshakes=True,
        silent_s=60.0,
        part_metric="hami_node_gpu_mig_instance_info",
        legacy_part_metric="nodeGPUMigInstance",
        resize_words=("gpumem", "gpucores"),
        settings=settings,
        is_101_unset=is_101_unset,
    )
