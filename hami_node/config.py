"""Effective settings: flags, environment, node config.json, device-config.yaml, defaults.

The stronger source wins, field by field, in the order flags > environment > the node's entries in
config.json > device-config.yaml > defaults. `os.environ` is read here and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from hami_node.config_files import (
    DEVICE_CONFIG,
    NO_VALUES,
    NODE_CONFIG,
    FileValues,
    read_bounded,
    read_device_config,
    read_node_config,
)
from hami_node.config_values import value_from_text
from hami_node.errors import ConfigError
from hami_node.settings import BackendKind, Role, Settings, changed_fields, names_of, plain

__all__ = [
    "ConfigSources",
    "Resolved",
    "Settings",
    "changed_fields",
    "combine",
    "environment",
    "load",
    "plain",
    "resolve",
]

ENV_PREFIX: Final = "HAMI_NODE_"
DEFAULT_NODE_CONFIG: Final = Path("/config/config.json")
"""Where HAMi's chart mounts the node settings; read when it is there."""
CONFIG_FILE_ENV: Final = "CONFIG_FILE"
NODE_CONFIG_FILE_ENV: Final = "NODE_CONFIG_FILE"

IGNORED_FLAGS: Final = (
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
    "legacy-metrics",
    "logtostderr",
    "mig-strategy",
    "pass-device-specs",
    "mofed-enabled",
    "mps-root",
    "node-lock-timeout",
    "nvidia-cdi-hook-path",
    "nvidia-driver-root",
    "use-config-file",
    "v",
)
"""HAMi's flags that change nothing here."""
IGNORED_SCHEDULER_FLAGS: Final = (
    "debug",
    "kube-burst",
    "kube-qps",
    "kube-timeout",
    "leader-elect-lease-duration",
    "leader-elect-renew-deadline",
    "leader-elect-resource-lock",
    "leader-elect-retry-period",
    "legacy-metrics",
    "logtostderr",
    "node-label-selector",
    "node-lock-retry-timeout",
    "node-lock-timeout",
    "profiling",
    "v",
)
"""Flags of HAMi's scheduler that change nothing here."""
IGNORED_ENV: Final = (
    "CDI_ANNOTATION_PREFIX",
    "DEVICE_ID_STRATEGY",
    "DP_DISABLE_HEALTHCHECKS",
    "DRIVER_ROOT_CTR_PATH",
    "ENABLE_TOPOLOGY_SCORE",
    "FAIL_ON_INIT_ERROR",
    "GDRCOPY_ENABLED",
    "GDS_ENABLED",
    "HAMI_NODELOCK_EXPIRE",
    "HAMI_RESYNC_INTERVAL",
    "IMEX_CHANNEL_IDS",
    "MIG_STRATEGY",
    "PASS_DEVICE_SPECS",
    "MOFED_ENABLED",
    "NVIDIA_CDI_HOOK_PATH",
    "NVIDIA_DEV_ROOT",
    "NVIDIA_DRIVER_ROOT",
)
"""HAMi's environment names that change nothing here."""
_RESOURCES: Final = (
    "resource_count",
    "resource_memory",
    "resource_memory_percent",
    "resource_cores",
    "resource_priority",
    "neuron_resource",
    "neuron_core_resource",
)
_SAYS_NOTHING: Final = frozenset({"", "0", "false", "none", "disabled"})
"""Values of an ignored setting that ask for nothing: not worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSources:
    """Where settings come from. Keep it to load again after a file has changed.

    Attributes:
        flags: text of the flags that were given, by field of `Settings`.
        env: environment variables.
        config_file: device-config.yaml.
        node_config_file: config.json; the default place counts only if something is there.
        ignored_flags: flags that were given and change nothing.
        role: the program that asks; only a daemon reads its node's entry and needs a node name.
    """

    flags: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    config_file: Path | None = None
    node_config_file: Path | None = None
    ignored_flags: tuple[str, ...] = ()
    role: Role = Role.DAEMON

    def files(self) -> tuple[Path, ...]:
        """The files to watch for changes, there or not yet there."""
        is_daemon = self.role is Role.DAEMON
        named = (self.device_config(), self.node_config() if is_daemon else None)
        return tuple(path for path in named if path is not None)

    def device_config(self) -> Path | None:
        """The device-config.yaml that was named by flag or environment."""
        return self.config_file or _env_path(self.env, CONFIG_FILE_ENV)

    def node_config(self) -> Path:
        """The config.json that was named, or its default place."""
        named = self.node_config_file or _env_path(self.env, NODE_CONFIG_FILE_ENV)
        return named or DEFAULT_NODE_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What all sources together say.

    Attributes:
        settings: the effective settings; wrong values are left out.
        origins: the source of each setting that is not a default, by field.
        errors: everything that is wrong, strongest source first.
    """

    settings: Settings
    origins: Mapping[str, str]
    errors: tuple[ConfigError, ...]


def environment() -> dict[str, str]:
    """This process's environment: the only place where it is read."""
    return dict(os.environ)


