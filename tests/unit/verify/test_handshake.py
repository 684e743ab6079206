"""Who may read no Secret is still shown the certificate, and judges it as the API server does."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from hami_node.extender.http.certify import Pair, Subject, issue, new_authority
from hami_node.verify.checks.handshake import shake_hands

NOW_S = 1_800_000_000.0
DAY_S = 86400.0


@contextmanager
def shown(pair: Pair, folder: Path) -> Iterator[int]:
    """A server that shows this certificate; its port."""
    (folder / "crt").write_bytes(pair.certificate)
    (folder / "key").write_bytes(pair.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "crt", folder / "key")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                connection, _ = listener.accept()
                with connection, context.wrap_socket(connection, server_side=True):
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def now_s() -> float:
    from hami_node.clock import SystemClock

    return SystemClock().now()


def test_certificate_that_names_the_host_is_believed(tmp_path: Path) -> None:
    authority = new_authority(now_s(), 10)
    pair = issue(authority, Subject(names=("localhost",)), now_s(), 5)
    with shown(pair, tmp_path) as port:
        bundle = "# autorité de Zürich\n" + authority.certificate.decode()
        done = shake_hands("localhost", port, bundle, 5)
    assert (done.problem, done.unreached) == ("", "")


@pytest.mark.parametrize(
    ("names", "age_days", "is_other", "words"),
    [
        (("other.svc",), 0, False, "Hostname mismatch"),
        (("localhost",), 9, False, "certificate has expired"),
        (("localhost",), 0, True, "certificate verify failed"),
    ],
)
def test_certificate_that_is_not_believed_is_explained(
    names: tuple[str, ...], age_days: int, is_other: bool, words: str, tmp_path: Path
) -> None:
    begun_s = now_s() - age_days * DAY_S
    authority, other = new_authority(begun_s, 100), new_authority(begun_s, 100)
    pair = issue(authority, Subject(names=names), begun_s, 5)
    trusted = (other if is_other else authority).certificate.decode()
    with shown(pair, tmp_path) as port:
        done = shake_hands("localhost", port, trusted, 5)
    assert words in done.problem or (is_other and done.problem)
    assert done.unreached == ""


def test_host_that_does_not_exist_here_is_no_verdict() -> None:
    authority = new_authority(NOW_S, 10).certificate.decode()
    done = shake_hands("hami-node-webhook.hami-system.svc.invalid", 443, authority, 5)
    assert done.problem == ""
    assert "can't be reached from here" in done.unreached


def test_silent_server_is_given_up() -> None:
    authority = new_authority(NOW_S, 10).certificate.decode()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = shake_hands("localhost", listener.getsockname()[1], authority, 0.2)
    assert (done.problem, bool(done.unreached)) == ("", True)


@pytest.mark.parametrize(
    "bundle", ["", "hello", "-----BEGIN CERTIFICATE-----\n", "\ufffd\ufffd", "a\0b"]
)
def test_unreadable_bundle_is_wrong(bundle: str) -> None:
    assert "caBundle" in shake_hands("localhost", 1, bundle, 1).problem
