"""The API server's address and our credentials: a kubeconfig file, or the pod's service account.

Plain kubeconfigs (tokens, certificates, passwords) are read here, because the reader of the
`kubernetes` package loads OAuth and 15 MiB for them; it is used only for what needs it: programs
and identity providers that issue tokens.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from hami_node.cluster.transport.light_import import import_light
from hami_node.errors import ConfigError

(_configuration, _incluster, _errors) = import_light(
    "kubernetes.client.configuration",
    "kubernetes.config.incluster_config",
    "kubernetes.config.config_exception",
)

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CREDENTIAL_ERRORS: Final = (_errors.ConfigException, OSError)
"""What reloading credentials may raise."""

_TOKEN_KEY: Final = "BearerToken"  # noqa: S105 - the key of a setting, no secret


class _Cluster(msgspec.Struct, rename="kebab"):
    server: str
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None


class _User(msgspec.Struct, rename="kebab"):
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    username: str | None = None
    password: str | None = None
    exec: object = None
    auth_provider: object = None


class _Context(msgspec.Struct):
    cluster: str
    user: str | None = None


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: _Cluster


class _NamedUser(msgspec.Struct):
    name: str
    user: _User | None = None


class _NamedContext(msgspec.Struct):
    name: str
    context: _Context


class _KubeConfig(msgspec.Struct, rename="kebab"):
    current_context: str = ""
    clusters: list[_NamedCluster] | None = None
    contexts: list[_NamedContext] | None = None
    users: list[_NamedUser] | None = None


def load_configuration(
    kubeconfig: Path | None,
    service_account: Path = SERVICE_ACCOUNT,
    environ: Mapping[str, str] | None = None,
) -> Any:  # noqa: ANN401 - kubernetes.client.Configuration, loaded without its package
    """Address, TLS and credentials.

    Args:
        kubeconfig: the file; None means the service account of the pod that we run in.
        service_account: its mounted folder.
        environ: has KUBERNETES_SERVICE_HOST and _PORT; None means the process's environment.

    Raises:
        ConfigError: the file is missing or broken, or there is no service account.
    """
    if kubeconfig is not None:
        return _from_kubeconfig(kubeconfig)
    configuration = _configuration.Configuration()
    options = {} if environ is None else {"environ": environ}
    try:
        _incluster.InClusterConfigLoader(
            token_filename=str(service_account / "token"),
            cert_filename=str(service_account / "ca.crt"),
            **options,
        ).load_and_set(configuration)
    except CREDENTIAL_ERRORS as error:
        hint = "run in a pod with a service account, or name a kubeconfig: --kubeconfig, KUBECONFIG"
        raise ConfigError("service account", "credentials", str(error), hint) from error
    return configuration


def _from_kubeconfig(path: Path) -> Any:  # noqa: ANN401 - as above
    try:
        config = msgspec.convert(yaml.safe_load(path.read_bytes()), _KubeConfig)
    except (OSError, yaml.YAMLError, UnicodeDecodeError, msgspec.ValidationError) as error:
        hint = "name a readable kubeconfig file: --kubeconfig, KUBECONFIG"
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(str(path), "kubeconfig", why, hint) from error
    cluster, user = _current(path, config)
    configuration = _configuration.Configuration()
    if user.exec is not None or user.auth_provider is not None:
        _load_with_library(path, configuration)
        return configuration
    configuration.host = cluster.server.rstrip("/")
    configuration.verify_ssl = not cluster.insecure_skip_tls_verify
    configuration.tls_server_name = cluster.tls_server_name
    if cluster.proxy_url is not None:
        configuration.proxy = cluster.proxy_url
    if cluster.certificate_authority_data is not None:
        authority = _decoded(path, "certificate-authority-data", cluster.certificate_authority_data)
        configuration.ca_cert_data = authority.decode("utf-8", "replace")
    else:
        configuration.ssl_ca_cert = _beside(path, cluster.certificate_authority)
    _set_user(path, configuration, user)
    return configuration


def _current(path: Path, config: _KubeConfig) -> tuple[_Cluster, _User]:
    """The cluster and user of the current context."""
    wanted = config.current_context
    context = next((named.context for named in config.contexts or () if named.name == wanted), None)
    if context is None:
        known = ", ".join(named.name for named in config.contexts or ()) or "none"
        raise ConfigError(str(path), "current-context", wanted, f"contexts in the file: {known}")
    for cluster in config.clusters or ():
        if cluster.name == context.cluster:
            users = [named.user for named in config.users or () if named.name == context.user]
            return cluster.cluster, (users[0] if users else None) or _User()
    known = ", ".join(cluster.name for cluster in config.clusters or ()) or "none"
    raise ConfigError(str(path), "cluster", context.cluster, f"clusters in the file: {known}")


def _set_user(path: Path, configuration: Any, user: _User) -> None:  # noqa: ANN401 - as above
    configuration.cert_file = _as_file(
        path, "client-certificate-data", user.client_certificate_data
    ) or _beside(path, user.client_certificate)
    configuration.key_file = _as_file(path, "client-key-data", user.client_key_data) or _beside(
        path, user.client_key
    )
    if user.token:
        configuration.api_key[_TOKEN_KEY] = f"Bearer {user.token}"
    elif user.token_file:
        hook = _token_reader(Path(_beside(path, user.token_file) or ""))
        try:
            hook(configuration)
        except OSError as error:
            hint = "name a readable file"
            raise ConfigError(str(path), "tokenFile", user.token_file, hint) from error
        configuration.refresh_api_key_hook = hook
    elif user.username is not None:
        pair = f"{user.username}:{user.password or ''}".encode()
        configuration.api_key[_TOKEN_KEY] = "Basic " + base64.b64encode(pair).decode()


def _token_reader(token_file: Path) -> Callable[[Any], None]:
    """A hook that reads the token for each request: a rotated file is used at once."""

    def refresh(configuration: Any) -> None:  # noqa: ANN401 - as above
        token = token_file.read_text(encoding="utf-8").strip()
        configuration.api_key[_TOKEN_KEY] = f"Bearer {token}"

    return refresh


def _beside(path: Path, name: str | None) -> str | None:
    """A file that a kubeconfig names; relative names are relative to the kubeconfig's folder."""
    return None if not name else str((path.parent / name).absolute())


def _decoded(path: Path, field: str, text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigError(str(path), field, text[:20] + "...", "must be base64") from error


def _as_file(path: Path, field: str, text: str | None) -> str | None:
    """A file in memory with this content: TLS needs files, but keys do not belong on a disk.

    It is kept as long as the process runs, because each new connection reads it.
    """
    if not text:
        return None
    content = _decoded(path, field, text)
    descriptor = os.memfd_create("hami-node-credentials")
    os.write(descriptor, content)
    return f"/proc/self/fd/{descriptor}"


def _load_with_library(path: Path, configuration: Any) -> None:  # noqa: ANN401 - as above
    (kube_config,) = import_light("kubernetes.config.kube_config")
    try:
        kube_config.load_kube_config(
            config_file=str(path), client_configuration=configuration, persist_config=False
        )
    except (*CREDENTIAL_ERRORS, ValueError, KeyError, TypeError) as error:
        hint = "the program or provider that issues tokens must work here"
        raise ConfigError(str(path), "user", str(error), hint) from error
