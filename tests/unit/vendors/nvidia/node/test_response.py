from __future__ import annotations

import stat
from pathlib import Path

import pytest

from hami_node.errors import AllocationError
from hami_node.model import Container, ContainerGrants, Grant, Uuid
from hami_node.vendors.answer import ContainerResponse, Mount, Slice
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.cards import NVIDIA
from hami_node.vendors.nvidia.node.response import (
    HookFolder,
    Limiter,
    NvidiaResponder,
    ResponseStyle,
    build,
    response_style,
)
from hami_node.vendors.nvidia.settings import (
    CorePolicy,
    DeviceListStrategy,
    LimiterMode,
    NvidiaSettings,
)
from tests.fakes.cards import card, uuid

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
                container_path="/usr/local/vgpu",
                host_path="/usr/local/vgpu/containers/u-1_main",
                is_read_only=False,
            ),
            Mount(container_path="/tmp/vgpulock", host_path="/tmp/vgpulock", is_read_only=False),
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
    )


def test_build_limits_and_devices_stand_in_one_order_by_card_index() -> None:
    found = envs((grant(10, 4000), grant(2, 2000), grant(0, 1000)))
    assert found[nvidia_names.ENV_VISIBLE_DEVICES] == f"{uuid(0)},{uuid(2)},{uuid(10)}"
    assert [found[f"{nvidia_names.ENV_MEMORY_LIMIT}_{i}"] for i in range(3)] == [
        "1000m",
        "2000m",
        "4000m",
    ]


def test_build_any_annotation_order_gives_the_same_bytes() -> None:
    entry = build(part(grant(0), grant(2)), LIMITER, ResponseStyle())
    assert entry == build(part(grant(2), grant(0)), LIMITER, ResponseStyle())


def test_build_memory_of_zero_becomes_the_size_of_the_card() -> None:
    assert envs((grant(1, 0),))[f"{nvidia_names.ENV_MEMORY_LIMIT}_0"] == "40960m"


@pytest.mark.parametrize(
    ("style", "name", "value"),
    [
        (ResponseStyle(), nvidia_names.ENV_OVERSUBSCRIBE, None),
        (ResponseStyle(is_oversubscribed=True), nvidia_names.ENV_OVERSUBSCRIBE, "true"),
        (ResponseStyle(), nvidia_names.ENV_CORE_POLICY, None),
        (ResponseStyle(is_core_limit_disabled=True), nvidia_names.ENV_CORE_POLICY, "disable"),
        (ResponseStyle(), nvidia_names.ENV_LOG_LEVEL, None),
        (ResponseStyle(log_level="4"), nvidia_names.ENV_LOG_LEVEL, "4"),
        (ResponseStyle(hook_path=Path("/opt")), nvidia_names.ENV_CACHE, "/opt/vgpu/u-1_main.cache"),
        (ResponseStyle(uses_cdi=True), nvidia_names.ENV_VISIBLE_DEVICES, None),
    ],
)
def test_build_style_decides_the_environment(
    style: ResponseStyle, name: str, value: str | None
) -> None:
    assert envs((grant(1),), style).get(name) == value


def test_build_cdi_names_every_card_and_keeps_the_limits() -> None:
    found = build(part(grant(2), grant(0)), LIMITER, ResponseStyle(uses_cdi=True))
    assert found.cdi_devices == (f"nvidia.com/gpu={uuid(0)}", f"nvidia.com/gpu={uuid(2)}")
    assert dict(found.envs)[f"{nvidia_names.ENV_MEMORY_LIMIT}_1"] == "3000m"


