"""A private control plane: etcd, kube-apiserver, kube-scheduler and extenders, as processes.

Everything lies in one temporary folder, on free ports, and is gone when the block ends. What the
extender may do, and how kube-scheduler asks it, is read from the manifests.
"""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.bench.fleet.client import FleetClient
from tests.bench.fleet.processes import Running, free_port, is_good, launched, wait_for
from tests.e2e import parts
from tests.e2e.assets import REPOSITORY, program
from tests.e2e.pki import Authority, User, write_json

NAMESPACE: Final = "fleet"
"""Where the pods are."""
HOME: Final = "hami-system"
EXTENDER: Final = User(
    name=f"system:serviceaccount:{HOME}:hami-node-extender",
    token="extender-token",
    group="system:serviceaccounts",
)
_USERS: Final = (parts.ADMIN, parts.SCHEDULER, EXTENDER)
_CALLER: Final = "hami-node-scheduler"
_DOCKERFILE: Final = REPOSITORY / "Dockerfile"
_MANIFESTS: Final = REPOSITORY / "daemonset" / "extender"
_RIGHTS: Final = ("rbac.yaml", "own-fields-only.yaml", "reservation-keys.yaml")
"""Applied as they are: the API server checks what it checks in an installation."""
_START_S: Final = 60.0
LISTED_S: Final = 300.0
"""How long an extender may take until it is ready."""


