"""Servers that misbehave in ways that the simulated API server does not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _QuietHandler(BaseHTTPRequestHandler):
    answer: Callable[[BaseHTTPRequestHandler], None]

    def do_GET(self) -> None:
        type(self).answer(self)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


@contextmanager
def _serve(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    handler = type("Handler", (_QuietHandler,), {"answer": staticmethod(answer)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5.0)


@contextmanager
def answering_server(body: bytes) -> Iterator[str]:
    """Answers everything with 200 and this body; its URL."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    with _serve(answer) as url:
        yield url


@contextmanager
def noting_server(body: bytes, asked: list[tuple[str, Message]]) -> Iterator[str]:
    """The same; every path and its headers are added to `asked`."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        asked.append((request.path, request.headers))
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    with _serve(answer) as url:
        yield url


@contextmanager
def dripping_server(*, is_in_headers: bool = False) -> Iterator[str]:
    """Promises a long body, or headers, and sends a byte now and then; its URL."""
    over = threading.Event()

    def answer(request: BaseHTTPRequestHandler) -> None:
        if is_in_headers:
            request.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
        else:
            request.send_response(200)
            request.send_header("Content-Length", "100000")
            request.end_headers()
        try:
            while not over.wait(0.02):
                request.wfile.write(b" ")
        except OSError:
            request.close_connection = True

    with _serve(answer) as url:
        try:
            yield url
        finally:
            over.set()
