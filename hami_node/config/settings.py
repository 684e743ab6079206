"""The settings that all vendors share, together with those of each vendor.

A field declares with `setting(...)` the names of its flag, environment variables and configuration
keys; the command line, the readers and `docs/configuration.md` are made from these declarations.
A vendor declares its own settings in its folder and provides them as a `SettingsBlock`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from hami_node.errors import HamiError
from hami_node.logs import LogFormat, LogLevel
from hami_node.setting_types import (
    Address,
    Blocks,
    GpuPolicy,
    Group,
    LabelPair,
    Names,
    ObjectName,
    Role,
    Seconds,
    WrittenValue,
    setting,
)

S = TypeVar("S")


class Generation(StrEnum):
    """The generation of scheduling rules."""

    V2_8 = "2.8"
    V2_10 = "2.10"


class NodePolicy(StrEnum):
    """Which node a pod goes to when several fit."""

    BINPACK = "binpack"
    SPREAD = "spread"


class MetricNames(StrEnum):
    """Under which names something is shown that HAMi shows too."""

    OWN = "own"
    HAMI = "hami"
    BOTH = "both"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The effective settings of a process. Empty text and None mean "not set"."""

    node_name: str = setting("", "This node's name in Kubernetes.", env=("NODE_NAME",))

    kubeconfig: Path | None = setting(
        None,
        "Credentials for the API server; without it the pod's service account.",
        env=("KUBECONFIG",),
    )

    scan_interval_s: Seconds = setting(1.0, "Longest time between two scans of the cards, seconds.")
    stall_limit_s: Seconds = setting(
        60.0, "/healthz fails when a scan of the cards takes longer, seconds."
    )

    report_interval_s: Annotated[float, Meta(gt=0, le=55)] = setting(
        30.0, "Time between two reports to the API server, seconds; schedulers give up after 60."
    )

    usage_interval_s: Annotated[float, Meta(ge=0, le=3600)] = setting(
        5.0,
        "Time between two readings of what containers and cards use, seconds; 0: it is not read.",
        flags=("usage-interval",),
    )
    usage_metrics: MetricNames = setting(
        MetricNames.OWN,
        "Names under which /metrics shows what containers and cards use: ours, those of HAMi's "
        "monitor, both, or none.",
    )

    compat: Generation = setting(Generation.V2_8, "Generation of scheduling rules.")
    gpu_scheduler_policy: GpuPolicy = setting(
        "spread",
        "Order of cards for pods that name none, and where kubelet may choose: binpack, spread, "
        "topology-aware, mutex, numa, or several with commas.",
    )

    scheduler_name: ObjectName = setting(
        "hami-scheduler", "The kube-scheduler profile that calls this extender."
    )
    force_overwrite_default_scheduler: bool = setting(
        True, "Webhook: take over pods with cards that name the scheduler default-scheduler."
    )
    node_scheduler_policy: NodePolicy = setting(
        NodePolicy.BINPACK, "Order of nodes for pods that name none."
    )

    node_label_selector: tuple[LabelPair, ...] = setting(
        (), "Devices are given out on nodes that have all of these labels; without any, on all."
    )

    resize: bool = setting(
        True, "Running pods may ask for other amounts; off: every such request is refused."
    )

    http_bind: Address = setting(
        "127.0.0.1:9080", "Address of /filter and /bind; HTTPS once a certificate is set."
    )
    webhook_bind: Address = setting(
        "off", "Address of /webhook and nothing else; off: it is served at --http-bind."
    )
    cert_file: Path | None = setting(
        None, "Certificate of the HTTPS server (PEM); read again when it changes."
    )
    key_file: Path | None = setting(None, "Key of that certificate (PEM).")
    client_ca_file: Path | None = setting(
        None,
        "Authorities (PEM) of the certificate that callers of --http-bind have to show; read again "
        "when it changes. Without it everybody is answered.",
    )
    client_name: ObjectName = setting(
        "hami-node-scheduler", "Whom that certificate has to name; no other is answered."
    )
    lock_wait_s: Annotated[float, Meta(ge=0, le=60)] = setting(
        10.0, "How long a bind waits for a node lock that another pod holds, seconds."
    )
    node_lock_timeout_s: Annotated[float, Meta(ge=10, le=3600)] = setting(
        300.0, "A node lock expires after this time, seconds."
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
    endpoint_slice: str = setting(
        "",
        "EndpointSlice, in the Lease's namespace, in which the leader writes its address, so that "
        "a Service leads to it.",
    )
    pod_ip: str = setting("", "This replica's address in that EndpointSlice.", env=("POD_IP",))

    card_metrics: MetricNames = setting(
        MetricNames.OWN,
        "Names under which /metrics shows the cards of all nodes: ours, those of HAMi's scheduler, "
        "both, or none.",
    )

    plugin_dir: Path = setting(
        Path("/var/lib/kubelet/device-plugins"), "kubelet's folder of device plugin sockets."
    )
    pod_resources_socket: Path = setting(
        Path("/var/lib/kubelet/pod-resources/kubelet.sock"), "kubelet's pod-resources socket."
    )
    record_dir: Path = setting(
        Path("/var/lib/hami-node"),
        "Folder of this node's record of grants; only root may reach it.",
    )
    sysfs_root: Path = setting(Path("/sys"), "Where sysfs is mounted.")

    metrics_address: Address = setting(
        ":9394",
        "Address of /metrics and /config.",
        flags=("metrics-bind-address",),
    )
    probe_address: Address = setting(
        "off",
        "Address of /healthz and /readyz and nothing else; off: they are served at "
        "--metrics-address.",
    )
    legacy_metrics: bool = setting(
        False,
        "Also show use and cards under the names that HAMi had before 2.9, for dashboards made for "
        "it.",
    )
    log_format: LogFormat = setting(LogFormat.KV, "Form of the log lines.")
    log_level: LogLevel = setting(LogLevel.INFO, "Lowest level of the log lines.")

    ignored: tuple[str, ...] = ()
    """Names that were given but have no effect here; logged once. Not a setting."""
    declared: Blocks = ()
    """The declarations of the vendors. Not a setting."""
    blocks: tuple[object, ...] = ()
    """The settings of each vendor, in the order of `declared`."""

    def of(self, kind: type[S]) -> S:
        """The settings of a vendor.

        Raises:
            HamiError: this process has no settings of that vendor.
        """
        for block in self.blocks:
            if isinstance(block, kind):
                return block
        raise HamiError(f"there are no {kind.__name__} among the settings")

    def with_block(self, block: object) -> Settings:
        """These settings with another block of the same vendor."""
        kind = type(block)
        blocks = (block if isinstance(own, kind) else own for own in self.blocks)
        return replace(self, blocks=tuple(blocks))


GROUPS: Final = {
    "node_name": Group.NODE,
    "kubeconfig": Group.API_SERVER,
    "scan_interval_s": Group.CARDS,
    "report_interval_s": Group.REPORTS,
    "compat": Group.RULES,
    "scheduler_name": Group.SCHEDULING,
    "http_bind": Group.EXTENDER,
    "plugin_dir": Group.PATHS,
    "metrics_address": Group.METRICS_AND_LOGS,
}
"""The group of the shared settings, by the first field of each group."""

EXTENDER_DEFAULTS: Final[Mapping[str, object]] = {"metrics_address": ":9395"}
"""Shared settings with another default in the extender: both programs may run on one machine."""

FIXED: Final = (
    "node_name",
    "kubeconfig",
    "plugin_dir",
    "pod_resources_socket",
    "record_dir",
    "sysfs_root",
    "metrics_address",
    "probe_address",
)
"""Shared settings that a running daemon can't change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """A setting, shared or of a single vendor.

    Attributes:
        name: its field; unique among all settings.
        names: its names outside the program, and its meaning.
        group: its section in the help and the documentation.
        owner: the class that declares it.
        section: its vendor's section of device-config.yaml; "" for none.
        default: its default, for the daemon at least.
    """

    name: str
    names: Names
    group: Group
    owner: type
    section: str
    default: object

    @property
    def flag(self) -> str:
        """Its flag, and its key in our section of device-config.yaml."""
        return self.name.replace("_", "-")

    def default_of(self, role: Role) -> object:
        """Its default in this program."""
        is_extender = role is Role.EXTENDER and self.owner is Settings
        return EXTENDER_DEFAULTS.get(self.name, self.default) if is_extender else self.default

    def value_in(self, settings: Settings) -> object:
        """Its value."""
        holder = settings if self.owner is Settings else settings.of(self.owner)
        return getattr(holder, self.name)


@cache
def declarations(blocks: Blocks) -> Mapping[str, Declaration]:
    """Every setting by field, in the order of the groups; in a group the vendors' come first.

    Raises:
        HamiError: two settings with the same name, or a setting without a group.
    """
    found: list[Declaration] = []
    for block in blocks:
        found += _declared(block.kind, block.groups, block.section)
    found += _declared(Settings, GROUPS, "")
    order = tuple(Group)
    found.sort(key=lambda declared: order.index(declared.group))
    by_name: dict[str, Declaration] = {}
    for declared in found:
        if declared.name in by_name:
            raise HamiError(f"two settings have the same name: {declared.name}")
        by_name[declared.name] = declared
    return by_name


def _declared(owner: type, groups: Mapping[str, Group], section: str) -> Iterator[Declaration]:
    group = None
    for declared in fields(owner):
        if "names" not in declared.metadata:
            continue
        group = groups.get(declared.name, group)
        if group is None:
            raise HamiError(f"{owner.__name__}.{declared.name} is in no group of settings")
        yield Declaration(
            name=declared.name,
            names=declared.metadata["names"],
            group=group,
            owner=owner,
            section=section,
            default=declared.default,
        )


def make_settings(
    values: Mapping[str, object], blocks: Blocks, *, ignored: tuple[str, ...] = ()
) -> Settings:
    """The settings with these values by field; the rest have their defaults."""
    by_owner: dict[type, dict[str, object]] = {}
    for name, value in values.items():
        by_owner.setdefault(declarations(blocks)[name].owner, {})[name] = value
    shared = Settings(
        ignored=ignored,
        declared=blocks,
        blocks=tuple(block.kind(**by_owner.get(block.kind, {})) for block in blocks),
    )
    return replace(shared, **by_owner.get(Settings, {}))  # type: ignore[arg-type] # checked before


def settings_of(role: Role, blocks: Blocks) -> tuple[str, ...]:
    """The settings that a program reads; files may contain all settings."""
    every = declarations(blocks).values()
    return tuple(declared.name for declared in every if declared.group.is_read_by(role))


def changed_fields(old: Settings, new: Settings) -> tuple[str, ...]:
    """The settings that differ."""
    every = declarations(new.declared).values()
    return tuple(
        declared.name for declared in every if declared.value_in(old) != declared.value_in(new)
    )


def keep_fixed(old: Settings, new: Settings) -> tuple[Settings, tuple[str, ...]]:
    """The new settings for a daemon that runs with the old settings.

    Returns:
        The settings, and the names of those that keep their old value until a restart.
    """
    fixed = {*FIXED, *(name for block in new.declared for name in block.fixed)}
    kept = tuple(sorted(fixed.intersection(changed_fields(old, new))))
    every = declarations(new.declared)
    values = {name: every[name].value_in(old if name in kept else new) for name in every}
    return make_settings(values, new.declared, ignored=new.ignored), kept


def plain(settings: Settings) -> dict[str, object]:
    """The settings by flag name, as plain values for JSON and YAML. They contain no secrets."""
    every = declarations(settings.declared).values()
    return {declared.flag: plain_value(declared.value_in(settings)) for declared in every}


def plain_value(value: object) -> object:
    """A value as a plain value for JSON and YAML."""
    if isinstance(value, Path | StrEnum):
        return str(value)
    if isinstance(value, WrittenValue):
        return value.plain()
    return msgspec.to_builtins(list(value)) if isinstance(value, tuple) else value
