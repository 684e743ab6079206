"""The HTTPS server's certificate: reloaded when its files change, kept when the new one is bad.

Kubernetes replaces the files of a Secret by swapping a symbolic link, so content is compared.
"""

from __future__ import annotations

import hashlib
import logging
import ssl
import threading
from pathlib import Path
from typing import Final

from hami_node.errors import ConfigError
from hami_node.logs import kv

log: Final = logging.getLogger(__name__)
MAX_BYTES: Final = 4 * 1024 * 1024


class Certificates:
    """Provides a TLS context whose new connections always get the newest valid pair."""

    def __init__(self, cert_file: Path, key_file: Path) -> None:
        """Read the pair.

        Raises:
            ConfigError: it can't be read, or key and certificate do not belong together.
        """
        self._cert_file, self._key_file = cert_file, key_file
        self._seen = self._digest()
        try:
            self.context: Final = self._load()
        except (OSError, ValueError) as e:
            hint = f"give a PEM certificate and its unencrypted key, {key_file} ({e})"
            raise ConfigError("settings", "cert-file", str(cert_file), hint) from e
        self._newest = self.context
        # The context of a listening socket can't be replaced, and loading a bad pair into it would
        # break it; so each new connection is moved to the newest context during its handshake.
        self.context.sni_callback = self._use_newest

    def run(self, stop: threading.Event, interval_s: float) -> None:
        """Check the files every `interval_s` seconds until stopped."""
        while not stop.wait(interval_s):
            self.refresh()

    def refresh(self) -> None:
        """Load the pair if the content of the files has changed since the last check."""
        now = self._digest()
        if now == self._seen:
            return
        self._seen = now
        where = kv(cert_file=self._cert_file, key_file=self._key_file)
        try:
            self._newest = self._load()
        except (OSError, ValueError) as e:
            hint = "the old pair stays in use; put a matching certificate and key there"
            log.error("certificate_refused", extra=kv(file=self._cert_file, error=e, cure=hint))  # noqa: TRY400 - the trace adds nothing
            return
        log.info("certificate_reloaded", extra=where)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        # A resumed session shows no certificate: a client would keep using the replaced one.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        # Without it OpenSSL would prompt for the password of an encrypted key on the terminal.
        context.load_cert_chain(self._cert_file, self._key_file, password="")
        return context

    def _use_newest(self, connection: ssl.SSLObject, _name: str, _context: ssl.SSLContext) -> None:
        connection.context = self._newest

    def _digest(self) -> tuple[str, str]:
        return _digest(self._cert_file), _digest(self._key_file)


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.sha256(file.read(MAX_BYTES)).hexdigest()
    except OSError as e:
        return f"unreadable: {e.errno}"
