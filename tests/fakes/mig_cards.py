"""Cards with MIG as the driver describes them, by model, and settings for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hami_node.model import Device
from hami_node.vendors.nvidia.choices import ListedGeometries, ListedInstance, ListedProfiles
from hami_node.vendors.nvidia.mig.layout import (
    CardProfile,
    DriverCard,
    FoundInstance,
    MigCard,
    MigDevice,
    MigPlacement,
)
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.settings import NvidiaSettings
from tests.fakes.cards import card
from tests.nvml_stub.mig import profiles_of


def _of_model(model: str) -> tuple[CardProfile, ...]:
    """The profiles of a model, smallest first."""
    found = profiles_of(model).values()
    return tuple(
        CardProfile(
            name=each.name,
            id=each.id,
            memory_mib=each.memory_mib,
            slice_count=each.slices,
            multiprocessors=each.multiprocessors,
            instance_count=each.instances,
            placements=tuple(MigPlacement(start=start, size=each.size) for start in each.starts),
        )
        for each in sorted(found, key=lambda each: (each.slices, each.size, each.name))
    )


A100_40: Final = _of_model("A100-40")
A100_80: Final = _of_model("A100-80")
A30: Final = _of_model("A30")
H100_80: Final = _of_model("H100-80")
RTX_PRO_6000: Final = _of_model("RTX-PRO-6000")


CHART: Final = (
    ListedProfiles(models=("A30",), profiles=("1g.6gb", "2g.12gb", "4g.24gb")),
    ListedProfiles(
        models=("A100-SXM4-40GB", "A100-40GB-PCIe", "A100-PCIE-40GB"),
        profiles=("1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb"),
    ),
    ListedProfiles(
        models=("A100-SXM4-80GB",), profiles=("1g.10gb", "2g.20gb", "3g.40gb", "7g.79gb")
    ),
)
GEOMETRIES: Final = (
    ListedGeometries(
        models=("A100-SXM4-40GB",),
        allowed_geometries=(
            (ListedInstance(name="1g.5gb", memory=5120, count=7, core=14),),
            (
                ListedInstance(name="1g.5gb", memory=5120, count=1, core=14),
                ListedInstance(name="2g.10gb", memory=10240, count=3, core=28),
            ),
            (ListedInstance(name="3g.20gb", memory=20480, count=2, core=42),),
            (ListedInstance(name="7g.40gb", memory=40960, count=1, core=100),),
        ),
    ),
)
MIG: Final = NvidiaSettings(operating_mode=Mode.MIG, mig_profile_allowlist=CHART)
TEMPLATES: Final = NvidiaSettings(operating_mode=Mode.MIG, known_mig_geometries=GEOMETRIES)


def instance(
    number: int, name: str, start: int, profiles: Sequence[CardProfile] = A100_40
) -> FoundInstance:
    """An instance of a profile at a start, whole, with nobody on it."""
    kind = next(item for item in profiles if item.name == name)
    place = next(item for item in kind.placements if item.start == start)
    return FoundInstance(
        gpu_instance_id=number,
        profile=kind.name,
        profile_id=kind.id,
        placement=place,
        compute_instance_ids=(0,),
        device=MigDevice(
            uuid=f"MIG-{number:08x}-0000-5000-8000-000000000000",
            gpu_instance_id=number,
            compute_instance_id=0,
        ),
        processes=frozenset(),
    )


def divided(
    index: int = 0,
    *instances: FoundInstance,
    profiles: tuple[CardProfile, ...] = A100_40,
    ours: Sequence[int] = (),
    stale: Sequence[int] = (),
    is_enabled: bool = True,
    is_pending: bool | None = None,
    waits_for: str = "",
    problem: str = "",
    restriction: str = "",
    **changes: object,
) -> Device:
    """A physical card with MIG, as a scan finds it."""
    mig = MigCard(
        is_enabled=is_enabled,
        is_pending=is_enabled if is_pending is None else is_pending,
        profiles=profiles,
        instances=instances,
        problem=problem,
        restriction=restriction,
    )
    detail = DriverCard(
        minor=index,
        mig=mig,
        ours=frozenset(ours),
        stale=frozenset(stale),
        waits_for=waits_for,
    )
    mode = Mode.MIG if is_enabled else Mode.HAMI_CORE
    return card(index, slots=1, mode=mode, detail=detail, **changes)
