"""The lead changes hands while kube-scheduler calls: it asks again, and no pod is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hami_node.simulate.kube_scheduler import bind_arguments, filter_arguments
from hami_node.simulate.store import Json
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import encode_json
from hami_node.wire import names
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.extender_client import Called, ExtenderClient
from tests.fakes.pods import Box
from tests.fakes.waiting import eventually
from tests.integration.extender_doors.test_leader_endpoint import Replicas
from tests.integration.extender_process import LIMIT_S
from tests.integration.extender_rig import cards_of, pod_manifest
from tests.reliability import shows

FIRST, SECOND = "192.0.2.1", "192.0.2.2"


class Scheduler:
    """Filters and binds pod after pod, through the Service, until told to stop."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas, self._api = replicas, replicas.api
        self._ports = {ip: replica.decisions for ip, replica in replicas.running.items()}
        self._client = ExtenderClient(self._where)
        self.lost: list[Called] = []
        self.refused: list[str] = []
        self.bound = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(LIMIT_S)
        self._client.close()

    def _where(self) -> str:
        (ip,) = self._replicas.served()
        return f"127.0.0.1:{self._ports[ip]}"

    def _run(self) -> None:
        while not self._stop.is_set():
            pod = self._api.create("pods", pod_manifest(f"p{self.bound}", (Box(),), {}))
            while not self._is_bound(pod) and not self._stop.wait(0.05):
                pass  # kube-scheduler asks again, too
            self._api.delete("pods", pod["metadata"]["name"], "default")

    def _is_bound(self, pod: Json) -> bool:
        found = self._call("/filter", filter_arguments(pod, ["n0"]))
        if found is None or found["NodeNames"] != ["n0"]:
            return False
        answer = self._call("/bind", bind_arguments(pod, "n0"))
        is_bound = answer is not None and not answer["Error"]
        self.bound += is_bound
        return is_bound

    def _call(self, path: str, body: Json) -> Any:
        """A leader's answer; None where no leader has answered."""
        called = self._client.call(path, body)
        if called.is_lost:
            self.lost.append(called)
            return None
        if called.answer["Error"]:
            self.refused.append(called.answer["Error"])
        return called.answer


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    """One node with one card."""
    with FaultyApiServer() as api:
        notes = {
            nvidia_names.NODE_REGISTER: encode_json(cards_of("n0")[:1]),
            names.NODE_IDENTITY: names.IDENTITY_POD_RESOURCES,
        }
        status = {"allocatable": {nvidia_names.RESOURCE_GPU: "5"}}
        body = {"metadata": {"name": "n0", "annotations": notes}, "spec": {}, "status": status}
        api.create("nodes", body)
        made = Replicas(tmp_path, api)
        try:
            yield made
        finally:
            for ip in list(made.running):
                made.end(ip)


@shows(
    "E12",
    fault="the replica that leads is ended while kube-scheduler calls, pod after pod",
    happens="the next one decides within two seconds; what kube-scheduler asks again is answered",
    lost="calls in those seconds fail, and are made again",
)
def test_pods_of_a_planned_change_are_bound_by_the_next_leader(replicas: Replicas) -> None:
    replicas.start(FIRST)
    eventually(lambda: replicas.served() == [FIRST], LIMIT_S)
    replicas.start(SECOND)
    scheduler = Scheduler(replicas)
    try:
        eventually(lambda: scheduler.bound > 10, LIMIT_S)
        old = replicas.running.pop(FIRST)
        old.process.terminate()
        assert old.process.wait(LIMIT_S) == 0
        before = scheduler.bound
        eventually(lambda: scheduler.bound > before + 10, LIMIT_S)
    finally:
        scheduler.stop()
    assert replicas.served() == [SECOND]
    assert {call.status for call in scheduler.lost} <= {0, 503}
    assert scheduler.refused == []
    assert "event=leader_released " in old.log()


def test_leader_without_a_successor_ends_all_the_same(replicas: Replicas) -> None:
    only = replicas.start(FIRST)
    eventually(lambda: replicas.served() == [FIRST], LIMIT_S)
    only.process.terminate()
    assert only.process.wait(LIMIT_S) == 0
    assert "event=leader_released " in only.log()
    replicas.running.pop(FIRST)


@shows(
    "E12",
    fault="the configuration changes, of all replicas at once",
    happens="the leader starts anew last, so that one replica answers /webhook at any time",
)
def test_changed_configuration_restarts_the_leader_last(replicas: Replicas, tmp_path: Path) -> None:
    config = tmp_path / "device-config.yaml"
    config.write_text("nvidia:\n  defaultMemory: 1000\n")
    leader = replicas.start(FIRST, f"--config-file={config}")
    eventually(lambda: replicas.served() == [FIRST], LIMIT_S)
    other = replicas.start(SECOND, f"--config-file={config}")
    new = config.with_suffix(".new")
    new.write_text("nvidia:\n  defaultMemory: 2000\n")
    new.rename(config)
    eventually(lambda: other.log().count("event=synced ") == 2, LIMIT_S)
    eventually(lambda: "event=config_changed " in leader.log(), LIMIT_S)
    assert "event=stopped " not in leader.log()
    assert leader.probe("/readyz") == 200
