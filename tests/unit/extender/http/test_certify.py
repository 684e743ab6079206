"""The certificate: a TLS client accepts it, and what is wrong with one is found."""

from __future__ import annotations

import socket
import ssl
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from hami_node.extender.http.certify import Bundle, end_of, make, service_names, why_renew
from tests.fakes.clock import RealClock

DAY_S = 86_400
NOW_S = 1_800_000_000.0
NAMES = service_names("hami-node-extender", "hami-system")
GOOD = make(NAMES, NOW_S, 3650)
OTHER = make(NAMES, NOW_S, 3650)


def shaken(tmp_path: Path, bundle: Bundle, authorities: bytes, name: str) -> str:
    """The subject that a TLS client sees that trusts `authorities` and connects to `name`."""
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    certificate.write_bytes(bundle.certificate)
    key.write_bytes(bundle.key)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    client = ssl.create_default_context(cadata=authorities.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            server.wrap_socket(theirs, server_side=True).close()
        except (ssl.SSLError, OSError):
            theirs.close()  # the client did not accept it; the test looks at the client

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with ours, client.wrap_socket(ours, server_hostname=name) as connection:
            found = connection.getpeercert()
    finally:
        thread.join(10)
    assert found is not None
    return str(found["subject"])


@pytest.mark.parametrize("name", NAMES)
def test_a_strict_tls_client_accepts_every_name_of_the_service(tmp_path: Path, name: str) -> None:
    bundle = make(NAMES, RealClock().now(), 3650)
    assert "hami-node-extender" in shaken(tmp_path, bundle, bundle.authorities, name)


def test_a_tls_client_refuses_another_name(tmp_path: Path) -> None:
    bundle = make(NAMES, RealClock().now(), 3650)
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        shaken(tmp_path, bundle, bundle.authorities, "hami-node-extender.other.svc")


def test_a_tls_client_refuses_the_certificate_of_another_authority(tmp_path: Path) -> None:
    now_s = RealClock().now()
    bundle = make(NAMES, now_s, 3650)
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(tmp_path, bundle, make(NAMES, now_s, 3650).authorities, NAMES[0])


def test_a_renewed_bundle_trusts_the_certificate_before_too(tmp_path: Path) -> None:
    now_s = RealClock().now()
    old = make(NAMES, now_s, 3650)
    new = make(NAMES, now_s, 3650, trusted=old.authorities)
    assert shaken(tmp_path, old, new.authorities, NAMES[0])
    assert shaken(tmp_path, new, new.authorities, NAMES[0])
    third = make(NAMES, now_s, 3650, trusted=new.authorities)
    assert third.authorities.count(b"BEGIN CERTIFICATE") == 2, "the list does not grow for ever"


@pytest.mark.parametrize("trusted", [b"", b"rubbish", GOOD.authorities], ids=["no", "bad", "over"])
def test_what_is_no_authority_any_more_is_not_kept(trusted: bytes) -> None:
    new = make(NAMES, NOW_S + 3651 * DAY_S, 10, trusted=trusted)
    assert new.authorities.count(b"BEGIN CERTIFICATE") == 1


def test_the_authority_can_sign_servers_only_and_the_server_nothing() -> None:
    certificate = x509.load_pem_x509_certificate(GOOD.certificate)
    authority = x509.load_pem_x509_certificate(GOOD.authorities)
    basics = [
        item.extensions.get_extension_for_class(x509.BasicConstraints).value
        for item in (certificate, authority)
    ]
    assert [(basic.ca, basic.path_length) for basic in basics] == [(False, None), (True, 0)]
    assert certificate.public_key() != authority.public_key()


@pytest.mark.parametrize(
    ("days_later", "days", "is_renewed"),
    [
        (0, 3650, False),
        (3619, 3650, False),
        (3621, 3650, True),
        (3651, 3650, True),
        (-1, 3650, True),
        (0, 9, False),
        (5, 9, False),
        (7, 9, True),
    ],
    ids=["new", "31-left", "29-left", "over", "early", "short", "short-4-left", "short-2-left"],
)
def test_a_certificate_is_renewed_when_a_month_or_a_third_is_left(
    days_later: int, days: int, is_renewed: bool
) -> None:
    bundle = make(NAMES, NOW_S, days)
    assert bool(why_renew(bundle, NAMES, NOW_S + days_later * DAY_S)) is is_renewed
    assert end_of(bundle).timestamp() == NOW_S + days * DAY_S


@pytest.mark.parametrize(
    ("bundle", "reason"),
    [
        (replace(GOOD, key=OTHER.key), "its key belongs to another certificate"),
        (replace(GOOD, authorities=OTHER.authorities), "no valid authority beside it signed it"),
        (replace(GOOD, certificate=b""), "it can't be read"),
        (replace(GOOD, key=b"no key"), "it can't be read"),
        (replace(GOOD, authorities=b"-----BEGIN CERTIFICATE-----"), "it can't be read"),
        (replace(GOOD, certificate=GOOD.authorities), "it can't be read"),
        (make(NAMES[:2], NOW_S, 3650), "it does not name"),
    ],
    ids=["key", "authority", "empty", "bad-key", "bad-authority", "no-names", "names"],
)
def test_why_renew_says_what_is_wrong(bundle: Bundle, reason: str) -> None:
    assert why_renew(bundle, NAMES, NOW_S).startswith(reason)


def test_an_authority_from_before_first_in_the_list_does_no_harm() -> None:
    mixed = replace(GOOD, authorities=OTHER.authorities + GOOD.authorities)
    assert why_renew(mixed, NAMES, NOW_S) == ""
