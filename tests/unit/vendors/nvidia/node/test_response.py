from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hami_node.errors import AllocationError
from hami_node.model import Container, ContainerGrants, Grant
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.choices import (
    BackendKind,
    CorePolicy,
    DeviceListStrategy,
    LimiterMode,
)
from hami_node.vendors.nvidia.node import response
from hami_node.vendors.nvidia.node.handover.choice import Extras, HandOver, name_cards
from hami_node.vendors.nvidia.node.handover.handed import in_order
from hami_node.vendors.nvidia.node.handover.node_hand_over import NodeHandOver
from hami_node.vendors.nvidia.node.limiter.hook_folder import HookFolder
from hami_node.vendors.nvidia.node.limiter.limiter_files import Limiter
from hami_node.vendors.nvidia.node.limiter.versions import LimiterVersion
from hami_node.vendors.nvidia.node.response import ResponseStyle, response_style
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.on_node.answer import ContainerResponse, Mount, Slice
from tests.fakes.cards import card, uuid
from tests.fakes.limiter import lay_limiter

CARDS = {item.uuid: item for item in (card(0), card(1), card(2), card(10))}
LIMITER = Limiter(
    library=Path("/usr/local/vgpu/libvgpu.so"), preload=Path("/usr/local/vgpu/ld.so.preload")
)


def grant(index: int, memory_mib: int = 3000, cores: int = 30) -> Grant:
    return Grant(uuid=uuid(index), vendor=NVIDIA, memory_mib=memory_mib, cores=cores)


def part(
    *grants: Grant, pod_uid: str = "u-1", container: str = "main", disable_control: str = ""
) -> Slice:
    env = {nvidia_names.ENV_DISABLE_CONTROL: disable_control} if disable_control else {}
    asked = Container(name=container, env=env)
    return Slice(pod_uid=pod_uid, container=asked, grants=grants, cards=CARDS)


OPT = Path("/opt")
BY_ENVIRONMENT = HandOver(strategies=(DeviceListStrategy.ENVVAR,))


def build(granted: Slice, limiter: Limiter, style: ResponseStyle) -> ContainerResponse:
    """The response where cards are named in the environment."""
    named = name_cards([g.uuid for g in in_order(granted)], BY_ENVIRONMENT, Extras())
    return response.build(granted, limiter, style, named)


def responder_of(
    folder: HookFolder, settings: Callable[[], NvidiaSettings]
) -> response.NvidiaResponder:
    """A responder on a node with simulated cards, where nothing has to be seen first."""

    def simulated() -> NvidiaSettings:
        return replace(settings(), backend=BackendKind.SIMULATED)

    return response.NvidiaResponder(folder, simulated, NodeHandOver(simulated))


def envs(
    grants: ContainerGrants, style: ResponseStyle | None = None, limiter: Limiter = LIMITER
) -> dict[str, str]:
    return dict(build(part(*grants), limiter, style or ResponseStyle()).envs)


def test_build_one_card_golden() -> None:
    assert build(part(grant(1)), LIMITER, ResponseStyle(log_level="1")) == ContainerResponse(
        envs=(
            ("CUDA_DEVICE_MEMORY_LIMIT_0", "3000m"),
            ("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/usr/local/vgpu/u-1_main.cache"),
            ("CUDA_DEVICE_SM_LIMIT", "30"),
            ("LIBCUDA_LOG_LEVEL", "1"),
            ("NVIDIA_VISIBLE_DEVICES", uuid(1)),
        ),
        mounts=(
            Mount(
                container_path="/usr/local/vgpu/u-1_main.cache",
                host_path="/usr/local/vgpu/containers/u-1_main/u-1_main.cache",
                is_read_only=False,
            ),
            Mount(
                container_path="/tmp/vgpulock",
                host_path="/usr/local/vgpu/lock",
                is_read_only=False,
            ),
            Mount(
                container_path="/usr/local/vgpu/libvgpu.so",
                host_path="/usr/local/vgpu/libvgpu.so",
                is_read_only=True,
            ),
            Mount(
                container_path="/etc/ld.so.preload",
                host_path="/usr/local/vgpu/ld.so.preload",
                is_read_only=True,
            ),
        ),
        limiter_version="unknown",
    )


@pytest.mark.parametrize(
    ("version", "is_mounted"),
    [
        *((text, True) for text in ("", "latest", "v2.4.1", "2.8.0", "v2.8.0-0f3a")),
        *((text, False) for text in ("v2.8.1", "v2.10.0", "v3.0")),
    ],
)
def test_build_lock_folder_is_mounted_for_limiters_that_use_it(
    version: str, is_mounted: bool
) -> None:
    limiter = replace(LIMITER, version=LimiterVersion(version))
    mounts = build(part(grant(0)), limiter, ResponseStyle()).mounts
    assert ("/tmp/vgpulock" in {mount.container_path for mount in mounts}) is is_mounted


