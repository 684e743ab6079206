"""Several replicas: all are Ready and answer /webhook, one alone is in the EndpointSlice."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from hami_node.simulate.store import Json
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.reviews import review_of
from tests.fakes.waiting import eventually
from tests.integration.extender_process import LIMIT_S, SLICE, SPACE, Replica
from tests.reliability import shows

REVIEW: Final = review_of(
    {"metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": [{"name": "c"}]}}
)
POD: Final = {"metadata": {"name": "p", "namespace": "default", "uid": "u"}}
FILTER: Final = {"Pod": POD, "Nodes": None, "NodeNames": ["n0"]}


class Replicas:
    """Processes by the address that each would have as a pod."""

    def __init__(self, folder: Path, api: FaultyApiServer) -> None:
        self._folder, self.api = folder, api
        self.running: dict[str, Replica] = {}
        api.create(
            "endpointslices",
            {"metadata": {"name": SLICE, "namespace": SPACE}, "addressType": "IPv4"},
        )

    def start(self, ip: str, *more: str) -> Replica:
        flags = (
            *more,
            "--leader-elect",
            f"--lease-namespace={SPACE}",
            f"--replica-name=pod-{ip}",
            f"--endpoint-slice={SLICE}",
            f"--pod-ip={ip}",
        )
        self.running[ip] = made = Replica(self._folder / ip, self.api, *flags)
        made.wait_ready()
        return made

    def served(self) -> list[str]:
        """The addresses in the slice."""
        found: Json = self.api.read("endpointslices", SLICE, SPACE)
        return [ip for item in found.get("endpoints") or () for ip in item["addresses"]]

    def end(self, ip: str, *, at_once: bool = False) -> None:
        self.running.pop(ip).end(at_once=at_once)


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    with FaultyApiServer() as api:
        made = Replicas(tmp_path, api)
        try:
            yield made
        finally:
            for ip in list(made.running):
                made.end(ip)


def post(port: int, path: str, body: Json) -> tuple[int, Any]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)) as connection:
        connection.request("POST", path, json.dumps(body))
        response = connection.getresponse()
        return response.status, json.loads(response.read())


@shows(
    "E12",
    fault="the replica that leads is killed",
    happens="the other answers /webhook all the time, and takes its place in the EndpointSlice",
)
def test_killed_leader_is_replaced_in_the_slice_and_the_webhook_never_stops(
    replicas: Replicas,
) -> None:
    replicas.start("192.0.2.1")
    eventually(lambda: replicas.served() == ["192.0.2.1"], LIMIT_S)
    other = replicas.start("192.0.2.2")
    assert other.probe("/readyz") == 200, "it does not lead, and is Ready"
    assert post(other.decisions, "/filter", FILTER)[0] == 503
    replicas.api.faults.add("list", "pods", 503, 2)  # what a new leader does first takes a while
    replicas.end("192.0.2.1", at_once=True)

    def is_replaced() -> bool:
        assert other.probe("/readyz") == 200, "also while it lists again"
        status, answer = post(other.webhook, "/webhook", REVIEW)
        assert (status, answer["response"]["allowed"]) == (200, True)
        served = replicas.served()
        assert len(served) == 1, "never two, never none"
        return served == ["192.0.2.2"]

    eventually(is_replaced, LIMIT_S)
    assert post(other.decisions, "/filter", FILTER)[0] == 200
    found = replicas.api.read("endpointslices", SLICE, SPACE)
    (port,), (endpoint,) = found["ports"], found["endpoints"]
    assert (port["name"], port["port"]) == ("https", other.decisions)
    assert endpoint["targetRef"]["name"] == "pod-192.0.2.2"


@shows(
    "E12",
    fault="a rollout replaces every replica, the leader too",
    happens="each new one is Ready although another leads, so the rollout ends",
)
def test_rollout_moves_the_slice_with_the_lead(replicas: Replicas) -> None:
    replicas.start("192.0.2.1")
    replicas.start("192.0.2.2")
    eventually(lambda: len(replicas.served()) == 1, LIMIT_S)
    for new, old in (("192.0.2.3", "192.0.2.1"), ("192.0.2.4", "192.0.2.2")):
        replicas.start(new)  # start waits until it is Ready
        replicas.end(old)
        assert len(replicas.served()) == 1
    eventually(lambda: replicas.served()[0] in replicas.running, LIMIT_S)
    (leader,) = replicas.served()
    assert post(replicas.running[leader].decisions, "/filter", FILTER)[0] == 200
