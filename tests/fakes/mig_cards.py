"""Cards with MIG as the driver describes them, by model, and settings for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hami_node.model import Device
from hami_node.vendors.nvidia.choices import ListedGeometries, ListedInstance, ListedProfiles
from hami_node.vendors.nvidia.mig.details import DriverCard
from hami_node.vendors.nvidia.mig.found import CardProfile, FoundInstance, MigCard, MigDevice
from hami_node.vendors.nvidia.mig.layout import MigPlacement
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.nvidia.settings import NvidiaSettings
from tests.fakes.cards import card


def profile(
    name: str, number: int, count: int, memory_mib: int, size: int, starts: Sequence[int], sms: int
) -> CardProfile:
    """A profile as `nvidia-smi mig -lgip` lists it."""
    return CardProfile(
        name=name,
        id=number,
        memory_mib=memory_mib,
        slice_count=int(name[0]),
        multiprocessors=sms,
        instance_count=count,
        placements=tuple(MigPlacement(start=start, size=size) for start in starts),
    )


A100_40: Final = (
    profile("1g.5gb", 19, 7, 4864, 1, range(7), 14),
    profile("1g.5gb+me", 20, 1, 4864, 1, range(7), 14),
    profile("1g.10gb", 15, 4, 9856, 2, (0, 2, 4, 6), 14),
    profile("2g.10gb", 14, 3, 9856, 2, (0, 2, 4), 28),
    profile("3g.20gb", 9, 2, 19968, 4, (0, 4), 42),
    profile("4g.20gb", 5, 1, 19968, 4, (0,), 56),
    profile("7g.40gb", 0, 1, 40192, 8, (0,), 98),
)
A100_80: Final = (
    profile("1g.10gb", 19, 7, 9728, 1, range(7), 14),
    profile("1g.10gb+me", 20, 1, 9728, 1, range(7), 14),
    profile("1g.20gb", 15, 4, 19968, 2, (0, 2, 4, 6), 14),
    profile("2g.20gb", 14, 3, 19968, 2, (0, 2, 4), 28),
    profile("3g.40gb", 9, 2, 40192, 4, (0, 4), 42),
    profile("4g.40gb", 5, 1, 40192, 4, (0,), 56),
    profile("7g.80gb", 0, 1, 80896, 8, (0,), 98),
)
A30: Final = (
    profile("1g.6gb", 14, 4, 5952, 1, range(4), 14),
    profile("1g.6gb+me", 21, 1, 5952, 1, range(4), 14),
    profile("2g.12gb", 5, 2, 11968, 2, (0, 2), 28),
    profile("2g.12gb+me", 6, 1, 11968, 2, (0, 2), 28),
    profile("4g.24gb", 0, 1, 24000, 4, (0,), 56),
)
RTX_PRO_6000: Final = (
    profile("1g.24gb", 14, 4, 24192, 3, (0, 3, 6, 9), 46),
    profile("1g.24gb+me", 21, 1, 24192, 3, (0, 3, 6, 9), 46),
    profile("1g.24gb-me", 67, 4, 24192, 3, (0, 3, 6, 9), 46),
    profile("2g.48gb", 5, 2, 48512, 6, (0, 6), 94),
    profile("4g.96gb", 0, 1, 97408, 12, (0,), 188),
)


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
