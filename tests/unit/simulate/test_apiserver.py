"""The simulated API server as any HTTP client sees it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.api_server import FaultyApiServer

Json = dict[str, Any]
PODS = "/api/v1/namespaces/ns/pods"
MERGE = "application/merge-patch+json"
PATCH = "application/json-patch+json"


@pytest.fixture
def server() -> Iterator[FaultyApiServer]:
    with FaultyApiServer(bookmark_interval_s=0.05) as running:
        yield running


def ask(
    server: FaultyApiServer,
    method: str,
    path: str,
    body: object = None,
    content_type: str = "application/json",
    headers: dict[str, str] | None = None,
) -> tuple[int, Json]:
    """(status, answer) of one request on its own connection."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=10)
    try:
        sent = json.dumps(body).encode() if body is not None else None
        more = {"Content-Type": content_type, **(headers or {})}
        connection.request(method, path, sent, more)
        answer = connection.getresponse()
        assert answer.getheader("Server") == "hami-node-simulated-apiserver"
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def pod(name: str, node: str = "", **labels: str) -> Json:
    return {"metadata": {"name": name, "labels": labels}, "spec": {"nodeName": node}}


def names(answer: Json) -> list[str]:
    return [item["metadata"]["name"] for item in answer["items"]]


# -- objects ---------------------------------------------------------------------------------------


def test_post_creates_with_identity_and_get_reads(server: FaultyApiServer) -> None:
    status, made = ask(server, "POST", PODS, pod("p"))
    assert status == 201
    assert (made["kind"], made["apiVersion"]) == ("Pod", "v1")
    meta = made["metadata"]
    assert meta["namespace"] == "ns"
    assert meta["uid"]
    assert int(meta["resourceVersion"]) > 0
    assert ask(server, "GET", f"{PODS}/p") == (200, made)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", f"{PODS}/none", None, 404),
        ("DELETE", f"{PODS}/none", None, 404),
        ("PATCH", f"{PODS}/none", {}, 404),
        ("GET", "/api/v1/persistentvolumes", None, 404),
        ("GET", "/apis/apps/v1/replicasets", None, 404),
        ("GET", "/api/v1/namespaces/ns/leases", None, 404),
        ("GET", "/nonsense", None, 404),
        ("POST", PODS, {}, 422),
        ("POST", PODS, [], 400),
        ("GET", "/api/v1/pods?fieldSelector=spec.color%3Dred", None, 400),
        ("GET", "/api/v1/pods?labelSelector=a+in+(b)", None, 400),
    ],
)
def test_what_is_wrong_gets_a_status_object(
    server: FaultyApiServer, method: str, path: str, body: object, status: int
) -> None:
    code, answer = ask(server, method, path, body, MERGE)
    assert (code, answer["kind"], answer["code"]) == (status, "Status", status)
    assert answer["message"]


def test_merge_patch_merges_and_checks_a_version_that_it_names(server: FaultyApiServer) -> None:
    server.create("nodes", {"metadata": {"name": "n", "annotations": {"a": "1"}}})
    path = "/api/v1/nodes/n"
    status, merged = ask(server, "PATCH", path, {"metadata": {"annotations": {"b": "2"}}}, MERGE)
    assert (status, merged["metadata"]["annotations"]) == (200, {"a": "1", "b": "2"})
    stale = {"metadata": {"resourceVersion": "1", "annotations": {"a": None}}}
    assert ask(server, "PATCH", path, stale, MERGE)[0] == 409


def test_json_patch_with_false_test_is_422_and_changes_nothing(server: FaultyApiServer) -> None:
    made = server.create("nodes", {"metadata": {"name": "n"}})
    patch = [
        {"op": "add", "path": "/metadata/labels", "value": {"x": "y"}},
        {"op": "test", "path": "/metadata/resourceVersion", "value": "1"},
    ]
    status, answer = ask(server, "PATCH", "/api/v1/nodes/n", patch, PATCH)
    assert (status, answer["reason"]) == (422, "Invalid")
    assert server.read("nodes", "n") == made


