"""What every request must be, and what every response says to the browser."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hami_node.view.http.addresses import AllowedHosts

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-embedder-policy": "require-corp",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
"""Sent with every response."""
HEALTH: Final = "/healthz"
"""Asked by kubelet, by address: it tells nothing."""
_FROM_HERE: Final = ("same-origin", "none", "")
"""What Sec-Fetch-Site is for the page itself, for an address that was typed, and from curl."""


class Guard:
    """An ASGI application around another. Requests that fail here reach nothing behind it."""

    def __init__(self, app: ASGIApp, hosts: AllowedHosts) -> None:
        """Let requests for these hosts through to `app`."""
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        own = [(name.encode(), text.encode()) for name, text in HEADERS.items()]

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *own]
            await send(message)

        status, why = self._why_not(scope)
        if status:
            await _refuse(status, why, send_guarded)
        else:
            await self._app(scope, receive, send_guarded)

    def _why_not(self, scope: Scope) -> tuple[int, str]:
        """The status and the reason of a refusal; 0 for none."""
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            if name == b"host" and "host" in headers:
                return 400, "the request has two Host headers"
            headers[name.decode("latin-1")] = value.decode("latin-1")
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "this page only reads: use GET"
        if scope["path"] == HEALTH:
            return 0, ""
        if not self._hosts.has(headers.get("host", "")):
            return 421, "this page is not served under that name; allow it with --allowed-host NAME"
        origin = headers.get("origin")
        if origin is not None and not self._hosts.has(origin.partition("://")[2]):
            return 403, "requests of other sites are not answered"
        is_page = scope["path"] == "/" and headers.get("sec-fetch-dest", "") in ("", "document")
        if not is_page and headers.get("sec-fetch-site", "") not in _FROM_HERE:
            return 403, "requests of other sites are not answered"
        return 0, ""


async def _refuse(status: int, why: str, send: Any) -> None:  # noqa: ANN401 - as Send
    body = json.dumps({"error": why}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if status == 405:
        headers.append((b"allow", b"GET, HEAD"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
