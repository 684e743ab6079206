"""A TLS handshake with the webhook: what can be seen of a certificate without reading Secrets."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from typing import Final

_LONGEST_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """How a handshake ended.

    Attributes:
        problem: what is wrong with the certificate; "" where it is believed.
        unreached: why nobody could be asked; "" where somebody answered.
    """

    problem: str = ""
    unreached: str = ""


def shake_hands(host: str, port: int, authorities: str, left_s: float) -> Handshake:
    """Connect as the API server does: the certificate has to name the host, and be trusted."""
    # comments may be in any language
    certificates = authorities.encode("ascii", "ignore").decode().strip()
    if not certificates:  # else the public authorities of this machine would be trusted
        return Handshake(problem="caBundle is empty")
    try:
        context = ssl.create_default_context(cadata=certificates)
    except ssl.SSLError as error:
        return Handshake(problem=f"caBundle can't be read ({error.reason or error})")
    timeout_s = min(left_s, _LONGEST_S)
    try:
        with (
            socket.create_connection((host, port), timeout=timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return Handshake()
    except ssl.SSLCertVerificationError as error:
        return Handshake(problem=error.verify_message or str(error))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        return Handshake(unreached=f"{host}:{port} can't be reached from here ({why})")