@pytest.mark.parametrize(
    ("limiter", "is_off", "missing"),
    [
        (LIMITER, True, {"/etc/ld.so.preload"}),
        (Limiter(), False, {"/etc/ld.so.preload", "/usr/local/vgpu/libvgpu.so"}),
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


# -- the folder ------------------------------------------------------------------------------------
@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "hook" / "vgpu"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def hook(root: Path, tmp_path: Path) -> HookFolder:
    return HookFolder(root.parent, tmp_path / "lock")


def lay(root: Path, *files: str) -> None:
    for name in files:
        (root / name).write_text("x", encoding="utf-8")


@pytest.mark.parametrize(
    ("files", "is_complete", "library"),
    [
        ((), False, None),
        (("libvgpu.so",), False, "libvgpu.so"),
        (("ld.so.preload",), False, None),
        (("libvgpu.so", "ld.so.preload"), True, "libvgpu.so"),
        (("libvgpu.so.v2", "libvgpu.so.v1", "ld.so.preload"), True, "libvgpu.so.v2"),
        (("libvgpu.so.v2", "libvgpu.so", "ld.so.preload"), True, "libvgpu.so"),
    ],
    ids=["none", "no-preload", "no-library", "both", "versions", "plain-wins"],
)
def test_limiter_files_on_the_node_decide(
    root: Path, hook: HookFolder, files: tuple[str, ...], is_complete: bool, library: str | None
) -> None:
    lay(root, *files)
    found = hook.limiter()
    assert found.is_complete == is_complete
    assert (found.library.name if found.library else None) == library


@pytest.mark.parametrize("name", ["libvgpu.so", "ld.so.preload"])
@pytest.mark.parametrize("kind", ["link", "folder", "dangling"])
def test_limiter_that_is_no_regular_file_counts_as_missing(
    root: Path, hook: HookFolder, name: str, kind: str
) -> None:
    lay(root, "libvgpu.so", "ld.so.preload", "real")
    (root / name).unlink()
    if kind == "folder":
        (root / name).mkdir()
    else:
        (root / name).symlink_to(root / ("real" if kind == "link" else "nothing"))
    assert not hook.limiter().is_complete


def test_limiter_validator_counts_only_with_a_licence(root: Path, hook: HookFolder) -> None:
    lay(root, "vgpuvalidator")
    assert hook.limiter().validator is None
    lay(root, "license")
    assert hook.limiter().validator == root / "vgpuvalidator"


def test_missing_limiter_names_the_files_and_the_remedy(root: Path, hook: HookFolder) -> None:
    text = str(hook.missing_limiter())
    assert f"{root}/libvgpu.so" in text
    assert "--limiter optional" in text


def test_prepare_makes_the_folders_writable_for_all_whatever_the_mask(
    root: Path, hook: HookFolder, tmp_path: Path
) -> None:
    hook.prepare(part())
    for folder in (root / "containers" / "u-1_main", tmp_path / "lock"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o777
    assert hook.has_served("u-1_main")
    assert not hook.has_served("u-1_other")


def test_prepare_folder_that_was_served_is_never_wiped(root: Path, hook: HookFolder) -> None:
    hook.prepare(part())
    cache = root / "containers" / "u-1_main" / "u-1_main.cache"
    cache.write_text("shared region", encoding="utf-8")
    hook.prepare(part())
    assert cache.read_text(encoding="utf-8") == "shared region"


@pytest.mark.parametrize("what", ["link", "file"])
@pytest.mark.parametrize("where", ["cache", "lock"])
def test_prepare_something_else_in_the_place_is_refused_and_not_followed(
    root: Path, hook: HookFolder, tmp_path: Path, what: str, where: str
) -> None:
    target = tmp_path / "precious"
    target.mkdir(mode=0o700)
    (root / "containers").mkdir()
    place = root / "containers" / "u-1_main" if where == "cache" else tmp_path / "lock"
    if what == "link":
        place.symlink_to(target)
    else:
        place.write_text("x", encoding="utf-8")
    with pytest.raises(AllocationError, match="can't be made"):
        hook.prepare(part())
    assert stat.S_IMODE(target.stat().st_mode) == 0o700


def test_has_served_a_link_in_the_place_is_no_proof(root: Path, hook: HookFolder) -> None:
    (root / "containers").mkdir()
    (root / "containers" / "u-1_main").symlink_to(root)
    assert not hook.has_served("u-1_main")


def test_folder_name_two_containers_never_share_one() -> None:
    other = part(container="main-2").folder_name
    assert len({part().folder_name, other, part(pod_uid="u-2").folder_name}) == 3


def test_build_card_without_a_grant_in_the_inventory_is_an_error_of_the_caller() -> None:
    stranger = Grant(uuid=Uuid("GPU-x"), vendor=NVIDIA, memory_mib=1, cores=1)
    with pytest.raises(KeyError):
        build(part(stranger), LIMITER, ResponseStyle())


# -- what the settings say -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "name", "value"),
    [
        (NvidiaSettings(), "is_oversubscribed", False),
        (NvidiaSettings(memory_scaling=1.5), "is_oversubscribed", True),
        (NvidiaSettings(lib_cuda_log_level=4), "log_level", "4"),
        (NvidiaSettings(), "is_core_limit_disabled", False),
        (NvidiaSettings(disable_core_limit=True), "is_core_limit_disabled", True),
        (NvidiaSettings(core_policy=CorePolicy.DISABLE), "is_core_limit_disabled", True),
        (NvidiaSettings(core_policy=CorePolicy.FORCE), "is_core_limit_disabled", False),
        (NvidiaSettings(limiter=LimiterMode.REQUIRED), "is_limiter_required", True),
        (NvidiaSettings(limiter=LimiterMode.OPTIONAL), "is_limiter_required", False),
        (NvidiaSettings(device_list_strategy=DeviceListStrategy.CDI_CRI), "uses_cdi", True),
        (NvidiaSettings(device_list_strategy=DeviceListStrategy.ENVVAR), "uses_cdi", False),
        (NvidiaSettings(hook_path=Path("/opt")), "hook_path", Path("/opt")),
    ],
)
def test_response_style_follows_the_settings(
    settings: NvidiaSettings, name: str, value: object
) -> None:
    assert getattr(response_style(settings), name) == value


# -- the responder ---------------------------------------------------------------------------------
def test_responder_answers_and_makes_the_folder(root: Path, hook: HookFolder) -> None:
    lay(root, "libvgpu.so", "ld.so.preload")
    settings = NvidiaSettings(hook_path=root.parent, lib_cuda_log_level=3)
    responder = NvidiaResponder(hook, lambda: settings)

    answer = responder.respond(part(grant(0)))

    assert answer == build(part(grant(0)), hook.limiter(), response_style(settings))
    assert responder.has_served("u-1_main")
    assert not responder.is_incomplete()


@pytest.mark.parametrize("is_required", [True, False])
def test_responder_without_limiter_refuses_unless_it_is_optional(
    hook: HookFolder, is_required: bool
) -> None:
    limiter = LimiterMode.REQUIRED if is_required else LimiterMode.OPTIONAL
    settings = NvidiaSettings(limiter=limiter)
    responder = NvidiaResponder(hook, lambda: settings)

    assert responder.is_incomplete()
    if is_required:
        with pytest.raises(AllocationError, match="without its limits"):
            responder.respond(part(grant(0)))
    else:
        responder.respond(part(grant(0)))
    assert responder.has_served("u-1_main") is not is_required


@pytest.mark.parametrize(
    ("word", "is_off"), [("true", True), ("1", True), ("false", False), ("yes", False), ("", False)]
)
def test_responder_warns_of_a_container_that_switches_its_limiter_off(
    hook: HookFolder, word: str, is_off: bool
) -> None:
    warning = NvidiaResponder(hook, NvidiaSettings).warning(part(grant(0), disable_control=word))

    assert ("container main sets CUDA_DISABLE_CONTROL" in warning) is is_off
    assert bool(warning) is is_off
