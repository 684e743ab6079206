"""The certificate: a TLS client accepts it, and what is wrong with one is found."""

from __future__ import annotations

import socket
import ssl
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from hami_node.extender.http.certify import (
    Authorities,
    Pair,
    Subject,
    authorities_for,
    end_of,
    issue,
    new_authority,
    service_names,
    why_renew,
)
from tests.fakes.clock import RealClock

DAY_S = 86_400
NOW_S = 1_800_000_000.0
NAMES = service_names("hami-node-leader", "hami-system")
SERVER = Subject(names=NAMES)
AUTHORITY, OTHER_AUTHORITY = new_authority(NOW_S, 7300), new_authority(NOW_S, 7300)
TRUSTED = AUTHORITY.certificate
GOOD = issue(AUTHORITY, SERVER, NOW_S, 3650)
OTHER = issue(OTHER_AUTHORITY, SERVER, NOW_S, 3650)


def after(found: Authorities, days: float, life: int = 3650) -> Authorities:
    return authorities_for(found, NOW_S + days * DAY_S, life)


def shaken(tmp_path: Path, bundle: Pair, authorities: bytes, name: str) -> str:
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
    now_s = RealClock().now()
    authority = new_authority(now_s, 7300)
    pair = issue(authority, SERVER, now_s, 3650)
    assert "hami-node-leader" in shaken(tmp_path, pair, authority.certificate, name)


def test_a_tls_client_refuses_another_name(tmp_path: Path) -> None:
    now_s = RealClock().now()
    authority = new_authority(now_s, 7300)
    pair = issue(authority, SERVER, now_s, 3650)
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        shaken(tmp_path, pair, authority.certificate, "hami-node-leader.other.svc")


def test_a_tls_client_refuses_the_certificate_of_another_authority(tmp_path: Path) -> None:
    now_s = RealClock().now()
    pair = issue(new_authority(now_s, 7300), SERVER, now_s, 3650)
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(tmp_path, pair, new_authority(now_s, 7300).certificate, NAMES[0])


def test_the_following_authority_is_trusted_long_before_it_signs() -> None:
    first = authorities_for(None, NOW_S, 3650)
    assert first.following is None
    assert after(first, 1000) == first
    announced = after(first, 3625)
    assert announced.current == first.current
    assert announced.following is not None
    assert announced.following.certificate in announced.trusted(b"", NOW_S)
    second = after(announced, 2 * 3650 - 60)
    assert second.current == announced.following


def test_an_authority_that_signs_no_more_stays_trusted_while_it_is_valid() -> None:
    announced = after(authorities_for(None, NOW_S, 3650), 3625)
    second = after(announced, 5000)
    assert second.current == announced.following
    before = announced.trusted(b"", NOW_S)
    assert announced.current.certificate in second.trusted(before, NOW_S + 5000 * DAY_S)
    assert announced.current.certificate not in second.trusted(before, NOW_S + 7301 * DAY_S)


def test_the_list_of_the_trusted_does_not_grow_for_ever() -> None:
    found, trusted = None, b""
    for years in range(40):
        found = authorities_for(found, NOW_S + years * 365 * DAY_S, 365)
        trusted = found.trusted(trusted, NOW_S + years * 365 * DAY_S)
        assert trusted.count(b"BEGIN CERTIFICATE") <= 4


@pytest.mark.parametrize(
    "found",
    [
        Authorities(current=Pair(certificate=b"rubbish", key=b"rubbish")),
        Authorities(current=replace(AUTHORITY, key=OTHER_AUTHORITY.key)),
        Authorities(current=new_authority(NOW_S - 400 * DAY_S, 365)),
    ],
    ids=["unreadable", "two-keys", "over"],
)
def test_an_authority_that_cannot_sign_is_replaced(found: Authorities) -> None:
    made = authorities_for(found, NOW_S, 3650)
    assert made.current != found.current
    assert issue(made.current, SERVER, NOW_S, 3650)


def test_a_certificate_never_outlives_its_authority() -> None:
    authority = new_authority(NOW_S, 100)
    pair = issue(authority, SERVER, NOW_S, 3650)
    assert end_of(pair.certificate) == end_of(authority.certificate)


def test_the_authority_can_sign_servers_only_and_the_server_nothing() -> None:
    certificate = x509.load_pem_x509_certificate(GOOD.certificate)
    authority = x509.load_pem_x509_certificate(TRUSTED)
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
    pair = issue(AUTHORITY, SERVER, NOW_S, days)
    assert bool(why_renew(pair, TRUSTED, SERVER, NOW_S + days_later * DAY_S)) is is_renewed
    assert end_of(pair.certificate).timestamp() == NOW_S + days * DAY_S


@pytest.mark.parametrize(
    ("pair", "trusted", "reason"),
    [
        (replace(GOOD, key=OTHER.key), TRUSTED, "its key belongs to another certificate"),
        (GOOD, OTHER_AUTHORITY.certificate, "no valid authority beside it signed it"),
        (replace(GOOD, certificate=b""), TRUSTED, "it can't be read"),
        (replace(GOOD, key=b"no key"), TRUSTED, "it can't be read"),
        (GOOD, b"-----BEGIN CERTIFICATE-----", "it can't be read"),
        (replace(GOOD, certificate=TRUSTED), TRUSTED, "it can't be read"),
        (
            issue(AUTHORITY, Subject(names=NAMES[:2]), NOW_S, 3650),
            TRUSTED,
            f"it does not name {NAMES[2]}, {NAMES[3]}",
        ),
    ],
    ids=["key", "authority", "empty", "bad-key", "bad-authority", "no-names", "names"],
)
def test_why_renew_says_what_is_wrong(pair: Pair, trusted: bytes, reason: str) -> None:
    assert why_renew(pair, trusted, SERVER, NOW_S).startswith(reason)


def test_an_authority_from_before_first_in_the_list_does_no_harm() -> None:
    mixed = OTHER_AUTHORITY.certificate + TRUSTED
    assert why_renew(GOOD, mixed, SERVER, NOW_S) == ""
