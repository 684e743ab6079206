"""The extender as a process of its own, with its certificates, ports and an API server."""

from __future__ import annotations

import base64
import http.client
import json
import re
import socket
import ssl
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from click.testing import CliRunner

from hami_node.cli.main import main
from hami_node.cli.programs import Programs
from hami_node.simulate.store import Json
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.clock import RealClock
from tests.fakes.processes import started
from tests.fakes.waiting import eventually

LIMIT_S: Final = 30.0
SPACE: Final = "hami-system"
SLICE: Final = "hami-node-leader"
SERVER_NAME: Final = "hami-node-leader.hami-system.svc"
CALLER: Final = "hami-node-scheduler-client-tls"


class Mounted:
    """The Secrets of `hami-node certify` as kubelet mounts them."""

    def __init__(self, folder: Path, api: FaultyApiServer) -> None:
        self._folder, self._api = folder, api
        self._kubeconfig = api.write_kubeconfig(folder / "kubeconfig")

    def certify(self, *args: str, days_later: float = 0) -> None:
        """Run the command."""
        now_s = RealClock().now() + days_later * 86_400
        parts = Programs(now=lambda: now_s, env=lambda: {"KUBECONFIG": str(self._kubeconfig)})
        done = CliRunner().invoke(main, ["certify", "--webhook=", *args], obj=parts)
        assert done.exit_code == 0, done.output

    def mount(self, secret: str, name: str = "") -> Path:
        """Write what the Secret holds now; its folder."""
        folder = self._folder / (name or secret)
        folder.mkdir(exist_ok=True)
        for key, value in self._api.read("secrets", secret, SPACE)["data"].items():
            fresh = folder / f"{key}.new"
            fresh.write_bytes(base64.b64decode(value))
            fresh.rename(folder / key)
        return folder


class Replica:
    """One process; its ports are known once it serves."""

    def __init__(self, folder: Path, api: FaultyApiServer, *args: str, **env: str) -> None:
        folder.mkdir(exist_ok=True)
        self._log = folder / "log"
        kubeconfig = api.write_kubeconfig(folder / "kubeconfig")
        flags = {
            "kubeconfig": kubeconfig,
            "http-bind": "127.0.0.1:0",
            "webhook-bind": "127.0.0.1:0",
            "metrics-address": "127.0.0.1:0",
            "probe-address": "127.0.0.1:0",
        }
        self.process = started(self._log, "extender", flags, *args, env=env or None)

    def port(self, event: str, paths: str = "") -> int:
        """The port that an event of the log names."""
        found: list[str] = []

        def is_served() -> bool:
            assert self.process.poll() is None, self.log()
            lines = [line for line in self.log().splitlines() if f"event={event} " in line]
            ports = [re.findall(r" port=(\d+)", line) for line in lines if paths in line]
            found[:] = [port for (port,) in ports]
            return bool(found)

        eventually(is_served, LIMIT_S)
        return int(found[-1])

    @property
    def decisions(self) -> int:
        return self.port("extender_served", "/filter")

    @property
    def webhook(self) -> int:
        return self.port("extender_served", "/webhook")

    @property
    def metrics(self) -> int:
        return self.port("metrics_served")

    @property
    def probes(self) -> int:
        return self.port("probe_served")

    def probe(self, path: str, timeout_s: float = 5.0) -> int:
        """As kubelet asks; 0 for no answer in time."""
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.probes, timeout=timeout_s)
            with closing(connection):
                connection.request("GET", path)
                return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0

    def wait_ready(self) -> None:
        eventually(lambda: self.probe("/readyz") == 200, LIMIT_S)

    def log(self) -> str:
        return self._log.read_text()

    def peak_mib(self) -> float:
        """The most memory it has ever had. Check: /proc/PID/status."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+)", status)[0]) / 1024

    def end(self, *, at_once: bool = False) -> None:
        if at_once:
            self.process.kill()
        else:
            self.process.terminate()
        self.process.wait(LIMIT_S)


def tls_flags(folder: Path) -> list[str]:
    """The extender's flags for the Secret that is mounted there."""
    return [
        f"--cert-file={folder / 'tls.crt'}",
        f"--key-file={folder / 'tls.key'}",
        f"--client-ca-file={folder / 'ca.crt'}",
    ]


def context_of(ca_file: Path, pair: Path | None = None) -> ssl.SSLContext:
    """What a client trusts and shows; a folder holds the pair that it shows."""
    context = ssl.create_default_context(cafile=str(ca_file))
    if pair is not None:
        context.load_cert_chain(pair / "tls.crt", pair / "tls.key")
    return context


def call(port: int, context: ssl.SSLContext, path: str, body: bytes | Json) -> tuple[int, Any]:
    """Status and JSON of one call over TLS. Raises OSError where the connection is refused."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with (
        socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as raw,
        context.wrap_socket(raw, server_hostname=SERVER_NAME) as secure,
    ):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.sock = secure
        connection.request("POST", path, data)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