def test_build_limits_and_devices_stand_in_one_order_by_card_index() -> None:
    found = envs((grant(10, 4000), grant(2, 2000), grant(0, 1000)))
    assert found[nvidia_names.ENV_VISIBLE_DEVICES] == f"{uuid(0)},{uuid(2)},{uuid(10)}"
    assert [found[f"{nvidia_names.ENV_MEMORY_LIMIT}_{i}"] for i in range(3)] == [
        "1000m",
        "2000m",
        "4000m",
    ]


def test_build_memory_of_zero_becomes_the_size_of_the_card() -> None:
    assert envs((grant(1, 0),))[f"{nvidia_names.ENV_MEMORY_LIMIT}_0"] == "40960m"


@pytest.mark.parametrize(
    ("settings", "name", "value"),
    [
        (NvidiaSettings(), nvidia_names.ENV_OVERSUBSCRIBE, None),
        (NvidiaSettings(memory_scaling=1.5), nvidia_names.ENV_OVERSUBSCRIBE, "true"),
        (NvidiaSettings(), nvidia_names.ENV_CORE_POLICY, None),
        (NvidiaSettings(disable_core_limit=True), nvidia_names.ENV_CORE_POLICY, "disable"),
        (NvidiaSettings(core_policy=CorePolicy.DISABLE), nvidia_names.ENV_CORE_POLICY, "disable"),
        (NvidiaSettings(core_policy=CorePolicy.FORCE), nvidia_names.ENV_CORE_POLICY, "force"),
        (NvidiaSettings(lib_cuda_log_level=4), nvidia_names.ENV_LOG_LEVEL, "4"),
        (NvidiaSettings(hook_path=OPT), nvidia_names.ENV_CACHE, "/opt/vgpu/u-1_main.cache"),
        (NvidiaSettings(), nvidia_names.ENV_REDIRECT, None),
        (NvidiaSettings(hook_path=OPT), nvidia_names.ENV_REDIRECT, "/opt/vgpu/libvgpu.so"),
    ],
)
def test_settings_decide_the_environment(
    settings: NvidiaSettings, name: str, value: str | None
) -> None:
    assert envs((grant(1),), response_style(settings)).get(name) == value


@pytest.mark.parametrize(
    ("limiter", "is_off", "missing"),
    [
        (LIMITER, True, {"/etc/ld.so.preload"}),
        (Limiter(), False, {"/etc/ld.so.preload", "/usr/local/vgpu/libvgpu.so", "/tmp/vgpulock"}),
        (Limiter(library=LIMITER.library), False, {"/etc/ld.so.preload"}),
    ],
    ids=["control-disabled", "no-files", "no-preload"],
)
def test_build_only_files_that_are_there_and_wanted_are_mounted(
    limiter: Limiter, is_off: bool, missing: set[str]
) -> None:
    every = {
        mount.container_path for mount in build(part(grant(0)), LIMITER, ResponseStyle()).mounts
    }
    found = build(
        part(grant(0), disable_control="true" if is_off else ""), limiter, ResponseStyle()
    )
    assert {mount.container_path for mount in found.mounts} == every - missing


def test_build_licence_and_validator_are_mounted_when_there() -> None:
    limiter = Limiter(
        library=LIMITER.library,
        preload=LIMITER.preload,
        license=Path("/l/license"),
        validator=Path("/l/vgpuvalidator"),
    )
    found = {
        mount.container_path: mount for mount in build(part(), limiter, ResponseStyle()).mounts
    }
    assert found["/tmp/license"].host_path == "/l/license"
    assert found["/usr/bin/vgpuvalidator"].is_read_only


# -- the responder ---------------------------------------------------------------------------------
@pytest.fixture
def hook_path(tmp_path: Path) -> Path:
    return tmp_path / "hook"


@pytest.fixture
def hook(hook_path: Path) -> HookFolder:
    return HookFolder(hook_path)


@pytest.mark.parametrize("is_required", [True, False])
def test_responder_without_limiter_refuses_unless_it_is_optional(
    hook_path: Path, hook: HookFolder, is_required: bool
) -> None:
    limiter = LimiterMode.REQUIRED if is_required else LimiterMode.OPTIONAL
    settings = NvidiaSettings(limiter=limiter)
    responder = responder_of(hook, lambda: settings)

    assert responder.limiter().is_missing
    assert "libvgpu.so is not on this node" in responder.warning(part(grant(0)))
    if is_required:
        with pytest.raises(AllocationError, match=r"without its limits.*--limiter optional"):
            responder.respond(part(grant(0)))
    else:
        assert responder.respond(part(grant(0))).limiter_version == ""
    assert (hook_path / "vgpu" / "containers" / "u-1_main").is_dir() is not is_required


@pytest.mark.parametrize(
    ("word", "is_off"), [("true", True), ("1", True), ("false", False), ("yes", False), ("", False)]
)
def test_responder_warns_of_a_container_that_switches_its_limiter_off(
    hook_path: Path, hook: HookFolder, word: str, is_off: bool
) -> None:
    lay_limiter(hook_path)
    warning = responder_of(hook, NvidiaSettings).warning(part(grant(0), disable_control=word))

    assert ("container main sets CUDA_DISABLE_CONTROL" in warning) is is_off
    assert bool(warning) is is_off
