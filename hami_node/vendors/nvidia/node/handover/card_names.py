"""The part of a response that names the cards, for each way of handing them over. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.choices import DeviceListStrategy, VisibleDevicesForm
from hami_node.vendors.nvidia.node.handover.choice import OWN_KIND, HandOver
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.answer import ContainerResponse, DeviceNode, Mount

RUNTIME_KIND: Final = "runtime.nvidia.com/gpu"
"""NVIDIA's runtime makes the spec of this kind itself, in memory."""
MOUNTS_INSIDE: Final = "/var/run/nvidia-container-devices"
"""NVIDIA's runtime takes the names of files mounted here as devices."""
_NOTHING_MOUNTED: Final = "/dev/null"
_ENABLED: Final = "enabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What is handed over besides the cards.

    Attributes:
        switches: variables that ask NVIDIA's runtime for further devices.
        annotation_prefix: how the keys of CDI annotations begin.
    """

    switches: tuple[str, ...] = ()
    annotation_prefix: str = "cdi.k8s.io/"


def extras_of(settings: NvidiaSettings) -> Extras:
    """The extras that the settings ask for."""
    wanted = {
        names.ENV_GDS: settings.gds_enabled,
        names.ENV_MOFED: settings.mofed_enabled,
        names.ENV_GDRCOPY: settings.gdrcopy_enabled,
    }
    return Extras(
        switches=tuple(name for name, is_on in wanted.items() if is_on),
        annotation_prefix=settings.cdi_annotation_prefix,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """The cards as one response names them."""

    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    cdi_devices: tuple[str, ...] = ()
    devices: tuple[DeviceNode, ...] = ()


def cdi_name(card: str) -> str:
    """The name of a card, or of a MIG instance, in our own specs."""
    return f"{OWN_KIND}={card.replace('/', '_')}"


def cdi_names(answers: Iterable[ContainerResponse]) -> frozenset[str]:
    """Our CDI names in answers, by either strategy."""
    return frozenset(
        name
        for answer in answers
        for text in (*answer.cdi_devices, *(value for _, value in answer.annotations))
        for name in text.split(",")
        if name.startswith(f"{OWN_KIND}=")
    )


def name_cards(uuids: Sequence[str], way: HandOver, extras: Extras) -> Named:
    """Name each card once. The variable is always set, for an image's own may say `all`."""
    cards = list(dict.fromkeys(uuids))
    if way.uses_cdi:
        return _by_cdi(cards, way, extras)
    envs = {names.ENV_VISIBLE_DEVICES: MOUNTS_INSIDE}
    if DeviceListStrategy.ENVVAR in way.strategies:
        is_bare = way.form is VisibleDevicesForm.BARE
        shown = cards if is_bare else [f"{RUNTIME_KIND}={card}" for card in cards]
        envs[names.ENV_VISIBLE_DEVICES] = ",".join(shown)
    envs |= dict.fromkeys(extras.switches, _ENABLED)
    mounts: tuple[Mount, ...] = ()
    if DeviceListStrategy.VOLUME_MOUNTS in way.strategies:
        mounts = tuple(_mount(card, way.form) for card in cards)
    return Named(envs=envs, mounts=mounts)


def _by_cdi(cards: list[str], way: HandOver, extras: Extras) -> Named:
    qualified = tuple(map(cdi_name, cards))
    envs = {names.ENV_VISIBLE_DEVICES: names.HIDES_ALL_CARDS}
    annotations: tuple[tuple[str, str], ...] = ()
    if DeviceListStrategy.CDI_ANNOTATIONS in way.strategies and cards:
        key = f"{extras.annotation_prefix}hami-node_{cards[0].replace('/', '_')}"
        annotations = ((key, ",".join(qualified)),)
    is_asked = DeviceListStrategy.CDI_CRI in way.strategies
    return Named(envs=envs, annotations=annotations, cdi_devices=qualified if is_asked else ())


def _mount(card: str, form: VisibleDevicesForm) -> Mount:
    folder = MOUNTS_INSIDE
    if form is VisibleDevicesForm.RUNTIME:
        folder = f"{MOUNTS_INSIDE}/cdi/{RUNTIME_KIND}"
    return Mount(container_path=f"{folder}/{card}", host_path=_NOTHING_MOUNTED, is_read_only=False)
