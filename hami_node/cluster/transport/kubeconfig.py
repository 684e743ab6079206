"""Kubeconfig files, merged as kubectl merges them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import yaml

from hami_node.errors import ConfigError

_HINT: Final = "name a readable kubeconfig file: --kubeconfig, KUBECONFIG"
_MOST_BYTES: Final = 8 << 20
"""A kubeconfig of a thousand clusters has 4 MiB."""


class Cluster(msgspec.Struct, rename="kebab"):
    """Where a cluster is, and how to trust it."""

    server: str
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None
    extensions: list[dict[str, object]] | None = None


class ExecEnv(msgspec.Struct):
    """A variable for the program that issues credentials."""

    name: str
    value: str


class Exec(msgspec.Struct, rename="camel"):
    """A program that issues credentials."""

    api_version: str
    command: str
    args: list[str] | None = None
    env: list[ExecEnv] | None = None
    install_hint: str | None = None
    provide_cluster_info: bool = False
    interactive_mode: str = "IfAvailable"


class User(msgspec.Struct, rename="kebab"):
    """How somebody shows who they are."""

    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    username: str | None = None
    password: str | None = None
    exec: Exec | None = None
    auth_provider: object = None
    as_user: str | None = msgspec.field(default=None, name="as")
    as_groups: list[str] | None = None


class Context(msgspec.Struct):
    """A cluster with a user and the namespace that commands mean."""

    cluster: str
    user: str | None = None
    namespace: str | None = None


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: Cluster


class _NamedUser(msgspec.Struct):
    name: str
    user: User | None = None


class _NamedContext(msgspec.Struct):
    name: str
    context: Context


class _File(msgspec.Struct, rename="kebab"):
    current_context: str = ""
    clusters: list[_NamedCluster] | None = None
    contexts: list[_NamedContext] | None = None
    users: list[_NamedUser] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What a context means; the files are those that define its cluster and its user."""

    cluster: Cluster
    cluster_file: Path
    user: User
    user_file: Path


@dataclass(slots=True)
class Kubeconfig:
    """All files together; `source` names them for people."""

    source: str
    current_context: str = ""
    clusters: dict[str, tuple[Cluster, Path]] = field(default_factory=dict)
    contexts: dict[str, Context] = field(default_factory=dict)
    users: dict[str, tuple[User, Path]] = field(default_factory=dict)

    def context(self, wanted: str = "") -> Context:
        """The context of that name, or the current one.

        Raises:
            ConfigError: there is none; names those that there are.
        """
        name = wanted or self.current_context
        found = self.contexts.get(name)
        if found is None:
            which = "--context" if wanted else "current-context"
            hint = f"contexts in the file: {_names(self.contexts)}"
            raise ConfigError(self.source, which, name, hint)
        return found

    def chosen(self, wanted: str = "") -> Chosen:
        """The cluster and user of a context.

        Raises:
            ConfigError: the context or its cluster is missing.
        """
        context = self.context(wanted)
        found = self.clusters.get(context.cluster)
        if found is None:
            hint = f"clusters in the file: {_names(self.clusters)}"
            raise ConfigError(self.source, "cluster", context.cluster, hint)
        cluster, file = found
        user, user_file = self.users.get(context.user or "", (User(), file))
        return Chosen(cluster=cluster, cluster_file=file, user=user, user_file=user_file)


def read_kubeconfigs(paths: Iterable[Path]) -> Kubeconfig:
    """Read and merge; one of several files may be missing.

    Raises:
        ConfigError: a file can't be read, or none is there.
    """
    paths = tuple(dict.fromkeys(paths))
    merged = Kubeconfig(":".join(map(str, paths)))
    is_found = False
    for path in paths:
        try:
            found = _read(path, is_alone=len(paths) == 1)
        except FileNotFoundError as error:
            if len(paths) == 1:
                raise ConfigError(str(path), "kubeconfig", error.strerror, _HINT) from error
            continue
        is_found = True
        merged.current_context = merged.current_context or found.current_context
        for cluster in found.clusters or ():
            merged.clusters.setdefault(cluster.name, (cluster.cluster, path))
        for context in found.contexts or ():
            merged.contexts.setdefault(context.name, context.context)
        for user in found.users or ():
            merged.users.setdefault(user.name, (user.user or User(), path))
    if not is_found:
        raise ConfigError(merged.source, "kubeconfig", "none of these files exists", _HINT)
    return merged


def _read(path: Path, *, is_alone: bool) -> _File:
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            raise ConfigError(str(path), "kubeconfig", f"more than {_MOST_BYTES} bytes", _HINT)
        document = yaml.load(raw, _loader())  # noqa: S506 - both are safe loaders
        return _File() if document is None and not is_alone else msgspec.convert(document, _File)
    except FileNotFoundError:
        raise
    except (OSError, yaml.YAMLError, UnicodeDecodeError, msgspec.ValidationError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(str(path), "kubeconfig", why, _HINT) from error
    except RecursionError as error:
        raise ConfigError(str(path), "kubeconfig", "nested too deeply", _HINT) from error


def _loader() -> type[yaml.SafeLoader]:
    """libyaml's where it is built in: 20 times as fast, which a large file needs."""
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _names(known: Iterable[str]) -> str:
    return ", ".join(known) or "none"
