"""Hold the daemon's writes at the API server's door until the test has done its worst."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from tests.e2e.api import Api
from tests.e2e.parts import NODE
from tests.e2e.pki import Authority
from tests.e2e.waiting import eventually

_PATH: Final = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_NAME: Final = "hami-node-e2e-gate"


class Gate:
    """`arrived` is set when a write waits; `opened` lets it and all later ones through.

    `stands` is set once the API server asks.
    """

    def __init__(self) -> None:
        self.arrived, self.opened = threading.Event(), threading.Event()
        self.stands = threading.Event()

    def admit(self, body: bytes) -> bytes:
        """Answer an AdmissionReview once the gate is open; that of a dry run at once."""
        request = json.loads(body)["request"]
        if request.get("dryRun"):
            self.stands.set()
        else:
            self.arrived.set()
            self.opened.wait(20)
        uid = request["uid"]
        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": {"uid": uid, "allowed": True},
        }
        return json.dumps(review).encode()


@contextmanager
def gate(api: Api, authority: Authority, user: str, resource: str) -> Iterator[Gate]:
    """Hold that user's updates of `pods` or `nodes` while the context lasts."""
    held = Gate()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(held))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue_server("gate", ("localhost",), ("127.0.0.1",)))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        api.create(_PATH, _configuration(server.server_port, authority.ca_file, user, resource))
        eventually("the gate stands", lambda: _knock(api, held))
        yield held
    finally:
        held.opened.set()
        api.delete(f"{_PATH}/{_NAME}")
        server.shutdown()
        server.server_close()
        thread.join()


def _knock(api: Api, held: Gate) -> bool:
    """Change the node as a dry run: whoever does that is let through at once."""
    api.patch(f"/api/v1/nodes/{NODE}?dryRun=All", {"metadata": {"annotations": {_NAME: "x"}}})
    return held.stands.is_set()


def _handler(held: Gate) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            answer = held.admit(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    return Handler


def _configuration(port: int, ca_file: Path, user: str, resource: str) -> dict[str, object]:
    webhook = {
        "name": "gate.hami-node.e2e",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "timeoutSeconds": 30,
        "clientConfig": {
            "url": f"https://127.0.0.1:{port}/",
            "caBundle": base64.b64encode(ca_file.read_bytes()).decode(),
        },
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["UPDATE"],
                "resources": ["nodes", "pods"],
            }
        ],
        "matchConditions": [
            {
                "name": "held",
                "expression": "has(request.dryRun) && request.dryRun || "
                f"request.userInfo.username == '{user}' && "
                f"request.resource.resource == '{resource}'",
            }
        ],
    }
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": _NAME},
        "webhooks": [webhook],
    }
