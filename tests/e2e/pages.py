"""Pages over plain HTTP, read with one client: `httpx.get` reads all certificates at each call."""

from __future__ import annotations

from typing import Final

import httpx

# a connection that is kept would be one to a pod that may be gone
_CLIENT: Final = httpx.Client(timeout=20, limits=httpx.Limits(max_keepalive_connections=0))


def get_page(url: str) -> httpx.Response:
    """The answer, whatever it is.

    Raises:
        httpx.TransportError: nobody answered.
    """
    return _CLIENT.get(url)
