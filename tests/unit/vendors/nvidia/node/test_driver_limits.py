"""What containers get where the driver limits them, alone or beside the limiter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hami_node.errors import AllocationError
from hami_node.model import Container, Grant
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.choices import (
    BackendKind,
    DeviceListStrategy,
    MemoryLimitBy,
    VisibleDevicesForm,
)
from hami_node.vendors.nvidia.node.driver_limit import DriverLimits, Toolkit, limits_of
from hami_node.vendors.nvidia.node.handover.node_hand_over import NodeHandOver
from hami_node.vendors.nvidia.node.limiter.hook_folder import HookFolder
from hami_node.vendors.nvidia.node.response import NvidiaResponder
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.answer import Slice
from tests.fakes.cards import card, uuid
from tests.fakes.limiter import lay_limiter
from tests.reliability import shows

LIMIT = "NVIDIA_GPU_MEMORY_LIMIT"
MakeResponder = Callable[..., NvidiaResponder]


SMALL = card(3, memory_mib=8000)
SCALED = card(4, memory_mib=80000, physical_memory_mib=40000)
CARDS = {item.uuid: item for item in (*map(card, range(3)), SMALL, SCALED)}


def part(
    *indexes: int, cores: int = 0, env: dict[str, str] | None = None, memory_mib: int | None = None
) -> Slice:
    """3000 MiB of each card, and 1000 more of each card above number 1, unless told."""
    grants = tuple(
        Grant(
            uuid=uuid(i),
            vendor=NVIDIA,
            memory_mib=(3000 if i < 2 else 4000) if memory_mib is None else memory_mib,
            cores=cores,
        )
        for i in indexes
    )
    asked = Container(name="main", env=env or {})
    return Slice(pod_uid="u-1", container=asked, grants=grants, cards=CARDS)


@pytest.fixture
def make(tmp_path: Path) -> MakeResponder:
    """A responder on a node with a limiter, cgroups of version 2 and a driver with the function."""
    cgroups = tmp_path / "cgroup"
    cgroups.mkdir()
    cgroups.joinpath("cgroup.controllers").touch()
    hook = tmp_path / "hook"
    lay_limiter(hook)

    def made(
        by: MemoryLimitBy,
        *,
        knows: bool | None = True,
        toolkit: Toolkit = Toolkit.APPLIES,
        cgroups: Path = cgroups,
    ) -> NvidiaResponder:
        driver = DriverLimits(lambda: toolkit, knows=lambda _: knows, cgroups=cgroups)
        settings = NvidiaSettings(
            hook_path=hook,
            memory_limit_by=by,
            device_list_strategy=(DeviceListStrategy.ENVVAR,),
            visible_devices_form=VisibleDevicesForm.BARE,
            backend=BackendKind.SIMULATED,
        )
        hand_over = NodeHandOver(lambda: settings)
        return NvidiaResponder(HookFolder(hook), lambda: settings, hand_over, driver)

    return made


def test_driver_alone_needs_nothing_of_the_limiter(make: MakeResponder, tmp_path: Path) -> None:
    responder = make(MemoryLimitBy.DRIVER)
    for path in tmp_path.joinpath("hook/vgpu").iterdir():
        path.unlink()
    answer = responder.respond(part(0, 1))
    assert dict(answer.envs) == {LIMIT: "3000", "NVIDIA_VISIBLE_DEVICES": f"{uuid(0)},{uuid(1)}"}
    assert (answer.mounts, answer.limiter_version) == ((), "")
    assert not responder.limiter().is_missing
    assert list(tmp_path.joinpath("hook/vgpu").iterdir()) == []


def test_both_give_the_limiters_answer_and_the_number(make: MakeResponder) -> None:
    alone = make(MemoryLimitBy.LIMITER).respond(part(0))
    both = make(MemoryLimitBy.BOTH).respond(part(0))
    assert LIMIT not in dict(alone.envs)
    assert dict(both.envs) == dict(alone.envs) | {LIMIT: "3000"}
    assert replace(both, envs=()) == replace(alone, envs=())


@shows(
    "D13",
    fault="the driver, the toolkit or the cgroups of a node can't apply the driver's memory limit",
    happens="with the driver alone pods are refused with the remedy; with both the limiter limits",
)
@pytest.mark.parametrize(
    ("lacks", "why"),
    [
        ({"knows": False}, "install driver 615"),
        ({"toolkit": Toolkit.TOO_OLD}, "older than 1.20.1"),
        ({"toolkit": Toolkit.LEGACY}, "legacy mode"),
        ({"toolkit": Toolkit.NO_HOOK}, "nvidia-cdi-hook"),
        ({"cgroups": Path("/nonexistent")}, "version 2"),
    ],
    ids=["driver", "toolkit", "mode", "hook", "cgroups"],
)
def test_node_that_lacks_something(
    make: MakeResponder,
    caplog: pytest.LogCaptureFixture,
    lacks: dict[str, object],
    why: str,
) -> None:
    alone = make(MemoryLimitBy.DRIVER, **lacks)
    for _ in range(3):
        with pytest.raises(AllocationError, match=f"{why}.*--memory-limit-by limiter"):
            alone.respond(part(0))
    assert alone.limiter().is_missing
    assert why in alone.limiter().unready
    assert [record.message for record in caplog.records] == ["driver_limits_no_memory"]

    both = make(MemoryLimitBy.BOTH, **lacks)
    limiter = make(MemoryLimitBy.LIMITER, **lacks)
    assert both.respond(part(0)) == limiter.respond(part(0)), "or the container would not start"
    assert not both.limiter().is_missing


@pytest.mark.parametrize(
    ("index", "memory_mib", "limit"),
    [(3, 0, "8000"), (4, 60000, "40000"), (4, 0, "40000")],
    ids=["whole", "oversubscribed", "whole of a scaled card"],
)
def test_limit_is_in_mib_and_never_above_what_the_card_has(
    make: MakeResponder, index: int, memory_mib: int, limit: str
) -> None:
    answer = make(MemoryLimitBy.DRIVER).respond(part(index, memory_mib=memory_mib))
    assert dict(answer.envs)[LIMIT] == limit


def test_part_of_a_card_is_limited_by_what_it_is() -> None:
    granted = part(0)
    mig = replace(granted, grants=tuple(replace(g, part="1g.5gb-0") for g in granted.grants))
    assert limits_of(mig) == ()


def test_cards_with_different_limits_are_for_the_limiter(make: MakeResponder) -> None:
    with pytest.raises(AllocationError, match="3000 and 4000 MiB"):
        make(MemoryLimitBy.DRIVER).respond(part(1, 2))
    assert LIMIT not in dict(make(MemoryLimitBy.BOTH).respond(part(1, 2)).envs)


@shows(
    "D14",
    fault="a container sets the driver's memory limit or reservation itself",
    happens="webhook and daemon refuse it, whatever limits memory on the node",
)
@pytest.mark.parametrize("by", MemoryLimitBy)
@pytest.mark.parametrize("name", [LIMIT, "NVIDIA_GPU_MEMORY_REQUEST"])
def test_containers_own_number_is_refused(
    make: MakeResponder, name: str, by: MemoryLimitBy
) -> None:
    with pytest.raises(AllocationError, match=f"main sets {name}.*remove it from env"):
        make(by).respond(part(0, env={name: "40000"}))


def test_core_limits_are_not_the_drivers(make: MakeResponder) -> None:
    assert "30 percent" in make(MemoryLimitBy.DRIVER).warning(part(0, cores=30))
    for cores in (0, 100):
        assert make(MemoryLimitBy.DRIVER).warning(part(0, cores=cores)) == ""
    assert make(MemoryLimitBy.BOTH).warning(part(0, cores=30)) == ""
