"""The settings that concern NVIDIA cards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final

from msgspec import Meta

from hami_node.setting_types import (
    Count,
    Mebibytes,
    Percent,
    Scaling,
    setting,
)
from hami_node.vendors.nvidia import names
from hami_node.vendors.nvidia.choices import (
    AnnotationPrefix,
    BackendKind,
    CorePolicy,
    DeviceListStrategy,
    HandshakeMode,
    LimiterMode,
    ListedGeometries,
    ListedProfiles,
    MemoryLimitBy,
    RegisterFormat,
    Sha256,
    VisibleDevicesForm,
)
from hami_node.vendors.nvidia.mode import MigStrategy, Mode
from hami_node.vendors.nvidia.shares import (
    CardShares,
)
from hami_node.vendors.quantities import ResourceName

REFUSED_MODES: Final = MappingProxyType(
    {
        Mode.MPS: "hami-node does not serve MPS, whose limits a container can lift itself and "
        "whose clients share their faults (docs/mig.md): use hami-core, mig where the card has it, "
        "or NVIDIA's own device plugin on nodes for MPS",
    }
)
"""A node set to one of them is refused, not served unlimited."""


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
        "How this node's cards are shared: by limits in the container, or by MIG instances that "
        "are made for each container.",
        node="operatingmode",
        refused=REFUSED_MODES,
    )
    mig_strategy: MigStrategy = setting(
        MigStrategy.NONE,
        "How MIG instances that others have made are offered, untouched: not at all, all alike as "
        "the resource of whole cards (single), or each profile under a name of its own, such as "
        "nvidia.com/mig-1g.5gb (mixed).",
        env=("MIG_STRATEGY",),
        node="migstrategy",
    )
    standalone: bool = setting(
        False,
        "Serve fixed shares of cards, such as nvidia.com/gpu-1of4, without any scheduler part.",
        node="standalone",
    )
    standalone_shares: Annotated[
        CardShares,
        Meta(
            description="a whole number from 1 to 100 for all cards, or one for each card by its "
            "number or UUID (* for all others): as text 0=2,*=4, in files an object"
        ),
    ] = setting(
        CardShares({"*": 4}),
        "With standalone: in how many equal shares of memory and cores each card is cut.",
        node="standaloneshares",
    )
    filter_uuids: tuple[str, ...] = setting(
        (), "UUIDs of cards that are left alone.", node="filterdevices.uuid"
    )
    filter_indexes: tuple[Annotated[int, Meta(ge=0)], ...] = setting(
        (), "Numbers of cards that are left alone.", node="filterdevices.index"
    )
    numa_topology: bool = setting(
        False,
        "Report each card's NUMA node to kubelet, while no reservation is rejected for it.",
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
    limiter_sha256: tuple[Sha256, ...] = setting(
        (),
        "sha256 that the limiter's library must have, one for each kind of processor; without it "
        "the library that was installed last serves.",
    )
    memory_limit_by: MemoryLimitBy = setting(
        MemoryLimitBy.LIMITER,
        "What enforces memory limits: the limiter, the driver itself (experimental; core limits "
        "are not enforced then), or both.",
    )
    device_list_strategy: tuple[DeviceListStrategy, ...] = setting(
        (DeviceListStrategy.AUTO,),
        "How the cards are handed to the container runtime; auto alone chooses by the node.",
        env=("DEVICE_LIST_STRATEGY",),
    )
    visible_devices_form: VisibleDevicesForm = setting(
        VisibleDevicesForm.AUTO,
        "How cards are named in NVIDIA_VISIBLE_DEVICES and volume mounts: by UUID (bare), as "
        "runtime.nvidia.com/gpu=UUID (runtime), or as this daemon's own runtime reads them.",
    )
    pass_device_specs: bool = setting(
        False, "Hand the cards' device nodes to kubelet as well.", env=("PASS_DEVICE_SPECS",)
    )
    driver_root: Path | None = setting(
        None,
        "Host folder of the driver, / where it is installed on the host; without it this daemon "
        "gets the driver through the container runtime.",
        flags=("nvidia-driver-root",),
        env=("NVIDIA_DRIVER_ROOT",),
    )
    driver_root_ctr_path: Path = setting(
        Path("/driver-root"),
        "Where that folder is mounted in this daemon's container.",
        flags=("container-driver-root",),
        env=("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"),
    )
    dev_root: Path | None = setting(
        None,
        "Host folder whose dev/ holds the device nodes; by default the driver's folder where it "
        "has them, else /.",
        flags=("nvidia-dev-root",),
        env=("NVIDIA_DEV_ROOT",),
    )
    validations_dir: Path = setting(
        Path("/run/nvidia/validations"),
        "Folder of the GPU Operator's validator, if it is mounted: its toolkit-ready is waited "
        "for, and its driver-ready tells the driver's folders where no setting does.",
    )
    cdi_spec_dir: Path = setting(
        Path("/var/run/cdi"), "Folder in which our own CDI specs are written for the runtime."
    )
    cdi_annotation_prefix: AnnotationPrefix = setting(
        "cdi.k8s.io/",
        "How the keys of CDI annotations begin.",
        env=("CDI_ANNOTATION_PREFIX",),
    )
    nvidia_cdi_hook_path: Path | None = setting(
        None,
        "Host path of nvidia-cdi-hook (or nvidia-ctk, which has the same hooks), for our own CDI "
        "specs; looked for by default.",
        flags=("nvidia-ctk-path",),
        env=("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"),
    )
    gds_enabled: bool = setting(
        False, "Hand over the device nodes of GPUDirect Storage too.", env=("GDS_ENABLED",)
    )
    mofed_enabled: bool = setting(
        False, "Hand over the device nodes of Mellanox OFED too.", env=("MOFED_ENABLED",)
    )
    gdrcopy_enabled: bool = setting(
        False, "Hand over the device node of GDRCopy too.", env=("GDRCOPY_ENABLED",)
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
        "How cards in MIG mode are divided under HAMi 2.5 to 2.9, whose schedulers and nodes read "
        "the same list.",
        yaml="knownMigGeometries",
    )
    mig_profile_allowlist: Annotated[
        tuple[ListedProfiles, ...],
        Meta(
            description="a list, each with `models` and `profiles`, such as 1g.10gb, as in HAMi's "
            "device-config.yaml; as a flag or environment variable in JSON"
        ),
    ] = setting(
        (),
        "Which MIG profiles are offered, in this order, of the models whose names contain one of "
        "`models`; of other models all plain ones.",
        yaml="migProfileAllowlist",
    )

    register_format: RegisterFormat = setting(
        RegisterFormat.AUTO, "Generation of the register annotation."
    )
    handshake: HandshakeMode = setting(HandshakeMode.ALWAYS, "When the handshake is written.")

    @property
    def core_policy_here(self) -> CorePolicy:
        """When core limits are enforced here."""
        return CorePolicy.DISABLE if self.disable_core_limit else self.core_policy

    @property
    def amounts(self) -> tuple[str, ...]:
        """The resources that hold amounts of cards, the count first."""
        return (
            self.resource_count,
            self.resource_memory,
            self.resource_memory_percent,
            self.resource_cores,
        )