# -- lists -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", ["a", "b", "c"]),
        ("fieldSelector=spec.nodeName%3Dn1", ["a"]),
        ("fieldSelector=spec.nodeName!%3Dn1", ["b", "c"]),
        ("fieldSelector=spec.nodeName%3D", ["c"]),
        ("fieldSelector=metadata.name%3Db,spec.nodeName%3Dn2", ["b"]),
        ("labelSelector=tier%3Dweb", ["a"]),
        ("labelSelector=tier!%3Dweb", ["b", "c"]),
        ("labelSelector=tier", ["a", "b"]),
        ("labelSelector=!tier", ["c"]),
    ],
)
def test_selectors_choose(server: FaultyApiServer, query: str, found: list[str]) -> None:
    for body in (pod("a", "n1", tier="web"), pod("b", "n2", tier="db"), pod("c")):
        ask(server, "POST", PODS, body)
    status, answer = ask(server, "GET", f"/api/v1/pods?{query}")
    assert (status, answer["kind"], names(answer)) == (200, "PodList", found)
    assert names(ask(server, "GET", f"/api/v1/namespaces/other/pods?{query}")[1]) == []


# -- watch -----------------------------------------------------------------------------------------


class Watch:
    """An open watch; reads events one by one."""

    def __init__(self, server: FaultyApiServer, query: str) -> None:
        self._connection = http.client.HTTPConnection(server.url[7:], timeout=10)
        self._connection.request("GET", f"/api/v1/pods?watch=true&{query}")
        self._answer = self._connection.getresponse()
        self.status = self._answer.status

    def next(self) -> tuple[str, Json] | None:
        """(type, object); None at the end."""
        line = self._answer.readline()
        if not line:
            return None
        event = json.loads(line)
        return event["type"], event["object"]

    def rest(self) -> list[str]:
        """Types of the events up to the end, however it comes."""
        kinds: list[str] = []
        try:
            while (event := self.next()) is not None:
                kinds.append(event[0])
        except (ConnectionError, http.client.HTTPException):
            return [*kinds, "broken"]
        return kinds

    def close(self) -> None:
        self._connection.close()


def test_watch_from_a_version_sends_what_came_after(server: FaultyApiServer) -> None:
    _, first = ask(server, "POST", PODS, pod("a", "n1"))
    ask(server, "POST", PODS, pod("b", "n1"))
    watch = Watch(server, f"resourceVersion={first['metadata']['resourceVersion']}")
    event = watch.next()
    assert event is not None
    assert (event[0], event[1]["metadata"]["name"]) == ("ADDED", "b")
    ask(server, "DELETE", f"{PODS}/a")
    event = watch.next()
    assert event is not None
    assert (event[0], event[1]["metadata"]["name"]) == ("DELETED", "a")
    assert event[1]["metadata"]["resourceVersion"] == str(server.store.version)
    watch.close()


def test_watch_with_a_selector_adds_and_removes_as_objects_come_and_go(
    server: FaultyApiServer,
) -> None:
    ask(server, "POST", PODS, pod("p"))
    version = server.store.version
    watch = Watch(server, f"resourceVersion={version}&fieldSelector=spec.nodeName%3Dn1")
    for change in ({"nodeName": "n1"}, {"priority": 1}, {"nodeName": "n2"}, {"priority": 2}):
        ask(server, "PATCH", f"{PODS}/p", {"spec": change}, MERGE)
    events = [watch.next() for _ in range(3)]
    assert [event[0] for event in events if event] == ["ADDED", "MODIFIED", "DELETED"]
    watch.close()


# -- faults ----------------------------------------------------------------------------------------


def test_fail_next_counts_down_per_verb_and_resource(server: FaultyApiServer) -> None:
    server.fail_next("list", "pods", 500, times=2)
    assert ask(server, "GET", "/api/v1/nodes")[0] == 200
    assert [ask(server, "GET", "/api/v1/pods")[0] for _ in range(3)] == [500, 500, 200]


def test_reset_happens_before_and_reset_after_behind_the_change(server: FaultyApiServer) -> None:
    server.fail_next("create", "pods", "reset")
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        ask(server, "POST", PODS, pod("a"))
    assert server.list("pods") == []
    server.fail_next("create", "pods", "reset-after")
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        ask(server, "POST", PODS, pod("a"))
    assert len(server.list("pods")) == 1


# -- the rest --------------------------------------------------------------------------------------


def test_token_is_checked_when_there_is_one() -> None:
    with FaultyApiServer(token="t") as server:
        assert ask(server, "GET", "/api/v1/pods")[0] == 401
        assert ask(server, "GET", "/api/v1/pods", headers={"Authorization": "Bearer x"})[0] == 401
        assert ask(server, "GET", "/api/v1/pods", headers={"Authorization": "Bearer t"})[0] == 200
