"""Cards for the tests: the default card of the worked examples, MIG cards, Neuron devices."""

from __future__ import annotations

from typing import Any

from hami_node.engine.usage import DeviceUsage, Taken
from hami_node.model import Ask, CardWishes, Device, Grant, PodWishes, Uuid, Vendor
from hami_node.vendors.neuron.cards import NEURON
from hami_node.vendors.neuron.placement import NeuronDetail
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.mig.choice import choices
from hami_node.vendors.nvidia.mig.layout import (
    MigInstance,
    MigLayout,
    MigPlacement,
    MigProfile,
    MigTemplate,
)
from hami_node.vendors.nvidia.mode import Mode

A100 = "NVIDIA A100-SXM4-40GB"


def device(index: int = 0, **changes: Any) -> Device:
    """10 slots, 16384 MiB, 100 cores, healthy, hami-core."""
    values: dict[str, Any] = {
        "uuid": Uuid(f"GPU-{index}"),
        "index": index,
        "vendor": NVIDIA,
        "model": A100,
        "numa": 0,
        "slots": 10,
        "memory_mib": 16384,
        "cores": 100,
    }
    return Device(**(values | changes))


def card(index: int = 0, used: tuple[int, int, int] = (0, 0, 0), **changes: Any) -> DeviceUsage:
    """A card with (slots, MiB, cores) taken."""
    slots, memory_mib, cores = used
    return DeviceUsage(
        device=device(index, **changes),
        slots_used=slots,
        memory_used_mib=memory_mib,
        cores_used=cores,
    )


def ask(count: int = 1, memory_mib: int | None = 4096, cores: int = 30, **changes: Any) -> Ask:
    """The ask of the worked examples."""
    values: dict[str, Any] = {
        "vendor": NVIDIA,
        "count": count,
        "memory_mib": memory_mib,
        "cores": cores,
    }
    return Ask(**(values | changes))


def grant(uuid: str = "GPU-0", memory_mib: int = 4096, cores: int = 30, **changes: Any) -> Grant:
    values: dict[str, Any] = {
        "uuid": Uuid(uuid),
        "vendor": NVIDIA,
        "memory_mib": memory_mib,
        "cores": cores,
    }
    return Grant(**(values | changes))


def wishes_for(vendor: Vendor = NVIDIA, **card_wishes: Any) -> PodWishes:
    """A pod's wishes for cards of one vendor."""
    return PodWishes(cards=((vendor, CardWishes(**card_wishes)),))


def profile(name: str, memory_mib: int, cores: int, size: int, *starts: int) -> MigProfile:
    return MigProfile(
        name=name,
        memory_mib=memory_mib,
        cores=cores,
        slice_count=int(name[0]),
        placements=tuple(MigPlacement(start=start, size=size) for start in starts),
    )


A100_PROFILES = (
    profile("1g.5gb", 4864, 15, 1, 0, 1, 2, 3, 4, 5, 6),
    profile("2g.10gb", 9856, 29, 2, 0, 2, 4),
    profile("3g.20gb", 19968, 43, 4, 0, 4),
    profile("7g.40gb", 40192, 100, 8, 0),
)


def template(name: str, memory_mib: int, cores: int, count: int) -> MigTemplate:
    return MigTemplate(name=name, memory_mib=memory_mib, cores=cores, count=count)


A100_TEMPLATES = (
    (template("1g.5gb", 5120, 14, 7),),
    (template("1g.5gb", 5120, 14, 1), template("2g.10gb", 10240, 28, 3)),
    (template("3g.20gb", 20480, 42, 2),),
    (template("7g.40gb", 40960, 100, 1),),
)


def mig_card(index: int = 0, **changes: Any) -> DeviceUsage:
    """An idle A100 in MIG mode with profiles (2.10)."""
    values: dict[str, Any] = {
        "mode": Mode.MIG,
        "slots": 7,
        "memory_mib": 40960,
        "detail": MigLayout(profiles=A100_PROFILES),
    }
    return card(index, **(values | changes))


def template_card(index: int = 0, **changes: Any) -> DeviceUsage:
    """An idle A100 in MIG mode with geometries (2.8)."""
    return mig_card(index, **({"detail": MigLayout(templates=A100_TEMPLATES)} | changes))


def choose(card: DeviceUsage, memory_mib: int) -> Taken | None:
    """The instance that an ask of this size gets; None when the card has none left."""
    return next(choices(card, memory_mib), None)


def instance(start: int, size: int, name: str = "x") -> MigInstance:
    """An instance at a placement (2.10)."""
    return MigInstance(profile=name, placement=MigPlacement(start=start, size=size))


def neuron_card(used: int = 0, **changes: Any) -> DeviceUsage:
    """A Neuron device `n-0` of two cores, with a mask of cores taken."""
    values: dict[str, Any] = {
        "uuid": Uuid("n-0"),
        "vendor": NEURON,
        "mode": "",
        "slots": 2,
        "memory_mib": 0,
        "cores": 3,
        "detail": NeuronDetail(),
    }
    return card(0, (used.bit_count(), 0, used), **(values | changes))
