"""A list server: answers lists of the API from prepared pages, and patches of single pods.

`python -m tests.bench.fleet.page_server FOLDER PORT`. The real API server needs more memory for
200,000 pods than a small machine has; what is measured is the client. Pages lie in FOLDER as
`RESOURCE-N.json`, each naming the next as its `continue`.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]
VERSION: Final = 1_000_000
"""Of the lists; what is written later has a higher one."""
_WATCH_S: Final = 3600.0


class Pods:
    """Pods that were created after the lists, so that a decision about them can be stored."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pods: dict[str, Json] = {}
        self._version = VERSION

    def put(self, path: str, pod: Json) -> Json:
        """Store a whole pod below its path."""
        with self._lock:
            self._version += 1
            meta = {**pod["metadata"], "resourceVersion": str(self._version)}
            self._pods[path] = {**pod, "metadata": meta}
            return self._pods[path]

    def find(self, path: str) -> Json | None:
        """The pod with this path; None where it is not known."""
        return self._pods.get(path)

    def patch(self, path: str, change: Json) -> Json | None:
        """Merge annotations and labels into a pod; None where it is not known."""
        known = self._pods.get(path)
        if known is None:
            return None
        meta = dict(known["metadata"])
        for part in ("annotations", "labels"):
            merged = {**(meta.get(part) or {}), **(change["metadata"].get(part) or {})}
            meta[part] = {key: value for key, value in merged.items() if value is not None}
        return self.put(path, {**known, "metadata": meta})


def make_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """Listening; `serve_forever` is left to the caller."""
    pods = Pods()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            if "watch" in query:
                self._hang()
                return
            if (pod := pods.find(url.path)) is not None:
                self._answer(200, json.dumps(pod).encode())
                return
            page = folder / f"{url.path.rsplit('/', 1)[1]}-{query.get('continue', '0')}.json"
            if page.exists():
                self._answer(200, page.read_bytes())
            else:
                body: Mapping[str, object] = {"metadata": {"resourceVersion": str(VERSION)}}
                self._answer(200, json.dumps({**body, "items": []}).encode())

        def do_POST(self) -> None:
            body = self._body()
            if self.path.endswith("/pods"):
                stored = pods.put(f"{self.path}/{body['metadata']['name']}", body)
                self._answer(201, json.dumps(stored).encode())
            else:
                self._answer(201, json.dumps(body).encode())

        def do_PATCH(self) -> None:
            found = pods.patch(self.path, self._body())
            if found is None:
                self._answer(404, b'{"kind":"Status","code":404,"message":"not found"}')
            else:
                self._answer(200, json.dumps(found).encode())

        def _hang(self) -> None:
            """A watch on which nothing happens."""
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            threading.Event().wait(_WATCH_S)

        def _body(self) -> Json:
            read: Json = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            return read

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    return server


if __name__ == "__main__":
    make_server(Path(sys.argv[1]), int(sys.argv[2])).serve_forever()
