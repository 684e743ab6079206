"""The settings that concern NVIDIA cards."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta, Struct

from hami_node.errors import ConfigError
from hami_node.setting_types import (
    Count,
    Group,
    Mebibytes,
    Percent,
    Role,
    Scaling,
    SettingsBlock,
    setting,
)
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.mode import Mode
from hami_node.vendors.quantities import ResourceName

SERVED_MODES: Final = (Mode.HAMI_CORE,)
"""MIG and MPS cards are not served yet: a node set to them is refused, not served unlimited."""


class RegisterFormat(StrEnum):
    """The generation of the node's register annotation."""

    AUTO = "auto"
    JSON = "json"
    CSV9 = "csv9"
    CSV7 = "csv7"


class HandshakeMode(StrEnum):
    """When the handshake annotation is written."""

    ALWAYS = "always"
    ON_REQUEST = "on-request"
    OFF = "off"


class LimiterMode(StrEnum):
    """What happens to a limited container while the node's limiter is missing or broken."""

    REQUIRED = "required"
    OPTIONAL = "optional"


class DeviceListStrategy(StrEnum):
    """How the cards of a container are passed to the container runtime."""

    ENVVAR = "envvar"
    CDI_CRI = "cdi-cri"


class CorePolicy(StrEnum):
    """When the limiter enforces core limits."""

    DEFAULT = "default"
    FORCE = "force"
    DISABLE = "disable"


class BackendKind(StrEnum):
    """Where the NVIDIA cards come from."""

    NVML = "nvml"
    SIMULATED = "simulated"


class ListedInstance(Struct, frozen=True, kw_only=True):
    """`count` MIG instances of one size; `memory` in MiB, `core` in percent."""

    name: str
    memory: Mebibytes
    count: Annotated[int, Meta(ge=0, le=100)]
    core: Percent = 0


