"""Where the page is served, and under which names browsers may ask for it.

A browser sends the name that the user asked for. A page of somebody else can give its own name the
address 127.0.0.1 and read from here as if it were ours (DNS rebinding); only the name tells.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

from hami_node.errors import ConfigError

DEFAULT: Final = "127.0.0.1:8450"
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
"""Nobody can give these names another meaning for a browser."""
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?|[0-9a-f:.]+", re.ASCII)
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]\s/@]+)(:[0-9]{1,5})?", re.ASCII)


def check_address(bind: str, allowed: Iterable[str]) -> None:
    """Refuse an address that others can reach, unless it was said under which name.

    Raises:
        ConfigError: `--bind` or `--allowed-host` is wrong; with the cure.
    """
    allowed = tuple(allowed)
    host, colon, port = bind.rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port) <= 65535
    if not colon or not is_port:
        raise ConfigError("flags", "--bind", bind, f"use HOST:PORT or :PORT, such as {DEFAULT}")
    for name in allowed:
        if not _NAME.fullmatch(name.lower()):
            hint = "use a name as it stands in the browser's address, without scheme and port"
            raise ConfigError("flags", "--allowed-host", name, hint)
    if not allowed and not _is_loopback(host.strip("[]")):
        hint = (
            "others can reach this address, and the page asks nobody who they are: put an ingress "
            "that authenticates in front of it and name it with --allowed-host NAME, or use "
            f"--bind {DEFAULT} and kubectl port-forward or ssh -L"
        )
        raise ConfigError("flags", "--bind", bind, hint)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class AllowedHosts:
    """The names under which browsers may ask, whatever the port: a port may be forwarded."""

    def __init__(self, allowed: Iterable[str]) -> None:
        """These, and the loopback names."""
        self._names = LOOPBACK | {name.lower().rstrip(".") for name in allowed}

    def has(self, host: str) -> bool:
        """True for a Host header, or the end of an Origin, that names one of them."""
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        return found[1].strip("[]").lower().rstrip(".") in self._names
