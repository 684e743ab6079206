"""Every setting of the product: type, range, default, meaning and its names outside, in one place.

A field declares by `setting(...)` what its flag, environment variables and configuration keys are
called; the command line, the readers and `docs/configuration.md` are made from these declarations.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta

from hami_node.logs import LogFormat, LogLevel
from hami_node.model import Mode
from hami_node.setting_types import (
    Address,
    Count,
    GpuPolicy,
    Mebibytes,
    Names,
    ObjectName,
    Percent,
    ResourceName,
    Scaling,
    Seconds,
    setting,
)
from hami_node.wire import names

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
    """What happens to a limited container while the limiter's files are missing on the node."""

    REQUIRED = "required"
    OPTIONAL = "optional"


class DeviceListStrategy(StrEnum):
    """How the container runtime is told which cards to put into a container."""

    ENVVAR = "envvar"
    CDI_CRI = "cdi-cri"


class CorePolicy(StrEnum):
    """When the limiter enforces core limits."""

    DEFAULT = "default"
    FORCE = "force"
    DISABLE = "disable"


class Role(StrEnum):
    """Which program the settings are for."""

    DAEMON = "run"
    EXTENDER = "extender"


class BackendKind(StrEnum):
    """Where the NVIDIA cards come from."""

    NVML = "nvml"
    SIMULATED = "simulated"


class Compat(StrEnum):
    """The generation of scheduling rules."""

    V2_8 = "2.8"
    V2_10 = "2.10"


