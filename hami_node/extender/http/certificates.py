"""The HTTPS server's certificate: reloaded when its files change, kept when the new one is bad.

Kubernetes replaces the files of a Secret by swapping a symbolic link, so content is compared.
"""

from __future__ import annotations

import logging
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hami_node.config.watch import digest_of
from hami_node.errors import ConfigError
from hami_node.logs import kv

log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """The server's pair, and whose clients it accepts.

    Attributes:
        client_ca_file: the authorities of the only accepted client; None accepts everybody.
        client_name: who that is: a common name, or a DNS name.
    """

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    client_name: str = ""


class Certificates:
    """Provides a TLS context for each new connection: the newest valid one."""

    def __init__(self, files: TlsFiles) -> None:
        """Read the files.

        Raises:
            ConfigError: they can't be read, or key and certificate do not belong together.
        """
        self._files = files
        self._seen = self._digest()
        try:
            self._newest = self._load()
        except (OSError, ValueError) as e:
            hint = f"give a PEM certificate and its unencrypted key, {files.key_file}"
            if files.client_ca_file is not None:
                hint += f", and the authorities of clients, {files.client_ca_file}"
            raise ConfigError("settings", "cert-file", str(files.cert_file), f"{hint} ({e})") from e

    @property
    def newest(self) -> ssl.SSLContext:
        """For the next connection; those that are open keep theirs."""
        return self._newest

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
        file = self._files.cert_file
        try:
            self._newest = self._load()
        except (OSError, ValueError) as e:
            hint = "the old pair stays in use; put a matching certificate and key there"
            log.error("certificate_refused", extra=kv(file=file, error=e, hint=hint))  # noqa: TRY400 - the trace adds nothing
            return
        log.info("certificate_reloaded", extra=kv(file=file))

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        # A resumed session shows no certificate: a client would keep using the replaced one.
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
        context.num_tickets = 0
        files = self._files
        # Without it OpenSSL would prompt for the password of an encrypted key on the terminal.
        context.load_cert_chain(files.cert_file, files.key_file, password="")
        if files.client_ca_file is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(files.client_ca_file)
        return context

    def _digest(self) -> tuple[str, ...]:
        files = self._files
        read = (files.cert_file, files.key_file, files.client_ca_file)
        return tuple(digest_of(path) for path in read if path is not None)
