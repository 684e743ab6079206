"""The extender's HTTP surface against bad input: a clear answer in time, and nothing lost.

What is asked goes over a real socket into a real extender before a simulated API server.
"""

from __future__ import annotations

import base64
import copy
import http.client
import json
import logging
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_node.simulate.patches import json_patch
from hami_node.simulate.store import Json
from hami_node.wire import names
from tests.fakes.pods import Box
from tests.fakes.waiting import eventually
from tests.integration.extender_rig import CARDS, SLOTS, ExtenderRig, cards_of, pod_manifest

NODES: Final = ("n0", "n1", "n2", "n3")
TIME_LIMIT_S: Final = 20.0
"""An answer that takes longer is none; kube-scheduler waits 30 s."""
EXAMPLES: Final = 150
BIG_MIB: Final = 900_000
"""More than any card has: a pod that asks for it can't get a reservation, whatever is said."""
ANSWERED: Final = {200, 400, 413, 503}
FILTER_KEYS: Final = {
    "Nodes",
    "NodeNames",
    "FailedNodes",
    "FailedAndUnresolvableNodes",
    "Error",
}
Headers = Mapping[str, str]
Answer = tuple[int, Any]


@pytest.fixture(scope="module")
def rig() -> Iterator[ExtenderRig]:
    """Four nodes of four cards, a pod that fits (`small`) and one that never will (`big`)."""
    rig = ExtenderRig().start()
    try:
        for name in NODES:
            rig.write_node(name, has_identity=True)
        create(rig, "small", Box(memory_mib=1000))
        create(rig, "big", Box(memory_mib=BIG_MIB))
        rig.settle()
        yield rig
    finally:
        rig.close()


@pytest.fixture(autouse=True)
def unharmed(rig: ExtenderRig, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """After each test: nothing is charged, no pod is changed, and good calls are served."""
    before = pods_of(rig)
    yield
    eventually(lambda: rig.state.charges() == {}, TIME_LIMIT_S)
    eventually(lambda: pods_of(rig) == before, TIME_LIMIT_S)
    serve_one(rig, "good")
    rig.settle()
    assert rig.drift() == []
    assert exchange(rig, "GET", "/healthz") == (200, "ok\n")
    failures = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert failures == []


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
        "127.0.0.1", rig.extender.server.port, timeout=TIME_LIMIT_S
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
    address = ("127.0.0.1", rig.extender.server.port)
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


def bind_args(pod: Json, node: str = "n0") -> Json:
    metadata = pod["metadata"]
    return {
        "PodName": metadata["name"],
        "PodNamespace": metadata["namespace"],
        "PodUID": metadata["uid"],
        "Node": node,
    }


def review_of(pod: object, **request: object) -> Json:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE",
            "namespace": "default",
            "object": pod,
            **request,
        },
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


# -- anything at all -------------------------------------------------------------------------------
JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)
PATHS: Final = st.sampled_from(["/filter", "/bind", "/webhook"])
VALUES: Final = (
    st.sampled_from(
        [None, True, 0, -1, 1.5, 2**63, 10**400, 1e308, float("nan"), float("inf"), "", "1", "x",
         "..", "a/b", "\x00", "\ud800", "é😀", "9" * 5000, "x" * 70_000, [], {}, [None], [[]],
         {"": None}, ["n0"], "n0", "default"]
    )
    | JSON
).map(copy.deepcopy)  # fmt: skip
TWIN: Final = "\ue000"
"""Ends a key that is meant to be there twice; it is taken out of the text."""


