"""Effective settings: flags, environment, node config.json, device-config.yaml, defaults.

The stronger source wins, field by field, in the order flags > environment > the node's entries in
config.json > device-config.yaml > defaults. `os.environ` is read only here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from hami_node.config.files import (
    DEVICE_CONFIG,
    NO_VALUES,
    NODE_CONFIG,
    FileValues,
    from_file,
    read_device_config,
    read_node_config,
)
from hami_node.config.settings import (
    Settings,
    declarations,
    make_settings,
)
from hami_node.config.unknown_keys import environment as environment_names
from hami_node.config.unknown_keys import judged
from hami_node.config.values import value_from_text
from hami_node.errors import ConfigError
from hami_node.setting_types import Blocks, Role

ENV_PREFIX: Final = "HAMI_NODE_"
DEFAULT_NODE_CONFIG: Final = Path("/config/config.json")
"""Where HAMi's chart mounts the node settings; read when it exists."""
CONFIG_FILE_ENV: Final = "CONFIG_FILE"
NODE_CONFIG_FILE_ENV: Final = "NODE_CONFIG_FILE"

_IGNORED_FLAGS: Final = (
    "logtostderr",
    "node-lock-timeout",
    "use-config-file",
    "v",
)
"""Flags of HAMi's daemon that have no effect here, besides the vendors'."""
_IGNORED_SCHEDULER_FLAGS: Final = (
    "debug",
    "kube-burst",
    "kube-qps",
    "kube-timeout",
    "leader-elect-lease-duration",
    "leader-elect-renew-deadline",
    "leader-elect-resource-lock",
    "leader-elect-retry-period",
    "logtostderr",
    "node-lock-retry-timeout",
    "node-lock-timeout",
    "profiling",
    "v",
)
"""Flags of HAMi's scheduler that have no effect here."""
_IGNORED_ENV: Final = ("HAMI_NODELOCK_EXPIRE", "HAMI_RESYNC_INTERVAL")
"""HAMi's environment variables that have no effect here, besides the vendors'."""
_SERVICE_LINK: Final = re.compile(
    r"_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)\Z"
)
"""How Kubernetes' variables about a Service end; a test keeps our settings from ending so."""
_MAX_GUESSES: Final = 50
"""More misspelt variables are not looked at: correcting these shows the next ones."""
_UNSET_WORDS: Final = frozenset({"", "0", "false", "none", "disabled"})
"""Values of an ignored setting that request nothing, and so are not reported."""


def ignored_flags(role: Role, blocks: Blocks) -> tuple[str, ...]:
    """Flags of HAMi's program that have no effect here."""
    if role is Role.EXTENDER:
        return _IGNORED_SCHEDULER_FLAGS
    of_vendors = (name for block in blocks for name in block.ignored_flags)
    return tuple(sorted({*_IGNORED_FLAGS, *of_vendors}))


def ignored_env(blocks: Blocks) -> tuple[str, ...]:
    """HAMi's environment variables that have no effect here."""
    of_vendors = (name for block in blocks for name in block.ignored_env)
    return tuple(sorted({*_IGNORED_ENV, *of_vendors}))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSources:
    """Where settings come from. Kept to load them again after a file has changed.

    Attributes:
        flags: text of the flags that were given, by the setting's field.
        env: environment variables.
        config_file: device-config.yaml.
        node_config_file: config.json; the default path is read only if it exists.
        ignored_flags: flags that were given and have no effect.
        role: the program; only a daemon reads its node's entry and needs a node name.
        blocks: the settings that the vendors declare.
    """

    flags: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    config_file: Path | None = None
    node_config_file: Path | None = None
    ignored_flags: tuple[str, ...] = ()
    role: Role = Role.DAEMON
    blocks: Blocks

    def files(self) -> tuple[Path, ...]:
        """The files to watch for changes, whether they exist yet or not."""
        is_daemon = self.role is Role.DAEMON
        named = (self.device_config(), self.node_config() if is_daemon else None)
        return tuple(path for path in named if path is not None)

    def device_config(self) -> Path | None:
        """The device-config.yaml that a flag or the environment names."""
        return self.config_file or _env_path(self.env, CONFIG_FILE_ENV)

    def node_config(self) -> Path:
        """The config.json that was named, or its default path."""
        named = self.node_config_file or _env_path(self.env, NODE_CONFIG_FILE_ENV)
        return named or DEFAULT_NODE_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The result of all sources together.

    Attributes:
        settings: the effective settings; wrong values are left out.
        origins: the source of each setting that is not a default, by field.
        errors: everything that is wrong, strongest source first.
    """

    settings: Settings
    origins: Mapping[str, str]
    errors: tuple[ConfigError, ...]


def environment() -> dict[str, str]:
    """This process's environment, which is read only here."""
    return dict(os.environ)


def resolve(sources: ConfigSources, device_config: FileValues | None = None) -> Resolved:
    """Read the files and resolve every setting; errors are collected, not raised.

    Where `device_config` was read elsewhere, no file is read here.
    """
    blocks, node_config = sources.blocks, NO_VALUES
    flags, env = _from_flags(sources), _from_env(sources.env, blocks)
    if device_config is None:
        path = sources.device_config()
        device_config = NO_VALUES
        if path is not None:
            device_config = from_file(path, partial(read_device_config, blocks=blocks))
        name = str(flags.values.get("node_name") or env.values.get("node_name") or "")
        path = sources.node_config()
        if sources.role is Role.DAEMON and (path != DEFAULT_NODE_CONFIG or _may_be_there(path)):
            node_config = from_file(path, partial(read_node_config, node_name=name, blocks=blocks))
    return combine(
        blocks,
        device_config=device_config,
        node_config=node_config,
        env=env,
        flags=flags,
        role=sources.role,
    )


