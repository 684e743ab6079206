"""Cards in MIG mode as the driver shows them, their instances, and the driver's capabilities."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from hami_node.model import Device, Grant
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.mig.layout import (
    DriverCard,
    FoundInstance,
    MigCard,
    MigDevice,
    MigInstance,
    MigPlacement,
)
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.on_node.answer import MadePart
from tests.fakes.cards import card, uuid

MAJOR: Final = 234


def mig_uuid(number: int) -> str:
    """The UUID of an instance."""
    return f"MIG-{number:08x}-0000-5000-8000-{number:012x}"


def part(number: int, gpu_instance: int = 0, compute_instance: int = 0) -> MadePart:
    """An instance that was made for a grant; 0 is a valid number."""
    return MadePart(uuid=mig_uuid(number), numbers=(gpu_instance, compute_instance))


def mig_grant(index: int, start: int = 0) -> Grant:
    """A grant of an instance, as 2.10 writes it."""
    placement = MigPlacement(start=start, size=1)
    instance = MigInstance(profile="1g.5gb", placement=placement)
    return Grant(uuid=uuid(index), vendor=NVIDIA, memory_mib=4864, cores=15, part=instance)


def divided(
    index: int,
    *made: MadePart,
    minor: int | None = None,
    problem: str = "",
    is_enabled: bool = True,
) -> Device:
    """A card in MIG mode with these instances."""
    found = tuple(
        FoundInstance(
            gpu_instance_id=each.numbers[0],
            profile="1g.5gb",
            profile_id=19,
            placement=MigPlacement(start=i, size=1),
            compute_instance_ids=(each.numbers[1],),
            device=MigDevice(
                uuid=each.uuid, gpu_instance_id=each.numbers[0], compute_instance_id=each.numbers[1]
            ),
        )
        for i, each in enumerate(made)
    )
    mig = MigCard(is_enabled=is_enabled, is_pending=is_enabled, instances=found, problem=problem)
    detail = DriverCard(minor=index if minor is None else minor, mig=mig)
    return card(index, mode=Mode.MIG, detail=detail)


def cap_of(minor: int, gpu_instance: int, compute_instance: int | None = None) -> int:
    """The capability's number in `lay_caps`."""
    number = 3 + (minor * 15 + gpu_instance) * 9
    return number if compute_instance is None else number + 1 + compute_instance


def minors_text(minors: Iterable[int] = range(8)) -> str:
    """What the driver writes into mig-minors, for 15 instances with 8 each on every card."""
    lines = ["config 1", "monitor 2"]
    for minor in minors:
        for gi in range(15):
            lines.append(f"gpu{minor}/gi{gi}/access {cap_of(minor, gi)}")
            lines += [f"gpu{minor}/gi{gi}/ci{ci}/access {cap_of(minor, gi, ci)}" for ci in range(8)]
    return "\n".join(lines) + "\n"


def lay_caps(proc: Path, *, has_major: bool = True) -> None:
    """A /proc with the driver's capabilities."""
    folder = proc / "driver/nvidia-caps"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mig-minors").write_text(minors_text())
    caps = f"{MAJOR} nvidia-caps\n" if has_major else ""
    (proc / "devices").write_text(
        f"Character devices:\n  1 mem\n195 nvidia\n{caps}237 nvidia-caps-imex-channels\n\n"
        "Block devices:\n  8 sd\n"
    )