class NodePolicy(StrEnum):
    """Which node a pod goes to when several fit."""

    BINPACK = "binpack"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The effective settings of one process. Empty text and None mean "not set"."""

    node_name: str = setting("", "This node's name in Kubernetes.", env=("NODE_NAME",))

    kubeconfig: Path | None = setting(
        None,
        "Credentials for the API server; without it the pod's service account.",
        env=("KUBECONFIG",),
    )

    backend: BackendKind = setting(BackendKind.NVML, "Where NVIDIA cards come from.")
    simulated_file: Path | None = setting(
        None, "The cards of the simulated backend (YAML); needed with --backend simulated."
    )
    scan_interval_s: Seconds = setting(1.0, "Longest time between two looks at the cards, seconds.")
    stall_limit_s: Seconds = setting(
        60.0, "A look at the cards that lasts longer turns /healthz red, seconds."
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
        "Offered memory divided by real memory; above 1 cards are over-booked.",
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
        "Memory of a card that does not tell its own (unified memory), MiB; 0: ask the driver.",
        yaml="preConfiguredDeviceMemory",
        node="preconfigureddevicememory",
    )
    operating_mode: Mode = setting(
        Mode.HAMI_CORE, "How this node's cards are shared.", node="operatingmode"
    )
    filter_uuids: tuple[str, ...] = setting(
        (), "UUIDs of cards that are left alone.", node="filterdevices.uuid"
    )
    filter_indexes: tuple[Annotated[int, Meta(ge=0)], ...] = setting(
        (), "Numbers of cards that are left alone.", node="filterdevices.index"
    )
    numa_topology: bool = setting(
        False,
        "Tell kubelet each card's NUMA node.",
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
    neuron_resource: ResourceName = setting(
        names.RESOURCE_NEURON,
        "Resource: whole Neuron devices.",
        yaml="awsneuron.resourceCountName",
    )
    neuron_core_resource: ResourceName = setting(
        names.RESOURCE_NEURON_CORE, "Resource: Neuron cores.", yaml="awsneuron.resourceCoreName"
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
        "Refuse limited containers while the limiter's files are missing, or let them run "
        "unlimited.",
    )
    device_list_strategy: DeviceListStrategy = setting(
        DeviceListStrategy.ENVVAR,
        "How the container runtime is told the cards.",
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
    )

    register_format: RegisterFormat = setting(
        RegisterFormat.AUTO, "Generation of the register annotation."
    )
    handshake: HandshakeMode = setting(HandshakeMode.ALWAYS, "When the handshake is written.")
    report_interval_s: Annotated[float, Meta(gt=0, le=55)] = setting(
        30.0, "Time between two reports to the API server, seconds; schedulers give up after 60."
    )

    compat: Compat = setting(Compat.V2_8, "Generation of scheduling rules.")

    scheduler_name: ObjectName = setting(
        "hami-scheduler", "The kube-scheduler profile that asks this extender."
    )
    force_overwrite_default_scheduler: bool = setting(
        True, "Webhook: take over pods with cards that name the scheduler default-scheduler."
    )
    node_scheduler_policy: NodePolicy = setting(
        NodePolicy.BINPACK, "Order of nodes for pods that name none."
    )
    gpu_scheduler_policy: GpuPolicy = setting(
        "spread",
        "Order of cards for pods that name none: binpack, spread, topology-aware, mutex, numa, or "
        "several with commas.",
    )

    http_bind: Address = setting(
        "127.0.0.1:9080", "Address of /filter, /bind and /webhook; HTTPS once a certificate is set."
    )
    cert_file: Path | None = setting(
        None, "Certificate of the HTTPS server (PEM); read again when it changes."
    )
    key_file: Path | None = setting(None, "Key of that certificate (PEM).")
    lock_wait_s: Annotated[float, Meta(ge=0, le=60)] = setting(
        10.0, "How long a bind waits for a node lock that another pod holds, seconds."
    )
    node_lock_timeout_s: Annotated[float, Meta(ge=10, le=3600)] = setting(
        300.0, "A node lock and an unbound reservation older than this are nobody's, seconds."
    )
    leader_elect: bool = setting(
        False, "Serve only while holding the Lease: needed with more than one replica."
    )
    lease_name: ObjectName = setting("hami-node-extender", "Name of that Lease.")
    lease_namespace: ObjectName = setting(
        "hami-system", "Namespace of that Lease.", env=("POD_NAMESPACE",)
    )
    replica_name: str = setting(
        "", "This replica's name in the Lease; the host's name by default.", env=("POD_NAME",)
    )

    plugin_dir: Path = setting(
        Path("/var/lib/kubelet/device-plugins"), "kubelet's folder of device plugin sockets."
    )
    pod_resources_socket: Path = setting(
        Path("/var/lib/kubelet/pod-resources/kubelet.sock"), "kubelet's pod-resources socket."
    )
    sysfs_root: Path = setting(Path("/sys"), "Where sysfs is mounted.")

    metrics_address: Address = setting(
        ":9394",
        "Address of /metrics, /healthz, /readyz and /config.",
        flags=("metrics-bind-address",),
    )
    log_format: LogFormat = setting(LogFormat.KV, "Form of the log lines.")
    log_level: LogLevel = setting(LogLevel.INFO, "Least important log line.")

    ignored: tuple[str, ...] = ()
    """Names that were given but have no effect here; logged once. Not a setting."""


GROUPS: Final = {
    "node_name": "Node",
    "kubeconfig": "API server",
    "backend": "Cards",
    "split_count": "Sharing",
    "resource_count": "Resources and requests",
    "hook_path": "What a container gets",
    "register_format": "Reports",
    "compat": "Rules",
    "scheduler_name": "Scheduling",
    "http_bind": "Extender",
    "plugin_dir": "Paths",
    "metrics_address": "Metrics and logs",
}
"""Title of each group of settings by its first field, for the help text and the documents."""

_SHARED: Final = frozenset({"API server", "Resources and requests", "Rules", "Metrics and logs"})
_EXTENDER: Final = frozenset({"Scheduling", "Extender"})


def settings_of(role: Role) -> tuple[str, ...]:
    """The settings that a program reads, in order of declaration; files may hold all."""
    found = []
    title = ""
    for name in names_of():
        title = GROUPS.get(name, title)
        is_extenders = title in _EXTENDER
        if title in _SHARED or is_extenders == (role is Role.EXTENDER):
            found.append(name)
    return tuple(found)


def names_of() -> dict[str, Names]:
    """Each setting's outside names by field, in order of declaration."""
    return {one.name: one.metadata["names"] for one in fields(Settings) if one.metadata}


def changed_fields(old: Settings, new: Settings) -> tuple[str, ...]:
    """The settings that differ, in order of declaration."""
    return tuple(name for name in names_of() if getattr(old, name) != getattr(new, name))


def plain(settings: Settings) -> dict[str, object]:
    """The settings by flag name, as values that JSON and YAML can hold. They hold no secrets."""
    return {name.replace("_", "-"): _plain(getattr(settings, name)) for name in names_of()}


def _plain(value: object) -> object:
    if isinstance(value, Path | StrEnum):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
