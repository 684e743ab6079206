"""The driver's own limit: one number a container, only where driver, kernel and toolkit have it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hami_node.errors import AllocationError
from hami_node.model import Container, Device, Grant, Uuid
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.node.driver_limit import (
    LimitSigns,
    Toolkit,
    backstop_env,
    core_warning,
    limit_env,
    limits_of,
    reserved_problem,
    toolkit_of,
)
from hami_node.vendors.on_node.answer import Slice
from tests.fakes.cards import card, uuid

GOOD = LimitSigns(has_function=True, has_cgroup_v2=True, toolkit=Toolkit.APPLIES)
SMALL = replace(card(2), memory_mib=8000)
SCALED = replace(card(3), memory_mib=80000, physical_memory_mib=40000)
CARDS: dict[Uuid, Device] = {item.uuid: item for item in (card(0), card(1), SMALL, SCALED)}


def part(*amounts: tuple[int, int, int], env: dict[str, str] | None = None) -> Slice:
    """A slice of (card, MiB, cores)."""
    grants = tuple(
        Grant(uuid=uuid(index), vendor=NVIDIA, memory_mib=mib, cores=cores)
        for index, mib, cores in amounts
    )
    asked = Container(name="main", env=env or {})
    return Slice(pod_uid="u", container=asked, grants=grants, cards=CARDS)


@pytest.mark.parametrize(
    ("amounts", "limits"),
    [
        ([(0, 3000, 0)], (3000,)),
        ([(0, 3000, 0), (1, 3000, 0)], (3000,)),
        ([(1, 4000, 0), (0, 3000, 0)], (3000, 4000)),
        ([(2, 0, 0)], (8000,)),
        ([(3, 60000, 0)], (40000,)),
        ([(3, 0, 0)], (40000,)),
    ],
    ids=["one", "equal", "different", "whole", "oversubscribed", "whole of a scaled card"],
)
def test_limits_are_in_mib_and_never_above_what_the_card_has(
    amounts: list[tuple[int, int, int]], limits: tuple[int, ...]
) -> None:
    assert limits_of(part(*amounts)) == limits


def test_part_of_a_card_is_limited_by_what_it_is() -> None:
    granted = part((0, 3000, 0))
    mig = replace(granted, grants=tuple(replace(g, part="1g.5gb-0") for g in granted.grants))
    assert limits_of(mig) == ()
    assert limit_env(mig, GOOD) == {}


def test_number_is_plain_mib() -> None:
    assert limit_env(part((0, 3000, 0)), GOOD) == {"NVIDIA_GPU_MEMORY_LIMIT": "3000"}


def test_different_limits_are_refused_or_left_to_the_limiter() -> None:
    granted = part((0, 3000, 0), (1, 4000, 0))
    with pytest.raises(AllocationError, match=r"3000 and 4000 MiB.*--memory-limit-by limiter"):
        limit_env(granted, GOOD)
    assert backstop_env(granted, GOOD) == {}


@pytest.mark.parametrize(
    ("signs", "why"),
    [
        (replace(GOOD, has_function=False), "nvmlDeviceSetMemoryLimits_v1: install driver 615"),
        (replace(GOOD, has_cgroup_v2=False), "version 2"),
        (replace(GOOD, toolkit=Toolkit.TOO_OLD), "older than 1.20.1"),
        (replace(GOOD, toolkit=Toolkit.LEGACY), "legacy mode"),
        (replace(GOOD, toolkit=Toolkit.NO_HOOK), "nvidia-cdi-hook"),
    ],
)
def test_node_that_lacks_something_refuses_with_the_remedy(signs: LimitSigns, why: str) -> None:
    with pytest.raises(AllocationError, match=why) as refused:
        limit_env(part((0, 3000, 0)), signs)
    assert "--memory-limit-by limiter" in str(refused.value)
    assert backstop_env(part((0, 3000, 0)), signs) == {}, "the hook would refuse the container"


@pytest.mark.parametrize(
    "signs", [replace(GOOD, toolkit=Toolkit.UNKNOWN), replace(GOOD, has_function=None)]
)
def test_what_can_not_be_seen_is_trusted_and_said(signs: LimitSigns) -> None:
    assert limit_env(part((0, 3000, 0)), signs) == {"NVIDIA_GPU_MEMORY_LIMIT": "3000"}
    assert not signs.is_verified
    assert GOOD.is_verified


@pytest.mark.parametrize(
    ("values", "is_injected", "toolkit"),
    [
        (("void",), True, Toolkit.APPLIES),
        (("all", "void"), True, Toolkit.TOO_OLD),
        (("all",), True, Toolkit.LEGACY),
        (("all",), False, Toolkit.UNKNOWN),
        (("void",), False, Toolkit.UNKNOWN),
        ((), True, Toolkit.UNKNOWN),
    ],
)
def test_daemons_own_environment_tells_the_toolkits_generation(
    values: tuple[str, ...], is_injected: bool, toolkit: Toolkit
) -> None:
    assert toolkit_of(values, has_injected_driver=is_injected) is toolkit


@pytest.mark.parametrize(
    "name", [nvidia_names.ENV_DRIVER_MEMORY_LIMIT, nvidia_names.ENV_DRIVER_MEMORY_REQUEST]
)
def test_containers_own_number_is_refused(name: str) -> None:
    assert f"sets {name}" in reserved_problem(part((0, 3000, 0), env={name: ""}))
    assert reserved_problem(part((0, 3000, 0), env={"CUDA_X": "1"})) == ""


@pytest.mark.parametrize(("cores", "is_warned"), [(0, False), (30, True), (100, False)])
def test_cores_that_nothing_limits_are_warned_of(cores: int, is_warned: bool) -> None:
    assert (f"asks for {cores} percent" in core_warning(part((0, 1, cores)))) is is_warned
