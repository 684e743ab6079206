"""What one TLS connection holds of the process's memory."""

from __future__ import annotations

import asyncio
from asyncio.sslproto import SSLProtocol
from inspect import getsource

from hami_node.extender.http.server_limits import ServerLimits
from hami_node.extender.http.serving import BoundedServer


async def _application(_scope: object, _receive: object, _send: object) -> None:
    """Answers nobody."""


def test_tls_connection_takes_a_small_buffer() -> None:
    """A thousand strangers who only shake hands must not cost 256 MiB."""

    async def buffer_bytes() -> int:
        BoundedServer(_application, None, None, ServerLimits())
        return SSLProtocol.max_size

    assert asyncio.run(buffer_bytes()) == 64 << 10
    assert "bytearray(self.max_size)" in getsource(SSLProtocol), (
        "asyncio takes its buffer otherwise"
    )
