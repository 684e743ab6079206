"""NVIDIA's settings as a block of the configuration: groups, what is fixed, what has no effect."""

from __future__ import annotations

from typing import Final

from hami_node.errors import ConfigError
from hami_node.setting_types import Group, Role, SettingsBlock
from hami_node.vendors.nvidia.choices import BackendKind, DeviceListStrategy
from hami_node.vendors.nvidia.mode import MigStrategy, Mode
from hami_node.vendors.nvidia.settings import NvidiaSettings
from hami_node.vendors.nvidia.shares import contradictions, misnamed


def _problems(values: NvidiaSettings, role: Role) -> tuple[ConfigError, ...]:
    found = misnamed({field: getattr(values, field) for field in _RESOURCES})
    if role is not Role.DAEMON:
        return tuple(found)
    if hint := _mig_problem(values):
        found.append(ConfigError("settings", "mig-strategy", values.mig_strategy, hint))
    if values.standalone:
        found += contradictions(
            values.standalone_shares,
            values.resource_count,
            memory_scaling=values.memory_scaling,
            core_scaling=values.core_scaling,
            mode=values.operating_mode,
        )
    if values.backend is BackendKind.SIMULATED and values.simulated_file is None:
        hint = "--backend simulated needs a file with cards"
        found.append(ConfigError("command line", "--simulated-file", "", hint))
    if hint := _strategy_problem(values.device_list_strategy):
        given = ",".join(values.device_list_strategy)
        found.append(ConfigError("command line", "--device-list-strategy", given, hint))
    return tuple(found)


def _mig_problem(values: NvidiaSettings) -> str:
    """What can't be beside instances that others make."""
    if values.mig_strategy is MigStrategy.NONE:
        return ""
    if values.operating_mode is Mode.MIG:
        return (
            "operatingmode mig makes instances for each container, single and mixed offer those "
            "that others have made: keep one of the two (mig-strategy none, or operatingmode "
            "hami-core)"
        )
    if values.standalone:
        return "standalone has no instances: set mig-strategy none, or standalone false"
    return ""


def _strategy_problem(strategies: tuple[DeviceListStrategy, ...]) -> str:
    if not strategies:
        return "name a strategy, or auto"
    if len(set(strategies)) < len(strategies):
        return "name each strategy once"
    is_mixed = DeviceListStrategy.AUTO in strategies and len(strategies) > 1
    return "auto stands alone: it chooses the others" if is_mixed else ""


_RESOURCES: Final = (
    "resource_count",
    "resource_memory",
    "resource_memory_percent",
    "resource_cores",
    "resource_priority",
)

NVIDIA_SETTINGS: Final = SettingsBlock(
    kind=NvidiaSettings,
    groups={
        "backend": Group.CARDS,
        "split_count": Group.SHARING,
        "resource_count": Group.REQUESTS,
        "hook_path": Group.CONTAINER,
        "known_mig_geometries": Group.RULES,
        "register_format": Group.REPORTS,
    },
    section="nvidia",
    resources=_RESOURCES,
    fixed=(
        "backend",
        "simulated_file",
        "standalone",
        "standalone_shares",
        "mig_strategy",
        *_RESOURCES,
        "hook_path",
        "driver_root",
        "driver_root_ctr_path",
        "dev_root",
        "validations_dir",
        "cdi_spec_dir",
    ),
    ignored_flags=(
        "cdi-enabled",
        "cdi-feature-flags",
        "device-discovery-strategy",
        "device-id-strategy",
        "fail-on-init-error",
        "imex-channel-ids",
        "imex-required",
        "mps-root",
        "restart-on-device-unhealthy",
    ),
    ignored_env=(
        "CDI_FEATURE_FLAGS",
        "DEVICE_DISCOVERY_STRATEGY",
        "DEVICE_ID_STRATEGY",
        "DP_DISABLE_HEALTHCHECKS",
        "ENABLE_TOPOLOGY_SCORE",
        "FAIL_ON_INIT_ERROR",
        "IMEX_CHANNEL_IDS",
        "IMEX_REQUIRED",
        "MPS_ROOT",
    ),
    idle_node_keys={"migstrategy": ("",)},
    own_node_keys=("standalone", "standaloneshares"),
    problems=_problems,
)
