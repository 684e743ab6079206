"""Two replicas as processes, of which the leader is frozen, or dies."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hami_node.simulate.kube_scheduler import bind_arguments, filter_arguments
from hami_node.simulate.store import Json
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.vendors.nvidia.codec import encode_json
from hami_node.wire import names
from tests.fakes.api_server import FaultyApiServer
from tests.fakes.pods import Box
from tests.fakes.waiting import eventually
from tests.integration.extender_process import Replica
from tests.integration.extender_rig import MEMORY_MIB, cards_of, pod_manifest
from tests.reliability import shows

pytestmark = pytest.mark.timeout(180)
LIMIT_S = 40.0


class Deciding(Replica):
    """A process that takes part in the election, and kube-scheduler's calls to it."""

    def __init__(self, name: str, folder: Path, api: FaultyApiServer) -> None:
        super().__init__(folder / name, api, "--leader-elect", f"--replica-name={name}")
        self._port = self.decisions

    def call(self, path: str, body: Json) -> tuple[int, Any]:
        """(status, answer) of a call; the answer is None where it is an error."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=LIMIT_S)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
        except OSError:
            return 0, None
        finally:
            connection.close()
        return response.status, json.loads(text) if response.status == 200 else None

    def filter(self, pod: Json) -> str:
        """The chosen node; "" for none, "?" where this replica does not decide."""
        status, answer = self.call("/filter", filter_arguments(pod, ["n0"]))
        if status != 200 or answer["Error"]:
            return "?"
        return "".join(answer["NodeNames"] or ())

    def bind(self, pod: Json) -> str:
        """The error; "" for success, "?" where this replica does not decide."""
        status, answer = self.call("/bind", bind_arguments(pod, "n0"))
        return "?" if status != 200 else str(answer["Error"])


@pytest.fixture
def api() -> Iterator[FaultyApiServer]:
    """One node with one card."""
    with FaultyApiServer(bookmark_interval_s=1.0) as running:
        notes = {
            nvidia_names.NODE_REGISTER: encode_json(cards_of("n0")[:1]),
            names.NODE_IDENTITY: names.IDENTITY_POD_RESOURCES,
        }
        status = {"allocatable": {nvidia_names.RESOURCE_GPU: "5"}}
        body = {"metadata": {"name": "n0", "annotations": notes}, "spec": {}, "status": status}
        running.create("nodes", body)
        yield running


def created(api: FaultyApiServer, name: str, labels: Mapping[str, str] | None = None) -> Json:
    """A pod of which the card takes one, not two."""
    box = Box(memory_mib=MEMORY_MIB * 3 // 4)
    manifest = pod_manifest(name, (box,), {})
    manifest["metadata"]["labels"] = dict(labels or {})
    return api.create("pods", manifest)


@shows(
    "E10",
    fault="the leader is frozen (SIGSTOP) while another replica leads, and wakes up",
    happens="it decides again only with what the other has stored; nothing is over-committed",
)
def test_leader_that_was_frozen_decides_only_with_a_fresh_picture(
    api: FaultyApiServer, tmp_path: Path
) -> None:
    early, late, latest = (created(api, name) for name in ("early", "late", "latest"))
    first = Deciding("first", tmp_path, api)
    replicas = [first]
    try:
        eventually(lambda: first.filter(early) == "n0", LIMIT_S)
        second = Deciding("second", tmp_path, api)
        replicas.append(second)
        eventually(lambda: second.bind(early) == "?", LIMIT_S)
        first.process.send_signal(signal.SIGSTOP)
        eventually(lambda: second.filter(late) == "n0", LIMIT_S)
        assert second.bind(late) == ""
        second.process.send_signal(signal.SIGTERM)
        assert second.process.wait(LIMIT_S) == 0
        first.process.send_signal(signal.SIGCONT)
        assert decided(first, latest) == ""  # the card is taken by what the other replica bound
        assert first.bind(early) != ""
        assert [_node(api, name) for name in ("early", "late", "latest")] == ["", "n0", ""]
    finally:
        for replica in replicas:
            replica.end(at_once=True)


def with_pods(api: FaultyApiServer, *names_of_replicas: str) -> None:
    """The replicas are pods, on the node."""
    for name in names_of_replicas:
        metadata = {"name": name, "namespace": "hami-system"}
        spec = {"nodeName": "n0", "containers": [{"name": "extender"}]}
        body = {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}
        api.create("pods", body)


def decided(replica: Deciding, pod: Json) -> str:
    """The first answer to /filter of a replica that is about to lead."""
    answers: list[str] = []

    def is_decided() -> bool:
        answers.append(replica.filter(pod))
        return answers[-1] != "?"

    eventually(is_decided, LIMIT_S)
    return answers[-1]


def lists_of(api: FaultyApiServer) -> int:
    """How often nodes or pods were listed."""
    return sum(len(api.requests(verb="list", resource=kind)) for kind in ("nodes", "pods"))


def test_new_leader_lists_neither_nodes_nor_pods(api: FaultyApiServer, tmp_path: Path) -> None:
    early, late = created(api, "early"), created(api, "late")
    with_pods(api, "first", "second")
    replicas = [first := Deciding("first", tmp_path, api)]
    try:
        eventually(lambda: first.filter(early) == "n0", LIMIT_S)
        replicas.append(second := Deciding("second", tmp_path, api))
        eventually(lambda: second.bind(early) == "?", LIMIT_S)
        eventually(lambda: lists_of(api) == 4, LIMIT_S)
        assert first.bind(early) == ""
        first.end(at_once=True)
        assert decided(second, late) == "", "the card is taken by what the other replica bound"
        assert lists_of(api) == 4
        marked = api.read("nodes", "n0")["metadata"]["annotations"][names.NODE_LEADING_SINCE]
        for name, is_last in (("first", False), ("second", True)):
            found = api.read("pods", name, "hami-system")["metadata"]["annotations"]
            assert (found[names.NODE_LEADING_SINCE] == marked) is is_last
    finally:
        for replica in replicas:
            replica.end(at_once=True)


@shows(
    "E10",
    fault="the last binding of a leader that died arrives after the next term has begun; the "
    "pod carries its reservation",
    happens="its cards are not given to another pod before or after",
)
def test_last_binding_of_the_former_leader_arrives_late(
    api: FaultyApiServer, tmp_path: Path
) -> None:
    early, late = created(api, "early", {names.POD_NODE: "earlier"}), created(api, "late")
    with_pods(api, "first", "second")
    replicas = [first := Deciding("first", tmp_path, api)]
    try:
        eventually(lambda: first.filter(early) == "n0", LIMIT_S)
        replicas.append(second := Deciding("second", tmp_path, api))
        eventually(lambda: second.bind(late) == "?", LIMIT_S)
        first.end(at_once=True)
        reserved = api.read("pods", "early", "default")
        api.faults.add("patch", "pods", 503, 1000)  # so that nobody can take it back meanwhile
        assert decided(second, late) == "", "the binding that names this version may still arrive"
        assert _bind(api, reserved) == 201
        api.faults.clear()
        eventually(lambda: second.bind(early) == "", LIMIT_S)
        assert second.filter(late) == ""
        assert [_node(api, name) for name in ("early", "late")] == ["n0", ""]
    finally:
        for replica in replicas:
            replica.end(at_once=True)


@shows(
    "E10",
    fault="the same with a binding that carries its reservation, which the next leader can't know",
    happens="the pod that got its cards meanwhile is not bound; if it was, its node refuses one",
)
def test_last_binding_that_carries_its_reservation_arrives_late(
    api: FaultyApiServer, tmp_path: Path
) -> None:
    early, late = created(api, "early"), created(api, "late")
    with_pods(api, "first", "second")
    replicas = [first := Deciding("first", tmp_path, api)]
    try:
        eventually(lambda: first.filter(early) == "n0", LIMIT_S)
        replicas.append(second := Deciding("second", tmp_path, api))
        eventually(lambda: second.bind(late) == "?", LIMIT_S)
        first.end(at_once=True)
        assert decided(second, late) == "n0"
        made = f"{cards_of('n0')[0].uuid},NVIDIA,{MEMORY_MIB * 3 // 4},0:;"
        notes = {names.POD_NODE: "n0", nvidia_names.POD_ALLOCATED: made}
        assert _bind(api, early, notes) == 201
        eventually(lambda: second.bind(early) == "", LIMIT_S)
        assert "no longer fits" in second.bind(late)
        assert [_node(api, name) for name in ("early", "late")] == ["n0", ""]
    finally:
        for replica in replicas:
            replica.end(at_once=True)


def _bind(api: FaultyApiServer, pod: Json, notes: Mapping[str, str] | None = None) -> int:
    """The request that the former leader had sent; the status of the response."""
    keys = ("name", "namespace", "uid", "resourceVersion")
    meta = {key: pod["metadata"][key] for key in keys} | {"annotations": notes or {}}
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": meta,
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n0"},
    }
    path = f"/api/v1/namespaces/default/pods/{meta['name']}/binding"
    connection = http.client.HTTPConnection(api.url.removeprefix("http://"), timeout=LIMIT_S)
    with closing(connection):
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return connection.getresponse().status


def _node(api: FaultyApiServer, name: str) -> str:
    return str(api.read("pods", name, "default")["spec"].get("nodeName") or "")
