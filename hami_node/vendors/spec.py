"""A vendor: everything that the rest of the program needs from it, as data and functions.

`VENDORS` in `hami_node.vendors.registry` is the only list of vendors. Code that handles all vendors
takes them as a parameter; a test adds its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from hami_node.setting_types import SettingsBlock

if TYPE_CHECKING:  # the list of vendors is read before the registration: it loads only settings
    from pathlib import Path

    from hami_node.config.settings import Settings
    from hami_node.model import Device, Node, Pod, Uuid
    from hami_node.ports import Backend, Clock, CounterSpec, EventNote, HeldContainer, OpenRecord
    from hami_node.vendors.admission import VendorAdmission
    from hami_node.vendors.demo import VendorDemo
    from hami_node.vendors.divided import DividedCards
    from hami_node.vendors.on_node.answer import Responder
    from hami_node.vendors.on_node.limiter import LimiterInstalled, LimiterOrder
    from hami_node.vendors.on_node.limits import LimitWriter
    from hami_node.vendors.on_node.parts import CardParts, PartSources, PartsState
    from hami_node.vendors.on_node.publication import CardSources, Closed, Publication
    from hami_node.vendors.on_node.upkeep import Upkeep
    from hami_node.vendors.on_node.usage import UsageReader
    from hami_node.vendors.protocol import VendorProtocol

S = TypeVar("S")

HeldByUid = Mapping[str, Sequence["HeldContainer"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginOptions:
    """How a resource is served to kubelet.

    Attributes:
        prefers: ask kubelet for GetPreferredAllocation.
        shows_numa: include each card's NUMA node in the device list.
    """

    prefers: bool = True
    shows_numa: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedResource(Generic[S]):
    """An extended resource that this daemon serves to kubelet as its device plugin.

    Attributes:
        name: the extended resource.
        offered: physical cards as the settings offer them under this resource, sorted by
            (index, uuid); cards of other resources are left out.
        options: how kubelet is served.
        count_setting: the key for the number of slots, for an error about too many of them.
        has_own_ids: its device IDs are names of the driver's own, `Device.ids`.
    """

    name: str
    offered: Callable[[tuple[Device, ...], S], tuple[Device, ...]]
    options: Callable[[S], PluginOptions]
    count_setting: str
    has_own_ids: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedCards(Generic[S]):
    """A vendor's cards that this daemon serves: found once, offered as one or several resources.

    Attributes:
        make_backend: makes the backend that finds the cards, with records of its own. Raises
            ConfigError.
        apply: applies new settings to a backend.
        resources: what physical cards are offered as. While the daemon runs no resource is added
            or taken away; one without cards is not registered.
        settled: the settings as they apply to the node's physical cards; they are asked for once,
            when the daemon has found its cards, and stay for as long as it runs.
        make_responder: builds the responses; reads the settings in force for each container.
        make_usage_reader: makes the reader of what containers use; None if nobody can tell.
        harmless_errors: codes of driver errors that leave a card healthy.
        make_limit_writer: changes the limits of containers that run; None where that can't be.
        make_upkeep: removes the files of ended containers; None where there are none.
        make_parts: makes what divides cards of the backend, with records of its own; None where
            nothing is to be divided under the settings in force: it is asked again with others.
        foreign_cards: which of the cards a device ID of another plugin holds; None where it is no
            ID of a card.
        divided: the cards that are divided, for people, of all that the backend has found, those
            that are offered as they are offered; None where none ever is. Never waits.
    """

    make_backend: Callable[[Settings, Clock, OpenRecord], Backend]
    apply: Callable[[Backend, Settings], None]
    resources: Callable[[S, tuple[Device, ...]], tuple[ServedResource[S], ...]]
    make_responder: Callable[[Callable[[], S]], Responder]
    make_usage_reader: Callable[[Callable[[], S], Clock], UsageReader] | None = None
    harmless_errors: Callable[[S], frozenset[int]] = lambda _: frozenset()
    make_limit_writer: Callable[[Callable[[], S]], LimitWriter] | None = None
    make_upkeep: Callable[[Callable[[], S]], Upkeep] | None = None
    make_parts: Callable[[PartSources, Callable[[], S]], CardParts | None] | None = None
    settled: Callable[[S, tuple[Device, ...]], S] = lambda settings, _: settings
    foreign_cards: Callable[[str, Sequence[Device]], tuple[Uuid, ...] | None] = lambda *_: None
    divided: Callable[[Sequence[Device], PartsState, S], DividedCards] | None = None


class Auditor(Protocol):
    """Checks the pods of this node against the rules of a vendor whose own plugin serves them."""

    def audit(self, node: Node, pods: tuple[Pod, ...], held: HeldByUid) -> int:
        """Check all pods and return the number of findings.

        `held` is what kubelet's list has shown of each pod, by uid.
        """

    @property
    def closed(self) -> Mapping[Uuid, Closed]:
        """What can't be given of the cards, by the last check."""

    @property
    def drifted(self) -> int:
        """How many pods hold other cards than were reserved for them, by the last check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOutlets:
    """Where findings go: an Event, and the vendor's counter by its label.

    `sysfs_root` and `clock` are for the vendor's own signs of health.
    """

    notify: Callable[[EventNote], None]
    count: Callable[[str], None]
    sysfs_root: Path
    clock: Clock


def _is_never(node: Node, settings: object) -> bool:
    del node, settings
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorSpec(Generic[S]):
    """A vendor: what a new vendor has to provide. Functions import what they need when called.

    Attributes:
        settings: what it adds to the settings.
        protocol: how its cards are read from and written to Kubernetes objects, by its settings
            and the name of the generation (`compat`).
        publication: what it publishes on the node object; reads the settings in force.
        served: the cards that this daemon serves; None if the vendor's own plugin does.
        auditor: checks the pods of this node; None if Allocate does.
        counter: what the auditor counts.
        listed: the resources under which kubelet lists its cards, where its own plugin serves them.
        is_on: True for a node with cards that the vendor's own plugin serves.
        admission: what the webhook does for pods that request its cards, by the same arguments
            as `protocol`; None if it only checks the values.
        demo: loads its part of `hami-node demo`; None if it has none.
        install_limiter: installs what limits containers on a node. Raises InstallError. None if
            nothing of its own does.
    """

    settings: SettingsBlock[S]
    protocol: Callable[[S, str], VendorProtocol]
    publication: Callable[[CardSources, Callable[[], S]], Publication]
    served: ServedCards[S] | None = None
    auditor: Callable[[AuditOutlets, Callable[[], S]], Auditor] | None = None
    counter: CounterSpec | None = None
    listed: Callable[[S], tuple[str, ...]] = lambda _: ()
    is_on: Callable[[Node, S], bool] = _is_never
    admission: Callable[[S, str], VendorAdmission] | None = None
    demo: Callable[[], VendorDemo] | None = None
    install_limiter: Callable[[LimiterOrder], LimiterInstalled] | None = None


AnyVendor = VendorSpec[Any]


def protocols_of(vendors: Sequence[AnyVendor], settings: Settings) -> tuple[VendorProtocol, ...]:
    """The protocols of all vendors under the settings in force, in the order of the list."""
    return tuple(protocol_of(vendor, settings) for vendor in vendors)


def protocol_of(vendor: AnyVendor, settings: Settings) -> VendorProtocol:
    """The vendor's protocol under the settings in force."""
    return vendor.protocol(settings.of(vendor.settings.kind), settings.compat.value)


def admissions_of(vendors: Sequence[AnyVendor], settings: Settings) -> tuple[VendorAdmission, ...]:
    """The webhook's part of all vendors, in the order of the list."""
    return tuple(_admission_of(vendor, settings) for vendor in vendors)


def _admission_of(vendor: AnyVendor, settings: Settings) -> VendorAdmission:
    from hami_node.vendors.admission import VendorAdmission

    if vendor.admission is None:
        return VendorAdmission(protocol=protocol_of(vendor, settings))
    return vendor.admission(settings.of(vendor.settings.kind), settings.compat.value)
