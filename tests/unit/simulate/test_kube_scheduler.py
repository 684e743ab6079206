"""The simulated kube-scheduler: what it sends, and what it makes of each answer."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from hami_node.simulate.kube_scheduler import (
    Bound,
    CallFailed,
    ExtenderClient,
    PodDenied,
    Waiting,
    create_pod,
    schedule_pod,
)
from tests.fakes.api_server import FaultyApiServer

POD: dict[str, Any] = {
    "metadata": {"name": "p", "namespace": "default"},
    "spec": {"containers": [{"name": "main"}]},
}
Answer = dict[str, Any] | str
FITS: Answer = {"NodeNames": ["n1"], "FailedNodes": {"n2": "full"}}


class RequestRecorder:
    """An extender that answers what it was told to, and keeps what it was asked."""

    def __init__(self, answers: dict[str, Answer], status: int) -> None:
        self.answers, self.status = answers, status
        self.asked: list[tuple[str, dict[str, Any]]] = []


@contextmanager
def served(
    answers: dict[str, Answer], status: int = 200
) -> Iterator[tuple[ExtenderClient, RequestRecorder]]:
    recorder = RequestRecorder(answers, status)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            recorder.asked.append((self.path, json.loads(body)))
            answer = recorder.answers[self.path]
            sent = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_response(recorder.status)
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield ExtenderClient(port=server.server_address[1]), recorder
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@pytest.fixture
def api() -> FaultyApiServer:
    """Objects only: it need not listen."""
    server = FaultyApiServer()
    for name in ("n1", "n2"):
        server.create("nodes", {"metadata": {"name": name}})
    return server


def patch_of(*operations: dict[str, Any]) -> dict[str, Any]:
    text = base64.b64encode(json.dumps(operations).encode()).decode()
    return {"response": {"allowed": True, "patchType": "JSONPatch", "patch": text}}


# -- creation --------------------------------------------------------------------------------------
def test_create_pod_stores_what_the_webhook_leaves_of_it(api: FaultyApiServer) -> None:
    replace = {"op": "replace", "path": "/spec/schedulerName", "value": "hami-scheduler"}
    with served({"/webhook": patch_of(replace)}) as (extender, recorder):
        stored = create_pod(api, extender, POD)
    assert stored == api.read("pods", "p", "default")
    assert stored["spec"]["schedulerName"] == "hami-scheduler"
    request = recorder.asked[0][1]["request"]
    assert (request["operation"], request["kind"]["kind"]) == ("CREATE", "Pod")
    assert request["object"]["spec"]["schedulerName"] == "default-scheduler"


def test_create_pod_that_is_denied_is_not_stored(api: FaultyApiServer) -> None:
    denial = {"response": {"allowed": False, "status": {"message": "it is privileged"}}}
    with (
        served({"/webhook": denial}) as (extender, _),
        pytest.raises(PodDenied, match="it is privileged"),
    ):
        create_pod(api, extender, POD)
    assert api.list("pods") == []


# -- scheduling ------------------------------------------------------------------------------------
def test_schedule_pod_binds_to_the_node_that_is_left(api: FaultyApiServer) -> None:
    pod = api.create("pods", POD)
    with served({"/filter": FITS, "/bind": {"Error": ""}}) as (extender, recorder):
        assert schedule_pod(api, extender, "p", "default") == Bound(node="n1")
    assert recorder.asked == [
        ("/filter", {"Pod": pod, "Nodes": None, "NodeNames": ["n1", "n2"]}),
        (
            "/bind",
            {
                "PodName": "p",
                "PodNamespace": "default",
                "PodUID": pod["metadata"]["uid"],
                "Node": "n1",
            },
        ),
    ]


@pytest.mark.parametrize(
    ("answers", "wanted", "text"),
    [
        (
            {
                "/filter": {
                    "NodeNames": None,
                    "FailedNodes": {"n1": "full"},
                    "FailedAndUnresolvableNodes": {"n2": "no cards"},
                }
            },
            Waiting(reasons={"n1": "full", "n2": "no cards"}),
            "n1: full; n2: no cards",
        ),
        (
            {"/filter": {"Error": "not stored"}},
            Waiting(reasons={}, error="not stored"),
            "not stored",
        ),
        (
            {"/filter": FITS, "/bind": {"Error": "lock is held"}},
            Waiting(reasons={}, error="lock is held"),
            "lock is held",
        ),
    ],
    ids=["no node", "filter failed", "bind failed"],
)
def test_schedule_pod_without_a_node_says_why_in_its_status(
    api: FaultyApiServer, answers: dict[str, Answer], wanted: Waiting, text: str
) -> None:
    api.create("pods", POD)
    with served(answers) as (extender, _):
        assert schedule_pod(api, extender, "p", "default") == wanted
    condition = api.read("pods", "p", "default")["status"]["conditions"][0]
    assert (condition["reason"], condition["message"]) == ("Unschedulable", text)


def test_call_with_an_http_error_fails_with_its_words(api: FaultyApiServer) -> None:
    api.create("pods", POD)
    with (
        served({"/filter": "replica b decides"}, status=503) as (extender, _),
        pytest.raises(CallFailed, match="answered with 503: replica b decides"),
    ):
        schedule_pod(api, extender, "p", "default")