def places_in(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is a member, however deep."""
    members = value.items() if isinstance(value, dict) else ()
    members = enumerate(value) if isinstance(value, list) else members
    for key, inner in members:
        yield (*above, key)
        yield from places_in(inner, (*above, key))


def retyped(value: Any) -> Any:
    """The value in the nearest other type."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [list(member) for member in value.items()]
    return str(value)


def changed(draw: st.DrawFn, whole: Any) -> Any:
    """One member dropped, there twice, in another case, replaced, or of another type."""
    places = list(places_in(whole))
    if not places:
        return draw(VALUES)
    *above, key = draw(st.sampled_from(places))
    parent = whole
    for step in above:
        parent = parent[step]
    kind = draw(st.sampled_from(["drop", "twice", "case", "replace", "retype", "stranger"]))
    if kind == "drop":
        del parent[key]
    elif kind == "replace":
        parent[key] = draw(VALUES)
    elif kind == "retype":
        parent[key] = retyped(parent[key])
    elif isinstance(parent, list):
        parent.insert(key, draw(VALUES) if kind == "stranger" else parent[key])
    elif kind == "twice":
        parent[key + TWIN] = draw(VALUES | st.just(parent[key]))
    elif kind == "case":
        parent[draw(st.sampled_from([key.lower(), key.upper(), key.swapcase()]))] = parent.pop(key)
    else:
        parent[draw(st.text(max_size=8))] = draw(VALUES)
    return whole


SPOKEN_OF: Final = {
    "name": "@name",
    "namespace": "default",
    "uid": "@uid",
    "resourceVersion": "@rv",
}
"""Stands for a pod, so that what is drawn is the same in every run."""


def spoken_of(memory_mib: int) -> Json:
    pod = pod_manifest("@name", (Box(memory_mib=memory_mib, cores=10),), {"k": "v"})
    return {**pod, "metadata": {**pod["metadata"], **SPOKEN_OF}}


def about(pod: Json, body: bytes) -> bytes:
    """The body with the real pod in the place of the one that stands for it."""
    for key, word in SPOKEN_OF.items():
        body = body.replace(word.encode(), pod["metadata"][key].encode())
    return body


@st.composite
def damaged(draw: st.DrawFn, whole: Json) -> bytes:
    """The JSON of a valid body after one to four changes."""
    value: Any = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 4))):
        value = changed(draw, value)
    text = json.dumps(value, ensure_ascii=draw(st.booleans())).replace(TWIN, "")
    return text.replace("\\ue000", "").encode("utf-8", "surrogatepass")


def is_unharmed(rig: ExtenderRig, before: list[Json]) -> bool:
    """Nothing is charged and no pod differs; the watch may need a moment to show that."""
    return not rig.state.charges() and pods_of(rig) == before


@given(path=PATHS, body=st.binary(max_size=300))
@settings(max_examples=EXAMPLES, deadline=None)
def test_arbitrary_bytes_are_refused(rig: ExtenderRig, path: str, body: bytes) -> None:
    assert refusal(rig, path, body)


@given(path=PATHS, value=JSON)
@settings(max_examples=EXAMPLES, deadline=None)
def test_arbitrary_json_is_refused(rig: ExtenderRig, path: str, value: object) -> None:
    assert refusal(rig, path, value)


@given(body=damaged(filter_args(spoken_of(BIG_MIB), list(NODES))))
@settings(max_examples=2 * EXAMPLES, deadline=None)
def test_damaged_filter_call_of_a_pod_that_never_fits_reserves_nothing(
    rig: ExtenderRig, body: bytes
) -> None:
    before = pods_of(rig)
    post(rig, "/filter", about(rig.api.read("pods", "big", "default"), body))
    eventually(lambda: is_unharmed(rig, before), TIME_LIMIT_S)


@given(body=damaged(filter_args(spoken_of(1000), list(NODES))))
@settings(max_examples=EXAMPLES, deadline=None)
def test_damaged_filter_call_never_reserves_but_for_its_pod_and_what_that_asks(
    rig: ExtenderRig, body: bytes
) -> None:
    before = pods_of(rig)
    pod = create(rig, "fuzzed", Box(memory_mib=1000, cores=10))
    uid = pod["metadata"]["uid"]
    try:
        post(rig, "/filter", about(pod, body))
        charges = rig.state.charges()
        assert set(charges) <= {uid}
        for _, held in charges.values():
            assert [(one.slots, one.memory_mib, one.cores) for one in held] == [(1, 1000, 10)]
    finally:
        rig.delete("fuzzed")
    eventually(lambda: is_unharmed(rig, before), TIME_LIMIT_S)


@given(body=damaged(bind_args(spoken_of(1000))))
@settings(max_examples=EXAMPLES, deadline=None)
def test_damaged_bind_call_of_a_pod_without_reservation_binds_nothing(
    rig: ExtenderRig, body: bytes
) -> None:
    before = pods_of(rig)
    _, answer = post(rig, "/bind", about(rig.api.read("pods", "small", "default"), body))
    assert answer["Error"]
    assert is_unharmed(rig, before)


@given(body=damaged(review_of(spoken_of(1000))))
@settings(max_examples=2 * EXAMPLES, deadline=None)
def test_damaged_review_is_refused_or_answered_with_a_patch_that_applies(
    rig: ExtenderRig, body: bytes
) -> None:
    status, answer = post(rig, "/webhook", body)
    patch = base64.b64decode(answer["response"].get("patch", "")) if status == 200 else b""
    if patch:
        json_patch(json.loads(body)["request"]["object"], json.loads(patch))