class ListedGeometries(Struct, frozen=True, kw_only=True, rename="camel"):
    """The geometries of the models whose names contain one of `models`."""

    models: tuple[str, ...]
    allowed_geometries: tuple[tuple[ListedInstance, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaSettings:
    """The part of the configuration for NVIDIA cards."""

    backend: BackendKind = setting(BackendKind.NVML, "Where NVIDIA cards come from.")
    simulated_file: Path | None = setting(
        None, "The cards of the simulated backend (YAML); needed with --backend simulated."
    )
    xids_ignored: tuple[Annotated[int, Meta(ge=0, le=65535)], ...] = setting(
        (13, 31, 43, 45, 68, 109),
        "XID errors that an application causes: counted, the card stays healthy.",
        flags=("ignored-xids",),
    )

    split_count: Count = setting(
        10,
        "How many containers may share one card.",
        flags=("device-split-count",),
        env=("DEVICE_SPLIT_COUNT",),
        yaml="deviceSplitCount",
        node="devicesplitcount",
    )
    memory_scaling: Scaling = setting(
        1.0,
        "Offered memory divided by real memory; above 1 memory is oversubscribed.",
        flags=("device-memory-scaling",),
        env=("DEVICE_MEMORY_SCALING",),
        yaml="deviceMemoryScaling",
        node="devicememoryscaling",
    )
    core_scaling: Scaling = setting(
        1.0,
        "Offered cores divided by real cores.",
        flags=("device-cores-scaling", "device-core-scaling"),
        env=("DEVICE_CORES_SCALING",),
        yaml="deviceCoreScaling",
        node="devicecorescaling",
    )
    preconfigured_memory_mib: Mebibytes = setting(
        0,
        "Memory of a card that does not report its own (unified memory), MiB; 0: ask the driver.",
        yaml="preConfiguredDeviceMemory",
        node="preconfigureddevicememory",
    )
    operating_mode: Mode = setting(
        Mode.HAMI_CORE,
        "How this node's cards are shared.",
        node="operatingmode",
        served=SERVED_MODES,
    )
    filter_uuids: tuple[str, ...] = setting(
        (), "UUIDs of cards that are left alone.", node="filterdevices.uuid"
    )
    filter_indexes: tuple[Annotated[int, Meta(ge=0)], ...] = setting(
        (), "Numbers of cards that are left alone.", node="filterdevices.index"
    )
    numa_topology: bool = setting(
        False,
        "Report each card's NUMA node to kubelet.",
        flags=("enable-numa-topology",),
        yaml="enableNumaTopology",
        node="enablenumatopology",
    )
    preferred_allocation: bool = setting(
        True,
        "Answer kubelet's GetPreferredAllocation, so that its device IDs are on the granted cards.",
        node="enablegetpreferredallocation",
    )

    resource_count: ResourceName = setting(
        names.RESOURCE_GPU,
        "Resource: number of cards; the one registered with kubelet.",
        flags=("resource-name",),
        yaml="resourceCountName",
    )
    resource_memory: ResourceName = setting(
        names.RESOURCE_GPU_MEMORY, "Resource: memory on each card, MiB.", yaml="resourceMemoryName"
    )
    resource_memory_percent: ResourceName = setting(
        names.RESOURCE_GPU_MEMORY_PERCENT,
        "Resource: share of each card's memory, percent.",
        yaml="resourceMemoryPercentageName",
    )
    resource_cores: ResourceName = setting(
        names.RESOURCE_GPU_CORES,
        "Resource: share of each card's cores, percent.",
        yaml="resourceCoreName",
    )
    resource_priority: ResourceName = setting(
        names.RESOURCE_GPU_PRIORITY,
        "Resource: task priority, 0 high, 1 low.",
        yaml="resourcePriorityName",
    )
    default_count: Annotated[int, Meta(ge=0, le=1024)] = setting(
        1,
        "Cards of a container that asks for memory or cores only.",
        flags=("default-gpu",),
        yaml="defaultGPUNum",
    )
    default_memory_mib: Mebibytes = setting(
        0,
        "Memory of a container that names none, MiB; 0: the whole card.",
        flags=("default-mem",),
        yaml="defaultMemory",
    )
    default_cores: Percent = setting(
        0, "Cores of a container that names none, percent.", yaml="defaultCores"
    )
    memory_factor: Annotated[int, Meta(ge=1, le=1_048_576)] = setting(
        1, "A memory request counts this many MiB a piece.", yaml="memoryFactor"
    )
    overwrite_env: bool = setting(
        False, "Webhook: hide all cards from containers that ask for none.", yaml="overwriteEnv"
    )
    runtime_class_name: str = setting(
        "", "Webhook: runtime class of pods with cards that name none.", yaml="runtimeClassName"
    )

    hook_path: Path = setting(
        Path("/usr/local"),
        "Host folder whose vgpu/ holds the limiter (libvgpu.so, ld.so.preload).",
        env=("HOOK_PATH",),
    )
    limiter: LimiterMode = setting(
        LimiterMode.REQUIRED,
        "Refuse limited containers while the limiter's files are missing or broken, or let them "
        "run unlimited.",
    )
    device_list_strategy: DeviceListStrategy = setting(
        DeviceListStrategy.ENVVAR,
        "How the cards are passed to the container runtime.",
        env=("DEVICE_LIST_STRATEGY",),
    )
    core_policy: CorePolicy = setting(
        CorePolicy.DEFAULT, "When core limits are enforced.", yaml="gpuCorePolicy"
    )
    disable_core_limit: bool = setting(
        False, "Enforce no core limits on this node.", yaml="disableCoreLimit"
    )
    lib_cuda_log_level: Annotated[int, Meta(ge=0, le=4)] = setting(
        1,
        "The limiter's own log level: 0, 1 errors, 2 warnings, 3 info, 4 debug.",
        yaml="libCudaLogLevel",
        node="libcudaloglevel",
        is_quoted=True,
    )

    known_mig_geometries: Annotated[
        tuple[ListedGeometries, ...],
        Meta(
            description="a list, each with `models` and `allowedGeometries`, as in HAMi's "
            "device-config.yaml; as a flag or environment variable in JSON"
        ),
    ] = setting(
        (),
        "How cards in MIG mode are divided on nodes with HAMi 2.5 to 2.9, which reads it too.",
        yaml="knownMigGeometries",
    )

    register_format: RegisterFormat = setting(
        RegisterFormat.AUTO, "Generation of the register annotation."
    )
    handshake: HandshakeMode = setting(HandshakeMode.ALWAYS, "When the handshake is written.")

    @property
    def amounts(self) -> tuple[str, ...]:
        """The resources that hold amounts of cards, the count first."""
        return (
            self.resource_count,
            self.resource_memory,
            self.resource_memory_percent,
            self.resource_cores,
        )


def _problems(values: NvidiaSettings, role: Role) -> tuple[ConfigError, ...]:
    is_simulated = values.backend is BackendKind.SIMULATED
    if role is not Role.DAEMON or not is_simulated or values.simulated_file is not None:
        return ()
    hint = "--backend simulated needs a file with cards"
    return (ConfigError("command line", "--simulated-file", "", hint),)


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
        "known_mig_geometries": Group.SCHEDULING,
        "register_format": Group.REPORTS,
    },
    section="nvidia",
    resources=_RESOURCES,
    fixed=("backend", "simulated_file", *_RESOURCES, "hook_path"),
    ignored_flags=(
        "cdi-annotation-prefix",
        "cdi-enabled",
        "dev-root",
        "device-discovery-strategy",
        "device-id-strategy",
        "driver-root-ctr-path",
        "fail-on-init-error",
        "gdrcopy-enabled",
        "gds-enabled",
        "imex-channel-ids",
        "imex-required",
        "mig-strategy",
        "mofed-enabled",
        "mps-root",
        "nvidia-cdi-hook-path",
        "nvidia-driver-root",
        "pass-device-specs",
    ),
    ignored_env=(
        "CDI_ANNOTATION_PREFIX",
        "DEVICE_ID_STRATEGY",
        "DP_DISABLE_HEALTHCHECKS",
        "DRIVER_ROOT_CTR_PATH",
        "ENABLE_TOPOLOGY_SCORE",
        "FAIL_ON_INIT_ERROR",
        "GDRCOPY_ENABLED",
        "GDS_ENABLED",
        "IMEX_CHANNEL_IDS",
        "MIG_STRATEGY",
        "MOFED_ENABLED",
        "NVIDIA_CDI_HOOK_PATH",
        "NVIDIA_DEV_ROOT",
        "NVIDIA_DRIVER_ROOT",
        "PASS_DEVICE_SPECS",
    ),
    idle_node_keys={"migstrategy": ("none", "")},
    problems=_problems,
)
