"""A list server: answers lists of the API from prepared pages, and takes Events.

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
from typing import Final
from urllib.parse import parse_qs, urlsplit

VERSION: Final = 1_000_000
"""Of the lists."""
_WATCH_S: Final = 3600.0


def make_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """Listening; `serve_forever` is left to the caller."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            if "watch" in query:
                self._hang()
                return
            page = folder / f"{url.path.rsplit('/', 1)[1]}-{query.get('continue', '0')}.json"
            if page.exists():
                self._answer(200, page.read_bytes())
            else:
                body: Mapping[str, object] = {"metadata": {"resourceVersion": str(VERSION)}}
                self._answer(200, json.dumps({**body, "items": []}).encode())

        def do_POST(self) -> None:
            """An Event."""
            self._answer(201, self.rfile.read(int(self.headers["Content-Length"])))

        def _hang(self) -> None:
            """A watch on which nothing happens."""
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            threading.Event().wait(_WATCH_S)

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
