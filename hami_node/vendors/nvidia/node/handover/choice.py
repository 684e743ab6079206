"""Which way this node's cards reach containers, by the settings and what is seen. Pure.

Which name works with which runtime was tried with NVIDIA's container toolkit 1.15 to 1.20; the
table is in docs/driver.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final

from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.choices import DeviceListStrategy, VisibleDevicesForm
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.answer import ContainerResponse, DeviceNode, Mount
from hami_node.wire.names import HAND_OVER_REFUSED

OWN_KIND: Final = "hami-node.io/gpu"
"""The CDI kind of our own specs. Two files with the same device of one kind cancel each other, so
it is nobody else's."""

CDI_STRATEGIES: Final = (DeviceListStrategy.CDI_ANNOTATIONS, DeviceListStrategy.CDI_CRI)
_BARE, _RUNTIME = VisibleDevicesForm.BARE, VisibleDevicesForm.RUNTIME


# -- which kubelets and container engines take CDI names, by their versions ------------------------
# Source: the feature gate DevicePluginCDIDevices (on from Kubernetes 1.29), containerd's option
# enable_cdi (from 1.7, on from 2.0), CRI-O (on in all versions that go with Kubernetes 1.28).
_VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})")
_FIRST_KUBELET: Final = (1, 29)
_CDI_POSSIBLE, _CDI_ON = (1, 7), (2, 0)
_FIRST_CRI_O: Final = (1, 28)


class CdiSupport(Enum):
    """What a container engine does with CDI names."""

    ON = auto()
    MAYBE = auto()
    """It depends on its configuration, which can't be seen; or the engine is unknown."""
    NONE = auto()


def ignores_cdi_names(kubelet: str) -> bool:
    """True for a kubelet that silently drops the CDI names of a device plugin's answer."""
    found = _version(kubelet)
    return found is not None and found < _FIRST_KUBELET


def cdi_support(engine: str) -> CdiSupport:
    """What the node's engine does, as `containerd://2.0.1` names it."""
    name, _, text = engine.partition("://")
    version = _version(text)
    if version is None:
        return CdiSupport.MAYBE
    if name == "containerd":
        if version >= _CDI_ON:
            return CdiSupport.ON
        return CdiSupport.MAYBE if version >= _CDI_POSSIBLE else CdiSupport.NONE
    if name == "cri-o":
        return CdiSupport.ON if version >= _FIRST_CRI_O else CdiSupport.MAYBE
    return CdiSupport.MAYBE


def _version(text: str) -> tuple[int, int] | None:
    found = _VERSION.match(text)
    return (int(found[1]), int(found[2])) if found else None