@dataclass(frozen=True, slots=True)
class ExtenderProcess:
    """A replica: where it answers kube-scheduler, and where it shows its metrics."""

    running: Running
    port: int
    metrics_port: int

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def page(self, path: str = "/metrics") -> str:
        """A page of its port for people and probes."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}{path}") as answer:
            return str(answer.read().decode())

    def is_ready(self) -> bool:
        """Has it listed everything, and does it lead (or is there no election)?"""
        return self.page("/readyz") != "" and "\nhami_node_extender_leading 1" in self.page()


class ControlPlane:
    """Processes below one folder. `etcd` and the API server run from the beginning."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder / "pki")
        self.api_port, self._etcd_port, self._peer_port = (free_port() for _ in range(3))
        self.audit_log = folder / "log" / "audit.jsonl"
        self._running: list[Running] = []
        self.client: FleetClient

    # -- life ------------------------------------------------------------------------------------
    def start(self) -> None:
        """etcd and the API server, with the extender's rights and a namespace for pods."""
        self._write_files()
        etcd = self.launch("etcd", self._etcd_command())
        self.api = self.launch("kube-apiserver", self._api_command())
        self.client = FleetClient(self.api_port, self.authority.ca_file, parts.ADMIN.token)
        wait_for("the API server", self._is_api_ready, _START_S, etcd, self.api)
        for name in (HOME, NAMESPACE):
            self.client.create("/api/v1/namespaces", {"metadata": {"name": name}})
            self.client.create(
                f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}}
            )
        config = parts.kubeconfig(self.folder, parts.ADMIN)
        files = [flag for name in _RIGHTS for flag in ("-f", str(_MANIFESTS / name))]
        command = (_needed("kubectl"), f"--kubeconfig={config}", "apply", "-n", HOME, *files)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def stop(self) -> None:
        """End every process, the last one first."""
        while self._running:
            self._running.pop().stop()

    def launch(
        self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> Running:
        """Start a program that ends with this control plane."""
        running = launched(name, command, self.folder / "log", env)
        self._running.append(running)
        return running

    def end(self, running: Running) -> None:
        """Stop one process now."""
        running.stop()
        with suppress(ValueError):
            self._running.remove(running)

    # -- the extender and its kube-scheduler -----------------------------------------------------
    def start_extender(self, name: str = "extender", *flags: str) -> ExtenderProcess:
        """One replica, as the manifests start it; returns at once."""
        port, metrics_port = free_port(), free_port()
        cert, key = self.authority.issue_server(name, ("localhost",), ("127.0.0.1",))
        command = [
            *(sys.executable, "-m", "hami_node", "extender", "--leader-elect"),
            f"--http-bind=127.0.0.1:{port}",
            f"--webhook-bind=127.0.0.1:{free_port()}",
            f"--cert-file={cert}",
            f"--key-file={key}",
            f"--client-ca-file={self.authority.ca_file}",
            f"--client-name={_CALLER}",
            f"--lease-namespace={HOME}",
            f"--replica-name={name}",
            f"--metrics-address=127.0.0.1:{metrics_port}",
            f"--config-file={self.folder / 'device-config.yaml'}",
            f"--kubeconfig={parts.kubeconfig(self.folder, EXTENDER)}",
            *flags,
        ]
        return ExtenderProcess(self.launch(name, command, extender_env()), port, metrics_port)

    def wait_extender(self, extender: ExtenderProcess, limit_s: float = LISTED_S) -> None:
        """Until it has listed everything and leads."""
        wait_for("the extender leads", extender.is_ready, limit_s, extender.running)

    def start_scheduler(self, extender_url: str) -> Running:
        """kube-scheduler as the manifests configure it, without limits of its client."""
        caller = self.authority.issue_client(_CALLER)
        config = scheduler_config(
            scheduler_manifest(),
            extender_url,
            tls={
                "caFile": str(self.authority.ca_file),
                "certFile": str(caller[0]),
                "keyFile": str(caller[1]),
            },
            kubeconfig=str(parts.kubeconfig(self.folder, parts.SCHEDULER)),
        )
        write_json(self.folder / "scheduler.json", config)
        port = free_port()
        command = [
            _needed("kube-scheduler"),
            f"--config={self.folder / 'scheduler.json'}",
            *(flag for flag in scheduler_flags() if not flag.startswith("--config")),
            f"--secure-port={port}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={self.folder / 'scheduler-pki'}",
        ]
        running = self.launch("kube-scheduler", command)
        ready = f"https://127.0.0.1:{port}/readyz"
        context = ssl._create_unverified_context()  # noqa: S323 - it signs for itself
        wait_for("kube-scheduler", lambda: is_good(ready, context), _START_S, running)
        return running

    # -- files -----------------------------------------------------------------------------------
    def _write_files(self) -> None:
        for sub in ("pki", "log"):
            (self.folder / sub).mkdir()
        self.authority.create(("localhost", "kubernetes.default.svc"), ("127.0.0.1",))
        self.authority.write_tokens(_USERS)
        for user in _USERS:
            path = parts.kubeconfig(self.folder, user)
            self.authority.write_kubeconfig(path, f"https://127.0.0.1:{self.api_port}", user)
        rules = [{"level": "Metadata", "users": [EXTENDER.name]}, {"level": "None"}]
        write_json(
            self.folder / "audit-policy.json",
            {
                "apiVersion": "audit.k8s.io/v1",
                "kind": "Policy",
                "omitStages": ["RequestReceived"],
                "rules": rules,
            },
        )
        _documents = yaml.safe_load_all((REPOSITORY / "daemonset/base/config.yaml").read_text())
        data = next(item["data"] for item in _documents)
        (self.folder / "device-config.yaml").write_text(data["device-config.yaml"])

    def _etcd_command(self) -> list[str]:
        client, peer = (f"http://127.0.0.1:{p}" for p in (self._etcd_port, self._peer_port))
        changed = {
            "--listen-client-urls": client,
            "--advertise-client-urls": client,
            "--listen-peer-urls": peer,
            "--initial-advertise-peer-urls": peer,
            "--initial-cluster": f"default={peer}",
            "--unsafe-no-fsync": "true",  # measured is the extender, not this disk
            "--quota-backend-bytes": str(8 << 30),
        }
        return _with_program(with_flags(parts.command(self.folder, "etcd"), changed))

    def _api_command(self) -> list[str]:
        changed = {
            "--etcd-servers": f"http://127.0.0.1:{self._etcd_port}",
            "--secure-port": str(self.api_port),
            "--advertise-address": "127.0.0.1",
            "--bind-address": "127.0.0.1",
            # nobody here takes the taint from new nodes, which have no kubelet
            "--disable-admission-plugins": "TaintNodesByCondition",
            "--endpoint-reconciler-type": "none",
        }
        return _with_program(with_flags(parts.command(self.folder, "kube-apiserver"), changed))

    def _is_api_ready(self) -> bool:
        return self.client.exists("/readyz")


def extender_env() -> dict[str, str]:
    """What image and manifests set for the extender's process."""
    image = re.findall(r"^\s*(?:ENV )?(MALLOC_\w+)=(\S+)", _DOCKERFILE.read_text(), re.MULTILINE)
    found = yaml.safe_load_all((_MANIFESTS / "deployment.yaml").read_text())
    deployment = next(item for item in found if item["kind"] == "Deployment")
    env = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    return {**dict(image), **{item["name"]: item["value"] for item in env if "value" in item}}


def scheduler_manifest() -> dict[str, Any]:
    """KubeSchedulerConfiguration of the manifests."""
    documents = yaml.safe_load_all((_MANIFESTS / "scheduler.yaml").read_text())
    config = next(item for item in documents if item["kind"] == "ConfigMap")
    found: dict[str, Any] = yaml.safe_load(config["data"]["config.yaml"])
    return found


def scheduler_flags() -> list[str]:
    """How the manifests call kube-scheduler."""
    documents = yaml.safe_load_all((_MANIFESTS / "scheduler.yaml").read_text())
    deployment = next(item for item in documents if item["kind"] == "Deployment")
    command = deployment["spec"]["template"]["spec"]["containers"][0]["command"]
    return [str(word) for word in command[1:]]


def scheduler_config(
    manifest: Mapping[str, Any], extender_url: str, *, tls: Mapping[str, str], kubeconfig: str
) -> dict[str, Any]:
    """The same configuration for here: one scheduler, this extender, no limits of its client."""
    config: dict[str, Any] = json.loads(json.dumps(manifest))
    for extender in config["extenders"]:
        extender["urlPrefix"] = extender_url
        extender["tlsConfig"] = dict(tls)
    return {
        **config,
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": kubeconfig, "qps": 2000, "burst": 4000},
    }


def with_flags(command: Sequence[str], changed: Mapping[str, str]) -> list[str]:
    """A command line with other values for these flags; those that it does not have are added."""
    kept = [word for word in command if word.partition("=")[0] not in changed]
    return [*kept, *(f"{flag}={value}" for flag, value in changed.items())]


def _with_program(command: list[str]) -> list[str]:
    return [_needed(command[0]), *command[1:]]


def _needed(name: str) -> str:
    path = program(name)
    if path is None:
        raise SystemExit(f"{name} is not there: run `python -m tests.e2e.prepare` first")
    return path


@contextmanager
def running_plane() -> Iterator[ControlPlane]:
    """A control plane; processes and folder are gone afterwards, however the block ends."""
    folder = Path(tempfile.mkdtemp(prefix="hami-fleet-"))
    plane = ControlPlane(folder)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()
        shutil.rmtree(folder, ignore_errors=True)
