"""A vendor: everything that the rest of the program needs from it, as data and functions.

`VENDORS` in `hami_node.vendors.registry` is the only list of vendors. Code that handles all vendors
takes them as a parameter; a test adds its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from hami_node.setting_types import SettingsBlock

if TYPE_CHECKING:  # the list of vendors is read before the registration: it loads only settings
    from hami_node.config.settings import Settings
    from hami_node.model import Device, Node, Pod
    from hami_node.ports import Backend, Clock, CounterSpec, EventNote, OpenRecord
    from hami_node.vendors.admission import VendorAdmission
    from hami_node.vendors.answer import Responder
    from hami_node.vendors.demo import VendorDemo
    from hami_node.vendors.protocol import VendorProtocol
    from hami_node.vendors.publication import CardSources, Publication

S = TypeVar("S")


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
        make_backend: makes the backend that finds the cards, with records of its own. Raises
            ConfigError.
        apply: applies new settings to a backend.
        offered: physical cards as the settings offer them, sorted by (index, uuid).
        options: how kubelet is served.
        make_responder: builds the responses; reads the settings in force for each container.
        count_setting: the key for the number of slots, for an error about too many of them.
        harmless_errors: codes of driver errors that leave a card healthy.
    """

    name: Callable[[S], str]
    make_backend: Callable[[Settings, Clock, OpenRecord], Backend]
    apply: Callable[[Backend, Settings], None]
    offered: Callable[[tuple[Device, ...], S], tuple[Device, ...]]
    options: Callable[[S], PluginOptions]
    make_responder: Callable[[Callable[[], S]], Responder]
    count_setting: str
    harmless_errors: Callable[[S], frozenset[int]] = lambda _: frozenset()


class Auditor(Protocol):
    """Checks the pods of this node against the rules of a vendor whose own plugin serves them."""

    def audit(self, node: Node, pods: tuple[Pod, ...]) -> int:
        """Check all pods and return the number of findings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOutlets:
    """Where findings go: an Event, and the vendor's counter by its label."""

    notify: Callable[[EventNote], None]
    count: Callable[[str], None]


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
        served: the resource that this daemon serves; None if the vendor's own plugin does.
        auditor: checks the pods of this node; None if Allocate does.
        counter: what the auditor counts.
        is_on: True for a node with cards that the vendor's own plugin serves.
        admission: what the webhook does for pods that request its cards, by the same arguments
            as `protocol`; None if it only checks the values.
        demo: loads its part of `hami-node demo`; None if it has none.
    """

    settings: SettingsBlock[S]
    protocol: Callable[[S, str], VendorProtocol]
    publication: Callable[[CardSources, Callable[[], S]], Publication]
    served: ServedResource[S] | None = None
    auditor: Callable[[AuditOutlets, Callable[[], S]], Auditor] | None = None
    counter: CounterSpec | None = None
    is_on: Callable[[Node, S], bool] = _is_never
    admission: Callable[[S, str], VendorAdmission] | None = None
    demo: Callable[[], VendorDemo] | None = None


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