# -- the choice ------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What this daemon sees of its node.

    Attributes:
        visible_devices: every value of NVIDIA_VISIBLE_DEVICES in its own environment; a runtime
            may have added a second one.
        has_injected_driver: a runtime has put the driver's files into this container.
        has_root: the driver's folder of the host is mounted into this container.
        is_simulated: the cards are not real.
        kubelet: its version, as the node object has it; "" while that is unknown.
        engine: name and version of the container engine, likewise.
        spec_problem: why specs of our own can't be written, in a sentence; "" if they can.
    """

    visible_devices: tuple[str, ...] = ()
    has_injected_driver: bool = False
    has_root: bool = False
    is_simulated: bool = False
    kubelet: str = ""
    engine: str = ""
    spec_problem: str = ""

    @property
    def is_hidden_by_runtime(self) -> bool:
        """The runtime works by CDI: it has told this process that nothing is left to do."""
        return names.HIDES_ALL_CARDS in self.visible_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """How containers get their cards here.

    Attributes:
        strategies: those that are used, in the order of the settings; () where none can work.
        form: how environment and volume mounts name a card.
        why: what decided it.
        problem: why no container can be given a card, and what to do; "" where one can.
        warning: what may go wrong; "" for nothing known.
    """

    strategies: tuple[DeviceListStrategy, ...] = ()
    form: VisibleDevicesForm = _BARE
    why: str = ""
    problem: str = ""
    warning: str = ""

    @property
    def uses_cdi(self) -> bool:
        """CDI names are given, and nothing else names a card."""
        return any(strategy in CDI_STRATEGIES for strategy in self.strategies)

    @property
    def summary(self) -> str:
        """For people: `envvar runtime.nvidia.com/gpu=UUID`; the problem where none can work."""
        if self.problem:
            return f"{HAND_OVER_REFUSED}{self.problem}"
        named = {_BARE: "UUID", _RUNTIME: "runtime.nvidia.com/gpu=UUID"}[self.form]
        shown = f"{','.join(self.strategies)} {OWN_KIND + '=UUID' if self.uses_cdi else named}"
        return f"{shown}; {self.warning}" if self.warning else shown


def choose(settings: NvidiaSettings, signs: Signs) -> HandOver:
    """The way to hand over cards; several strategies are used together as far as that is safe.

    Where CDI is among them and can work, nothing else names cards: the runtime would add those,
    too. Where it can't, the others are used.
    """
    asked = settings.device_list_strategy
    if DeviceListStrategy.AUTO in asked:
        return _automatic(settings, signs)
    by_cdi = tuple(strategy for strategy in asked if strategy in CDI_STRATEGIES)
    others = tuple(strategy for strategy in asked if strategy not in CDI_STRATEGIES)
    if not by_cdi:
        return _by_runtime(others, settings, signs)
    found = _by_cdi(by_cdi, signs)
    if not found.problem or not others:
        return found
    instead = _by_runtime(others, settings, signs)
    return HandOver(
        strategies=others,
        form=instead.form,
        why=f"{instead.why}; CDI can't work here",
        warning=found.problem,
    )


def wants_own_specs(settings: NvidiaSettings, signs: Signs) -> bool:
    """True where CDI is the way to try, whether it can work or not."""
    asked = settings.device_list_strategy
    if DeviceListStrategy.AUTO not in asked:
        return any(strategy in CDI_STRATEGIES for strategy in asked)
    is_named = settings.driver_root is not None
    return not signs.is_simulated and (
        is_named or (signs.has_root and not signs.has_injected_driver)
    )


def _automatic(settings: NvidiaSettings, signs: Signs) -> HandOver:
    envvar = (DeviceListStrategy.ENVVAR,)
    if signs.is_simulated:
        return HandOver(strategies=envvar, form=_BARE, why="the cards are simulated")
    if wants_own_specs(settings, signs):
        return _own_kind(signs)
    way = _by_runtime(envvar, settings, signs)
    if signs.visible_devices and signs.has_injected_driver:
        return way
    seen = (
        "no runtime has put the driver into this daemon's container"
        if signs.visible_devices
        else "NVIDIA_VISIBLE_DEVICES is not set in this daemon"
    )
    return replace(
        way,
        warning=f"{seen}, so containers may start without a card: give this daemon "
        "runtimeClassName nvidia and NVIDIA_VISIBLE_DEVICES=all; or, without that runtime, mount "
        "the driver's folder (--driver-root); or name a --device-list-strategy",
    )


def _own_kind(signs: Signs) -> HandOver:
    """CDI for a driver that no runtime hands over; an engine that may ignore it is refused."""
    support = cdi_support(signs.engine)
    if support is not CdiSupport.ON:
        return HandOver(problem=f"{_engine_problem(signs.engine, support)}: {_REMEDY[support]}")
    by = DeviceListStrategy.CDI_CRI
    if ignores_cdi_names(signs.kubelet):
        by = DeviceListStrategy.CDI_ANNOTATIONS
    return _by_cdi((by,), signs, why="the driver comes from a folder of the host")


_REMEDY: Final = {
    CdiSupport.NONE: "use containerd 2.0 or later or CRI-O, or hand over cards through NVIDIA's "
    "runtime (leave --driver-root unset and set runtimeClassName)",
    CdiSupport.MAYBE: "switch CDI on there (containerd: enable_cdi = true), then set "
    "--device-list-strategy cdi-cri; or use containerd 2.0 or later",
    CdiSupport.ON: "",
}


def _engine_problem(engine: str, support: CdiSupport) -> str:
    if not engine:
        return "the node does not say which container engine it has"
    if support is CdiSupport.NONE:
        return f"{engine} knows no CDI, and cards without NVIDIA's runtime need it"
    return f"{engine} may have CDI switched off, and would ignore its names silently"


def _by_cdi(
    strategies: tuple[DeviceListStrategy, ...], signs: Signs, why: str = "set by the settings"
) -> HandOver:
    if signs.spec_problem:
        return HandOver(problem=signs.spec_problem)
    support = cdi_support(signs.engine)
    usable = strategies
    if DeviceListStrategy.CDI_CRI in strategies:
        problem, remedy = "", "set --device-list-strategy cdi-annotations"
        if ignores_cdi_names(signs.kubelet):
            problem = f"kubelet {signs.kubelet} drops CDI names (it takes them from 1.29 on)"
        elif support is CdiSupport.NONE:
            problem = f"{signs.engine} knows no CDI"
            remedy = (
                "set --device-list-strategy envvar, or cdi-annotations where NVIDIA's runtime, in "
                "a CDI mode, makes the containers"
            )
        if problem:
            usable = tuple(s for s in strategies if s is not DeviceListStrategy.CDI_CRI)
            if not usable:
                return HandOver(problem=f"{problem}: {remedy}")
    warning = ""
    if support is not CdiSupport.ON and not signs.is_simulated:
        warning = (
            f"{signs.engine or 'a container engine of unknown version'} ignores CDI names unless "
            "CDI is switched on there: a container would start without a card"
        )
    return HandOver(strategies=usable, why=why, warning=warning)


def _by_runtime(
    strategies: tuple[DeviceListStrategy, ...], settings: NvidiaSettings, signs: Signs
) -> HandOver:
    seen, why = _form_seen(signs)
    form = settings.visible_devices_form
    if form is VisibleDevicesForm.AUTO:
        return HandOver(strategies=strategies, form=seen, why=why)
    warning = ""
    if form is not seen and not signs.is_simulated:
        warning = (
            f"--visible-devices-form {form}, but {why}: "
            + {
                _BARE: "a runtime in CDI mode may not find bare UUIDs",
                _RUNTIME: "a runtime in legacy mode refuses such names",
            }[form]
        )
    return HandOver(strategies=strategies, form=form, why="set by the settings", warning=warning)


def _form_seen(signs: Signs) -> tuple[VisibleDevicesForm, str]:
    """The form that the runtime of this daemon takes; only legacy mode refuses the longer one."""
    if signs.is_simulated:
        return _BARE, "the cards are simulated"
    if signs.is_hidden_by_runtime:
        return _RUNTIME, "the runtime has written void into this daemon's environment"
    if signs.visible_devices:
        return _BARE, "the runtime has left this daemon's environment as it was"
    return _BARE, "NVIDIA_VISIBLE_DEVICES is not set in this daemon"


# -- the part of a response that names the cards, for each way of handing them over ----------------
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
        return _by_cdi_card_names(cards, way, extras)
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


def _by_cdi_card_names(cards: list[str], way: HandOver, extras: Extras) -> Named:
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
