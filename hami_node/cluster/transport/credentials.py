"""The API server's address and our credentials: kubeconfig files, or the pod's service account.

Kubeconfigs are read here, because the reader of the `kubernetes` package loads OAuth and 15 MiB for
them, and takes no client certificates from programs; it is used only for what needs it: identity
providers that issue tokens (`auth-provider`).
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from hami_node.cluster.access import Access
from hami_node.cluster.transport.kubeconfig import Chosen, User, read_kubeconfigs
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
_AS_USER: Final = "Impersonate-User"
_AS_GROUPS: Final = "Impersonate-Group"


def load_configuration(
    access: Access | Path | None,
    service_account: Path = SERVICE_ACCOUNT,
    environ: Mapping[str, str] | None = None,
) -> Any:  # noqa: ANN401 - kubernetes.client.Configuration, loaded without its package
    """Address, TLS and credentials.

    Args:
        access: kubeconfigs, context and impersonation; a single kubeconfig; without any file the
            service account of the pod that we run in.
        service_account: its mounted folder.
        environ: has KUBERNETES_SERVICE_HOST and _PORT; None means the process's environment.

    Raises:
        ConfigError: a file is missing or broken, or there is no service account.
    """
    if not isinstance(access, Access):
        access = Access.of(access)
    if access.kubeconfigs:
        return _from_kubeconfigs(access)
    if access.context:
        hint = "there is no kubeconfig: name one with --kubeconfig or KUBECONFIG"
        raise ConfigError("settings", "--context", access.context, hint)
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
    _act_as(configuration, access, User())
    return configuration


def acting_as(configuration: Any) -> tuple[tuple[str, str], ...]:  # noqa: ANN401 - as above
    """The headers that say whom to act as; () for oneself."""
    user, groups = (configuration.api_key.get(key) for key in (_AS_USER, _AS_GROUPS))
    named = [(_AS_GROUPS, group) for group in groups or ()]
    return ((_AS_USER, str(user)), *named) if user else ()


def _act_as(configuration: Any, access: Access, user: User) -> None:  # noqa: ANN401 - as above
    """Note whom to act as: flags win over the file, as a whole."""
    is_flag = bool(access.as_user or access.as_groups)
    name = access.as_user if is_flag else user.as_user
    groups = access.as_groups if is_flag else tuple(user.as_groups or ())
    if groups and not name:
        hint = "name a user as well: --as"
        raise ConfigError("settings", "--as-group", ",".join(groups), hint)
    if name:
        configuration.api_key[_AS_USER] = name
        configuration.api_key[_AS_GROUPS] = groups


def _from_kubeconfigs(access: Access) -> Any:  # noqa: ANN401 - as above
    chosen = read_kubeconfigs(access.kubeconfigs).chosen(access.context)
    cluster, path = chosen.cluster, chosen.cluster_file
    configuration = _configuration.Configuration()
    if chosen.user.exec is None and chosen.user.auth_provider is not None:
        _load_with_library(access, configuration)
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
    if chosen.user.auth_provider is None or chosen.user.exec is not None:
        _set_user(chosen.user_file, configuration, chosen)
    _act_as(configuration, access, chosen.user)
    return configuration


def _set_user(path: Path, configuration: Any, chosen: Chosen) -> None:  # noqa: ANN401 - as above
    user = chosen.user
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
    elif user.exec is not None:
        _set_program(configuration, chosen)
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
    return _content_as_file(_decoded(path, field, text)) if text else None


def _content_as_file(content: bytes) -> str:
    """A file with this content, in memory; on macOS on the disk until the process ends."""
    if not hasattr(os, "memfd_create"):
        return file_until_the_end(content)
    descriptor = os.memfd_create("hami-node-credentials")
    os.write(descriptor, content)
    return f"/proc/self/fd/{descriptor}"


def file_until_the_end(content: bytes) -> str:
    """A file with this content that only we may read, and that goes when the process ends."""
    import atexit
    import tempfile

    descriptor, name = tempfile.mkstemp(prefix="hami-node-")
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    atexit.register(Path(name).unlink, missing_ok=True)
    return name


def _set_program(configuration: Any, chosen: Chosen) -> None:  # noqa: ANN401 - as above
    """Have a program issue credentials, now and again when they expire."""
    from hami_node.cluster.transport.exec_credentials import Issuer

    issuer, path = Issuer(chosen), chosen.user_file
    found = issuer.credential()
    if found.certificate is not None:
        configuration.cert_file, configuration.key_file = (
            _content_as_file(text.encode()) for text in (found.certificate, found.key or "")
        )

    def refresh(configuration: Any) -> None:  # noqa: ANN401 - as above
        token = issuer.credential().token
        if token:
            configuration.api_key[_TOKEN_KEY] = f"Bearer {token}"

    if found.token is None and found.certificate is None:
        hint = "it must issue a token, or a certificate with its key"
        raise ConfigError(str(path), "user.exec", issuer.command, hint)
    refresh(configuration)
    configuration.refresh_api_key_hook = refresh


def _load_with_library(access: Access, configuration: Any) -> None:  # noqa: ANN401 - as above
    files = os.pathsep.join(map(str, access.kubeconfigs))
    try:
        (kube_config,) = import_light("kubernetes.config.kube_config")
    except ImportError as error:
        hint = "it needs the whole package kubernetes: pip install . in a checkout of hami-node"
        raise ConfigError(files, "user.auth-provider", str(error), hint) from error
    try:
        kube_config.load_kube_config(
            config_file=files,
            context=access.context or None,
            client_configuration=configuration,
            persist_config=False,
        )
    except (*CREDENTIAL_ERRORS, ValueError, KeyError, TypeError) as error:
        hint = "the provider that issues tokens must work here"
        raise ConfigError(files, "user", str(error), hint) from error
