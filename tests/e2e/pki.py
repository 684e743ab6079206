"""The cluster's certificates, tokens and kubeconfigs, made with openssl."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A static user of the API server; `group` may be empty."""

    name: str
    token: str
    group: str = ""


class Authority:
    """One certificate authority in one folder, and what it signed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def ca_file(self) -> Path:
        """The authority's own certificate."""
        return self.folder / "ca.crt"

    def create(self, names: tuple[str, ...], addresses: tuple[str, ...]) -> None:
        """Make the authority, the API server's pair, its client pair for kubelet and the key
        that signs service account tokens."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._openssl(
            *("req", "-x509", *_NEW_KEY, "-keyout", "ca.key", "-out", "ca.crt"),
            *("-days", "3650", "-subj", "/CN=e2e-ca"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )
        self.issue_server("apiserver", names, addresses)
        self._sign(
            "apiserver-kubelet-client",
            "/O=system:masters/CN=kube-apiserver-kubelet-client",
            "extendedKeyUsage=clientAuth\n",
        )
        self._openssl("genrsa", "-out", "sa.key", "2048")
        self._openssl("rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")

    def issue_server(
        self, name: str, names: tuple[str, ...], addresses: tuple[str, ...]
    ) -> tuple[Path, Path]:
        """A server pair valid for those names and addresses: certificate and key file."""
        alternatives = [f"DNS:{n}" for n in names] + [f"IP:{a}" for a in addresses]
        extensions = (
            f"subjectAltName={','.join(alternatives)}\n"
            "extendedKeyUsage=serverAuth\n"
            "keyUsage=critical,digitalSignature,keyEncipherment\n"
            "basicConstraints=CA:FALSE\n"
            "authorityKeyIdentifier=keyid\n"
            "subjectKeyIdentifier=hash\n"
        )
        return self._sign(name, f"/CN={name}", extensions)

    def issue_client(self, name: str) -> tuple[Path, Path]:
        """A client pair that names its holder: certificate and key file."""
        return self._sign(name, f"/CN={name}", "extendedKeyUsage=clientAuth\n")

    def write_tokens(self, users: tuple[User, ...]) -> Path:
        """The API server's token file."""
        path = self.folder / "tokens.csv"
        path.write_text(
            "".join(f'{u.token},"{u.name}",{i},"{u.group}"\n' for i, u in enumerate(users))
        )
        return path

    def write_kubeconfig(self, path: Path, server: str, user: User) -> None:
        """A kubeconfig with one context for that user."""
        cluster = {"server": server, "certificate-authority": str(self.ca_file)}
        write_json(
            path,
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "e2e",
                "clusters": [{"name": "e2e", "cluster": cluster}],
                "users": [{"name": user.name, "user": {"token": user.token}}],
                "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": user.name}}],
            },
        )

    def _sign(self, name: str, subject: str, extensions: str) -> tuple[Path, Path]:
        (self.folder / f"{name}.ext").write_text(extensions)
        self._openssl(
            *("req", *_NEW_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr"),
            *("-subj", subject),
        )
        self._openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-out", f"{name}.crt", "-days", "3650"),
            *("-extfile", f"{name}.ext"),
        )
        return self.folder / f"{name}.crt", self.folder / f"{name}.key"

    def _openssl(self, *args: str) -> None:
        subprocess.run(("openssl", *args), check=True, capture_output=True, cwd=self.folder)


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """JSON that a person can read; every program of the cluster takes it as YAML."""
    path.write_text(json.dumps(value, indent=1))
