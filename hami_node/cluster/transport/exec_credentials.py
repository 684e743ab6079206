"""Credentials that a program issues: the `exec` users of kubeconfigs, as clouds write them.

The protocol is `client.authentication.k8s.io`: what the program is told is in a variable of its
environment, what it prints is an ExecCredential.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from hami_node.cluster.transport.kubeconfig import Chosen, Cluster, Exec
from hami_node.config.sources import environment
from hami_node.errors import ConfigError
from hami_node.text import cut
from hami_node.wire.times import parse_time

_VERSIONS: Final = frozenset(
    f"client.authentication.k8s.io/{version}" for version in ("v1", "v1beta1")
)
_MODES: Final = frozenset({"Never", "IfAvailable", "Always"})
_EXTENSION: Final = "client.authentication.k8s.io/exec"
_ALONE_S: Final = 60.0
_WITH_A_PERSON_S: Final = 300.0
"""A login in a browser takes its time."""
_EARLY_S: Final = 10.0
"""Credentials are renewed so long before they expire."""
_SHOWN: Final = 300


class Credential(msgspec.Struct, rename="camel", frozen=True):
    """What a program issued."""

    token: str | None = None
    certificate: str | None = msgspec.field(default=None, name="clientCertificateData")
    key: str | None = msgspec.field(default=None, name="clientKeyData")
    expiration_timestamp: str | None = None

    def is_valid(self, now_s: float) -> bool:
        """False once it has expired, or is about to."""
        expires_s = parse_time(self.expiration_timestamp or "")
        return expires_s is None or now_s < expires_s - _EARLY_S


class _Answer(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: Credential | None = None


class Issuer:
    """Runs the program of a user, and again once its credential has expired. Thread-safe."""

    def __init__(self, chosen: Chosen, env: Mapping[str, str] | None = None) -> None:
        """Check what the kubeconfig says; nothing is run yet.

        Args:
            chosen: a cluster, and a user with a program.
            env: the program's environment; None for ours.

        Raises:
            ConfigError: the program can't be run as the kubeconfig says.
        """
        if chosen.user.exec is None:
            raise ConfigError(str(chosen.user_file), "user.exec", None, "name a program")
        self._exec, self._file = chosen.user.exec, str(chosen.user_file)
        self._env = dict(environment() if env is None else env)
        self._is_interactive = self._can_ask()
        info = _info_of(self._exec, chosen.cluster, chosen.cluster_file, self._is_interactive)
        self._env |= {item.name: item.value for item in self._exec.env or ()}
        self._env["KUBERNETES_EXEC_INFO"] = msgspec.json.encode(info).decode()
        self.command = self._found(chosen.user_file.parent)
        self._lock = threading.Lock()
        self._credential: Credential | None = None

    def credential(self) -> Credential:
        """A valid credential.

        Raises:
            ConfigError: the program failed, with its words.
        """
        with self._lock:
            if self._credential is None or not self._credential.is_valid(_now_s()):
                self._credential = self._issued()
            return self._credential

    def _can_ask(self) -> bool:
        """Whether the program may ask the person at the terminal."""
        if self._exec.api_version not in _VERSIONS:
            hint = f"use one of {', '.join(sorted(_VERSIONS))}"
            raise self._wrong("apiVersion", self._exec.api_version, hint)
        mode = self._exec.interactive_mode
        if mode not in _MODES:
            raise self._wrong("interactiveMode", mode, f"use one of {', '.join(sorted(_MODES))}")
        is_terminal = sys.stdin is not None and sys.stdin.isatty()
        if mode == "Always" and not is_terminal:
            raise self._wrong("interactiveMode", mode, "it must be run at a terminal")
        return is_terminal and mode != "Never"

    def _found(self, folder: Path) -> str:
        """The program: on PATH, or relative to the kubeconfig's folder."""
        command = self._exec.command
        if "/" in command:
            command = str((folder / command).absolute())
        found = shutil.which(command, path=self._env.get("PATH"))
        if found is None:
            hint = self._exec.install_hint or "install it, or correct PATH"
            raise self._wrong("command", self._exec.command, f"not found: {cut(hint, _SHOWN)}")
        return found

    def _issued(self) -> Credential:
        limit_s = _WITH_A_PERSON_S if self._is_interactive else _ALONE_S
        try:
            done = subprocess.run(  # noqa: S603 - the user's own kubeconfig names the program; no shell is involved
                (self.command, *(self._exec.args or ())),
                env=self._env,
                stdin=None if self._is_interactive else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise self._wrong("command", self.command, f"not done in {limit_s:.0f} s") from error
        except OSError as error:
            raise self._wrong("command", self.command, str(error.strerror)) from error
        if done.returncode:
            hint = f"it ended with exit code {done.returncode}; its words are above"
            raise self._wrong("command", self.command, hint)
        return self._decoded(done.stdout)

    def _decoded(self, output: bytes) -> Credential:
        try:
            answer = msgspec.json.decode(output, type=_Answer)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise self._wrong("command", self.command, "it printed no ExecCredential") from error
        if answer.kind != "ExecCredential" or answer.status is None:
            raise self._wrong("command", self.command, "it printed no ExecCredential with a status")
        if answer.api_version != self._exec.api_version:
            hint = f"it answered in {cut(answer.api_version, _SHOWN)}"
            raise self._wrong("apiVersion", self._exec.api_version, hint)
        if (answer.status.certificate is None) != (answer.status.key is None):
            raise self._wrong("command", self.command, "a certificate needs its key, and reverse")
        return answer.status

    def _wrong(self, field: str, value: object, hint: str) -> ConfigError:
        return ConfigError(self._file, f"user.exec.{field}", value, hint)


def _info_of(
    program: Exec, cluster: Cluster, file: Path, is_interactive: bool
) -> dict[str, object]:
    """What the program is told."""
    spec: dict[str, object] = {"interactive": is_interactive}
    if program.provide_cluster_info:
        told: dict[str, object | None] = {
            "server": cluster.server,
            "tls-server-name": cluster.tls_server_name,
            "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify or None,
            "certificate-authority-data": cluster.certificate_authority_data
            or _authority(file, cluster.certificate_authority),
            "proxy-url": cluster.proxy_url,
            "config": next(
                (
                    item.get("extension")
                    for item in cluster.extensions or ()
                    if item.get("name") == _EXTENSION
                ),
                None,
            ),
        }
        spec["cluster"] = {key: value for key, value in told.items() if value is not None}
    return {"kind": "ExecCredential", "apiVersion": program.api_version, "spec": spec}


def _authority(file: Path, name: str | None) -> str | None:
    """The content of the authority's file, as the protocol wants it."""
    if not name:
        return None
    import base64

    try:
        return base64.b64encode((file.parent / name).read_bytes()).decode()
    except OSError as error:
        hint = "name a readable file"
        raise ConfigError(str(file), "certificate-authority", name, hint) from error


def _now_s() -> float:
    return datetime.now(UTC).timestamp()
