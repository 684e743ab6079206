"""Binds the addresses of the pages, before anything slow is imported and before they are served."""

from __future__ import annotations

import socket
from typing import Final

from hami_node.errors import ConfigError

BACKLOG: Final = 64


def listen(setting: str, address: str) -> socket.socket:
    """Listen on `HOST:PORT` or `:PORT`, for IPv4 and IPv6; port 0 takes any free port.

    Connections wait until somebody serves them. `setting` names the address in an error.

    Raises:
        ConfigError: the address can't be bound.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host and socket.has_dualstack_ipv6():
        host = "::"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((host, int(port)))
        listener.listen(BACKLOG)
    except (OSError, OverflowError) as e:
        listener.close()
        hint = f"choose another address ({e})"
        raise ConfigError("settings", setting, address, hint) from e
    return listener