def _may_be_there(path: Path) -> bool:
    """False where there is certainly no file; one that can't be looked at is an error to say."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def combine(
    blocks: Blocks,
    *,
    device_config: FileValues = NO_VALUES,
    node_config: FileValues = NO_VALUES,
    env: FileValues = NO_VALUES,
    flags: FileValues = NO_VALUES,
    role: Role = Role.DAEMON,
) -> Resolved:
    """Merge the sources; a stronger source overrides a weaker."""
    layers = (
        (str(DEVICE_CONFIG), device_config),
        (str(NODE_CONFIG), node_config),
        ("environment", env),
        ("flag", flags),
    )
    values = {name: declared.default_of(role) for name, declared in declarations(blocks).items()}
    origins: dict[str, str] = {}
    for origin, layer in layers:
        values.update(layer.values)
        origins.update(dict.fromkeys(layer.values, origin))
    idle = {name for _, layer in layers for name in (*layer.ignored, *layer.warnings)}
    ignored = tuple(sorted(idle))
    settings = make_settings(values, blocks, ignored=ignored)
    errors = [error for _, layer in reversed(layers) for error in layer.errors]
    errors += _contradictions(settings, role)
    return Resolved(settings=settings, origins=origins, errors=tuple(errors))


def _from_flags(sources: ConfigSources) -> FileValues:
    found = FileValues("command line", ignored=tuple(f"--{it}" for it in sources.ignored_flags))
    for name, text in sources.flags.items():
        setting = declarations(sources.blocks)[name]
        found.take(setting, text, f"--{setting.flag}", value_from_text)
    return found


def _from_env(env: Mapping[str, str], blocks: Blocks) -> FileValues:
    found = FileValues("environment")
    for name, setting in declarations(blocks).items():
        named = (ENV_PREFIX + name.upper(), *setting.names.env)
        variable = next((variable for variable in named if env.get(variable)), None)
        if variable is not None:
            found.take(setting, env[variable], variable, value_from_text)
    idle = (
        name
        for name in ignored_env(blocks)
        if env.get(name, "").strip().lower() not in _UNSET_WORDS
    )
    unknown = unknown_variables(env, blocks)
    found.ignored = (*idle, *unknown.ignored)
    found.errors += unknown.errors
    return found


def unknown_variables(env: Mapping[str, str], blocks: Blocks) -> FileValues:
    """What is wrong with the variables that begin as ours and set nothing.

    A misspelt one is an error. Another one may be somebody's own, and is ignored; Kubernetes' own
    are not even mentioned.
    """
    known = {ENV_PREFIX + name.upper() for name in declarations(blocks)}
    strange = sorted(
        name
        for name, text in env.items()
        if name.startswith(ENV_PREFIX)
        and name not in known
        and text
        # by which Kubernetes tells a pod of a Service named hami-node...
        and not _SERVICE_LINK.search(name)
    )
    found, place = FileValues("environment"), environment_names(blocks, ENV_PREFIX)
    for name in strange[:_MAX_GUESSES]:
        is_error, why = judged(name.removeprefix(ENV_PREFIX), place)
        if is_error:
            found.wrong("variable", name, why)
        else:
            found.ignored += (name,)
    return found


def _env_path(env: Mapping[str, str], name: str) -> Path | None:
    return Path(env[name]) if env.get(name) else None


def _contradictions(settings: Settings, role: Role) -> list[ConfigError]:
    """Settings that contradict each other."""
    errors = _of_daemon(settings) if role is Role.DAEMON else _of_extender(settings)
    for declared, values in zip(settings.declared, settings.blocks, strict=True):
        errors += declared.problems(values, role)
    return errors + _shared_resource_names(settings)


def _shared_resource_names(settings: Settings) -> list[ConfigError]:
    """Extended resources with the same name, of the same or different vendors."""
    errors = []
    every = declarations(settings.declared)
    owners: dict[object, str] = {}
    for name in (name for block in settings.declared for name in block.resources):
        resource, flag = every[name].value_in(settings), every[name].flag
        if resource in owners:
            hint = f"{owners[resource]} has the same name; every resource needs its own"
            errors.append(ConfigError("settings", flag, resource, hint))
        owners.setdefault(resource, flag)
    return errors


def _of_daemon(settings: Settings) -> list[ConfigError]:
    if settings.node_name:
        return []
    hint = "set NODE_NAME (in a pod from the field spec.nodeName) or --node-name"
    return [ConfigError("environment", "NODE_NAME", "", hint)]


def _of_extender(settings: Settings) -> list[ConfigError]:
    errors = []
    if (settings.cert_file is None) != (settings.key_file is None):
        missing = "--cert-file" if settings.cert_file is None else "--key-file"
        errors.append(ConfigError("command line", missing, "", "give certificate and key, or none"))
    if settings.client_ca_file is not None:
        errors += _of_client_authority(settings)
    if settings.endpoint_slice and not settings.pod_ip:
        hint = "set POD_IP (in a pod from the field status.podIP), to be written there"
        errors.append(ConfigError("environment", "POD_IP", "", hint))
    if settings.http_bind == "off":
        hint = "an extender needs an address: HOST:PORT"
        errors.append(ConfigError("command line", "--http-bind", "off", hint))
    return errors


def _of_client_authority(settings: Settings) -> list[ConfigError]:
    """Certificates of clients are shown over HTTPS, and an API server has none for webhooks."""
    wrong = {
        "--cert-file": "" if settings.cert_file else "clients show certificates over HTTPS only",
        "--webhook-bind": "the API server shows no certificate: give /webhook its own address"
        if settings.webhook_bind == "off"
        else "",
    }
    return [ConfigError("command line", flag, "", hint) for flag, hint in wrong.items() if hint]
