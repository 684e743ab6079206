"""The page of `view` before a simulated API server: real HTTP on both sides."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from hami_node.clock import Deadline, SystemClock
from hami_node.cluster.client import KubeClient, connect
from hami_node.cluster.watching.watches import WatchTimes
from hami_node.config.sources import ConfigSources, resolve
from hami_node.extender.rules import rules_of
from hami_node.inspection.picture import Basis
from hami_node.model import Pod
from hami_node.setting_types import Role
from hami_node.vendors.registry import SETTINGS_BLOCKS, VENDORS
from hami_node.view.service import ViewOptions, ViewServer
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.card_cluster import SCHEDULER
from tests.fakes.waiting import eventually

QUICK = WatchTimes(server_timeout_s=5.0, grace_s=1.0, first_wait_s=0.05, longest_wait_s=0.2)
ANY_PORT = "127.0.0.1:0"


def basis() -> Basis:
    """The vendors and rules without any setting."""
    sources = ConfigSources(blocks=SETTINGS_BLOCKS, flags={}, env={}, role=Role.EXTENDER)
    rules = rules_of(resolve(sources).settings, VENDORS)
    return Basis(vendors=rules.vendors, rules=rules.engine, node_labels=rules.node_labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class MeteredKube(KubeClient):
    """A client whose API server passes on what the daemons of these nodes say on /metrics."""

    def __init__(self, kube: KubeClient) -> None:
        super().__init__(kube.sender, component="view", clock=SystemClock())
        self.pages: dict[str, bytes] = {}

    def read_pod_metrics(self, pod: Pod, port: str, deadline: Deadline) -> bytes:
        if pod.node_name in self.pages:
            return self.pages[pod.node_name]
        return super().read_pod_metrics(pod, port, deadline)


class ViewRig:
    """The page, from `with` to its end; `api` holds the cluster."""

    def __init__(self, folder: Path, api: FaultyApiServer, **options: Any) -> None:
        given = {"bind": ANY_PORT, "beat_s": 0.3, "pause_s": 0.05, "times": QUICK, **options}
        self.api = api
        kubeconfig = api.write_kubeconfig(folder / "view.kubeconfig")
        self.kube = MeteredKube(connect(kubeconfig, component="view", clock=SystemClock()))
        self.server = ViewServer(ViewOptions(**given), self.kube, basis(), SystemClock(), SCHEDULER)

    def __enter__(self) -> Self:
        self.server.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.close()
        self.kube.close()
        assert self.server.threads.died == ""

    @property
    def port(self) -> int:
        return self.server.port

    def wait_until_read(self, limit_s: float = 30.0) -> Self:
        """Until everything that the API server has is on the page."""

        def is_read() -> bool:
            summary = self.server.feed.summary()
            return bool(summary) and summary["synced"] and not summary["left"]

        eventually(is_read, limit_s)
        return self

    def get(
        self,
        path: str,
        headers: Mapping[str, str] | None = None,
        *,
        method: str = "GET",
        host: str | None = "localhost",
    ) -> Answer:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            if host is not None:
                connection.putheader("Host", host)
            for name, value in (headers or {}).items():
                connection.putheader(name, value)
            connection.endheaders()
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(status=response.status, headers=found, body=response.read())
        finally:
            connection.close()

    def listen(self, mark: str = "", host: str = "localhost") -> Listener:
        """A page that listens."""
        return Listener(self.port, mark, host)


class Listener:
    """Reads server-sent events."""

    def __init__(self, port: int, mark: str, host: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        after = f"Last-Event-ID: {mark}\r\n" if mark else ""
        request = f"GET /api/stream HTTP/1.1\r\nHost: {host}\r\n{after}\r\n"
        self._socket.sendall(request.encode())
        self._response = http.client.HTTPResponse(self._socket)
        self._response.begin()
        self.status = self._response.status
        self.headers = {name.lower(): value for name, value in self._response.getheaders()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._response.close()
        self._socket.close()

    def next(self, kind: str = "") -> tuple[str, str, Any]:
        """The next event (of that kind): kind, mark, data; data is None for an empty one."""
        while True:
            fields = {"event": "", "id": "", "data": ""}
            while line := self._response.readline().decode().rstrip("\n"):
                name, _, value = line.partition(":")
                if name in fields:
                    fields[name] = value.removeprefix(" ")
            if fields["event"] and kind in ("", fields["event"]):
                data = json.loads(fields["data"]) if fields["data"] else None
                return fields["event"], fields["id"], data
