"""Calls to the extender over a real socket, and what every answer has to look like."""

from __future__ import annotations

import base64
import copy
import http.client
import json
import socket
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final

from hami_node.simulate.kube_scheduler import bind_arguments
from hami_node.simulate.store import Json
from tests.fakes.pods import Box
from tests.fakes.reviews import review_of
from tests.fakes.waiting import eventually
from tests.integration.extender_rig import ExtenderRig, pod_manifest

NODES: Final = ("n0", "n1", "n2", "n3")
TIME_LIMIT_S: Final = 60.0
"""Far beyond what any answer takes, also beside other work on the machine."""
ANSWERED: Final = {200, 400, 413, 503}
BIG_MIB: Final = 900_000
"""More than any card has: a pod that asks for it can't get a reservation, whatever is said."""
FILTER_KEYS: Final = {
    "Nodes",
    "NodeNames",
    "FailedNodes",
    "FailedAndUnresolvableNodes",
    "Error",
}
ROUTES: Final = ("/filter", "/bind", "/preempt", "/webhook")
DEEP: Final = 10_000
BIND_BYTES: Final = 64 * 2**10
Headers = Mapping[str, str]
Answer = tuple[int, Any]


# -- calls -----------------------------------------------------------------------------------------
def create(rig: ExtenderRig, name: str, *boxes: Box) -> Json:
    return rig.api.create("pods", pod_manifest(name, boxes, {}))


def pods_of(rig: ExtenderRig) -> list[Json]:
    """All pods as they are, without the mark of when they were written."""
    found = []
    for pod in rig.api.list("pods"):
        kept = {key: value for key, value in pod["metadata"].items() if value}
        kept.pop("resourceVersion")
        found.append({**copy.deepcopy(pod), "metadata": kept})
    return found


def exchange(
    rig: ExtenderRig, method: str, path: str, body: Any = None, headers: Headers | None = None
) -> Answer:
    """Status and JSON, or the text where it is none."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", rig.extender.parts.server.port, timeout=TIME_LIMIT_S
    )
    with closing(connection):
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        raw = response.read().decode()
        kind = response.headers["Content-Type"]
        return response.status, json.loads(raw) if kind == "application/json" else raw


def post(rig: ExtenderRig, path: str, body: bytes | object) -> Answer:
    """One call; `body` is sent as it is, or as JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, answer = exchange(rig, "POST", path, raw)
    check_shape(path, status, answer)
    return status, answer


def talk(rig: ExtenderRig, data: bytes, *, is_over: bool = False) -> bytes:
    """Send bytes, read until the server hangs up; `is_over` ends our half of the connection."""
    address = ("127.0.0.1", rig.extender.parts.server.port)
    with socket.create_connection(address, timeout=TIME_LIMIT_S) as raw:
        raw.sendall(data)
        if is_over:
            raw.shutdown(socket.SHUT_WR)
        received = b""
        while piece := raw.recv(65536):
            received += piece
        return received


def filter_args(pod: Json, node_names: object = NODES) -> Json:
    return {"Pod": pod, "Nodes": None, "NodeNames": node_names}


def preempt_args(pod: Json, *victims: str) -> Json:
    """A call about one node; without victims no answer names it."""
    proposed = {"Pods": [{"UID": uid} for uid in victims], "NumPDBViolations": 0}
    return {
        "Pod": pod,
        "NodeNameToVictims": None,
        "NodeNameToMetaVictims": {"n0": proposed},
    }


def bind_args(pod: Json, node: str = "n0") -> Json:
    return bind_arguments(pod, node)


def bodies(rig: ExtenderRig) -> dict[str, Json]:
    """A good call of each kind, about the pod that would fit."""
    small = rig.api.read("pods", "small", "default")
    return {
        "/filter": filter_args(small),
        "/bind": bind_args(small),
        "/preempt": preempt_args(small),
        "/webhook": review_of(small),
    }


def refusal(rig: ExtenderRig, path: str, body: bytes | object) -> str:
    """The sentence of a call that has to be answered with 400."""
    status, answer = post(rig, path, body)
    assert status == 400, answer
    return str(answer["Error"])


def serve_one(rig: ExtenderRig, name: str) -> None:
    """A pod from its admission to its node, and away again."""
    template = pod_manifest(name, (Box(memory_mib=1000, cores=10),), {})
    status, answer = post(rig, "/webhook", review_of(template))
    assert (status, answer["response"]["allowed"]) == (200, True)
    pod = rig.api.create("pods", template)
    status, answer = post(rig, "/filter", filter_args(pod))
    assert (status, answer["Error"]) == (200, ""), answer
    [node] = answer["NodeNames"]
    assert post(rig, "/bind", bind_args(pod, node)) == (200, {"Error": ""})
    assert rig.api.read("pods", name, "default")["spec"]["nodeName"] == node
    assert rig.state.charges()[pod["metadata"]["uid"]][0] == node
    rig.delete(name)
    eventually(lambda: pod["metadata"]["uid"] not in rig.state.charges(), TIME_LIMIT_S)


# -- the shape of answers --------------------------------------------------------------------------
def check_shape(path: str, status: int, answer: Any) -> None:
    """What a caller in Go can read, with a sentence where it is refused."""
    assert status in ANSWERED, answer
    if status != 200:
        assert list(answer) == ["Error"]
        assert isinstance(answer["Error"], str)
        assert answer["Error"]
    elif path == "/filter":
        check_filter_answer(answer)
    elif path == "/bind":
        assert list(answer) == ["Error"]
        assert isinstance(answer["Error"], str)
    elif path == "/preempt":
        assert list(answer) == ["NodeNameToMetaVictims"]
    else:
        check_review_answer(answer)


def check_filter_answer(answer: Any) -> None:
    assert set(answer) == FILTER_KEYS
    assert isinstance(answer["Error"], str)
    nodes, node_names = answer["Nodes"], answer["NodeNames"]
    assert nodes is None or isinstance(nodes["items"], list)
    assert node_names is None or all(isinstance(name, str) for name in node_names)
    for key in ("FailedNodes", "FailedAndUnresolvableNodes"):
        assert all(isinstance(why, str) and why for why in answer[key].values()), answer[key]


def check_review_answer(answer: Any) -> None:
    assert set(answer) == {"apiVersion", "kind", "response"}
    response = answer["response"]
    assert isinstance(response["uid"], str)
    if response["allowed"]:
        assert "status" not in response
        assert isinstance(json.loads(base64.b64decode(response.get("patch", "W10="))), list)
    else:
        assert response["status"]["message"]
        assert response["status"]["code"] in (400, 403)