def load(sources: ConfigSources) -> Settings:
    """Read the files and decide every setting.

    Raises:
        ConfigError: the first thing that is wrong: file, field, value, what is allowed.
    """
    found = resolve(sources)
    if found.errors:
        raise found.errors[0]
    return found.settings


def resolve(sources: ConfigSources) -> Resolved:
    """Read the files and decide every setting; errors are collected, not raised."""
    flags, env = _from_flags(sources), _from_env(sources.env)
    node_name = str(flags.values.get("node_name") or env.values.get("node_name") or "")
    return combine(
        device_config=_from_file(sources.device_config(), read_device_config),
        node_config=_from_node_file(sources, node_name),
        env=env,
        flags=flags,
        role=sources.role,
    )


def combine(
    *,
    device_config: FileValues = NO_VALUES,
    node_config: FileValues = NO_VALUES,
    env: FileValues = NO_VALUES,
    flags: FileValues = NO_VALUES,
    role: Role = Role.DAEMON,
) -> Resolved:
    """Lay the sources over each other, the stronger above the weaker."""
    layers = (
        (str(DEVICE_CONFIG), device_config),
        (str(NODE_CONFIG), node_config),
        ("environment", env),
        ("flag", flags),
    )
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, layer in layers:
        values.update(layer.values)
        origins.update(dict.fromkeys(layer.values, origin))
    ignored = tuple(sorted({name for _, layer in layers for name in layer.ignored}))
    settings = replace(Settings(**values), ignored=ignored)
    errors = [error for _, layer in reversed(layers) for error in layer.errors]
    errors += _contradictions(settings, role)
    return Resolved(settings=settings, origins=origins, errors=tuple(errors))


def _from_flags(sources: ConfigSources) -> FileValues:
    found: dict[str, object] = {}
    errors = []
    for name, text in sources.flags.items():
        label = "--" + name.replace("_", "-")
        try:
            found[name] = value_from_text(name, text, "command line", label)
        except ConfigError as e:
            errors.append(e)
    ignored = tuple(f"--{name}" for name in sources.ignored_flags)
    return FileValues(values=found, ignored=ignored, errors=tuple(errors))


def _from_env(env: Mapping[str, str]) -> FileValues:
    found: dict[str, object] = {}
    errors = []
    for name, names in names_of().items():
        for variable in (ENV_PREFIX + name.upper(), *names.env):
            if env.get(variable, "") == "":
                continue
            try:
                found[name] = value_from_text(name, env[variable], "environment", variable)
            except ConfigError as e:
                errors.append(e)
            break
    ignored = tuple(
        name for name in IGNORED_ENV if env.get(name, "").strip().lower() not in _SAYS_NOTHING
    )
    return FileValues(values=found, ignored=ignored, errors=tuple(errors))


def _from_file(path: Path | None, decode: Callable[[bytes, str], FileValues]) -> FileValues:
    if path is None:
        return NO_VALUES
    try:
        return decode(read_bounded(path), str(path))
    except ConfigError as e:
        return FileValues(values={}, errors=(e,))


def _from_node_file(sources: ConfigSources, node_name: str) -> FileValues:
    path = sources.node_config()
    if sources.role is not Role.DAEMON:
        return NO_VALUES
    if path == DEFAULT_NODE_CONFIG and not path.exists():
        return NO_VALUES
    return _from_file(path, lambda data, source: read_node_config(data, source, node_name))


def _env_path(env: Mapping[str, str], name: str) -> Path | None:
    return Path(env[name]) if env.get(name) else None


def _contradictions(settings: Settings, role: Role) -> list[ConfigError]:
    """Rules between settings."""
    errors = _of_daemon(settings) if role is Role.DAEMON else _of_extender(settings)
    owners: dict[str, str] = {}
    for name in _RESOURCES:
        resource, flag = getattr(settings, name), name.replace("_", "-")
        if resource in owners:
            cure = f"{owners[resource]} has the same name; every resource needs its own"
            errors.append(ConfigError("settings", flag, resource, cure))
        owners.setdefault(resource, flag)
    return errors


def _of_daemon(settings: Settings) -> list[ConfigError]:
    errors = []
    if not settings.node_name:
        cure = "set NODE_NAME (in a pod from the field spec.nodeName) or --node-name"
        errors.append(ConfigError("environment", "NODE_NAME", "", cure))
    if settings.backend is BackendKind.SIMULATED and settings.simulated_file is None:
        cure = "--backend simulated needs a file with cards"
        errors.append(ConfigError("command line", "--simulated-file", "", cure))
    return errors


def _of_extender(settings: Settings) -> list[ConfigError]:
    errors = []
    if (settings.cert_file is None) != (settings.key_file is None):
        missing = "--cert-file" if settings.cert_file is None else "--key-file"
        errors.append(ConfigError("command line", missing, "", "give certificate and key, or none"))
    if settings.http_bind == "off":
        cure = "an extender has to be asked somewhere: HOST:PORT"
        errors.append(ConfigError("command line", "--http-bind", "off", cure))
    return errors
