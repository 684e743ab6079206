"""Makes the extender's certificate and checks an existing one. No I/O; randomness for keys only.

Each certificate is signed by a CA of its own, whose key is discarded at once: not even a reader of
every Secret can make a second certificate that the API server would trust.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

RENEW_BEFORE: Final = timedelta(days=30)
_CLOCK_SKEW: Final = timedelta(hours=1)  # a node's clock may be behind ours
_UNREADABLE: Final = (ValueError, TypeError, UnsupportedAlgorithm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A certificate, its key and the authorities to trust, newest first; all PEM."""

    certificate: bytes
    key: bytes
    authorities: bytes


def service_names(service: str, namespace: str) -> tuple[str, ...]:
    """The DNS names of a Service, short to full."""
    inside = f"{service}.{namespace}"
    return (service, inside, f"{inside}.svc", f"{inside}.svc.cluster.local")


def make(names: tuple[str, ...], now_s: float, days: int, trusted: bytes = b"") -> Bundle:
    """A new authority and a server certificate for these DNS names.

    Args:
        names: DNS names; the first is also the common name.
        now_s: seconds since the epoch; valid from an hour before.
        days: how long it is valid.
        trusted: authorities of the previous certificate; the newest of them, if still valid, stays
            trusted, because the old certificate is served until kubelet has updated the files.
    """
    now = datetime.fromtimestamp(now_s, UTC)
    end = now + timedelta(days=days)
    authority_key, server_key = _new_key(), _new_key()
    authority = (
        _begun("hami-node authority", authority_key.public_key(), now, end)
        .issuer_name(_named("hami-node authority"))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(is_authority=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    server = (
        _begun(names[0], server_key.public_key(), now, end)
        .issuer_name(authority.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(is_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(map(x509.DNSName, names)), critical=False)
        .add_extension(signer, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    earlier = [old for old in _certificates(trusted) if old.not_valid_after_utc > now][:1]
    return Bundle(
        certificate=_pem(server),
        key=_private_pem(server_key),
        authorities=b"".join(map(_pem, (authority, *earlier))),
    )


def why_renew(bundle: Bundle, names: tuple[str, ...], now_s: float) -> str:
    """Why a certificate must be renewed, in words; "" when it can stay in use."""
    try:
        certificate = x509.load_pem_x509_certificate(bundle.certificate)
        key = serialization.load_pem_private_key(bundle.key, password=None)
        authorities = x509.load_pem_x509_certificates(bundle.authorities)
        covered = set(
            certificate.extensions.get_extension_for_class(
                x509.SubjectAlternativeName
            ).value.get_values_for_type(x509.DNSName)
        )
    except (*_UNREADABLE, x509.ExtensionNotFound) as e:
        return f"it can't be read ({e})"
    now = datetime.fromtimestamp(now_s, UTC)
    problems = (
        (key.public_key() != certificate.public_key(), "its key belongs to another certificate"),
        (not _is_signed(certificate, authorities, now), "no valid authority beside it signed it"),
        (not covered.issuperset(names), f"it does not name {', '.join(set(names) - covered)}"),
        (certificate.not_valid_before_utc > now, "it is not valid yet"),
        (_is_ending(certificate, now), f"it ends on {certificate.not_valid_after_utc:%Y-%m-%d}"),
    )
    return next((text for is_so, text in problems if is_so), "")


def end_of(bundle: Bundle) -> datetime:
    """When a readable certificate ends."""
    return x509.load_pem_x509_certificate(bundle.certificate).not_valid_after_utc


def _is_ending(certificate: x509.Certificate, now: datetime) -> bool:
    """Less than 30 days are left; of a short one, less than a third."""
    whole = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return certificate.not_valid_after_utc - now < min(RENEW_BEFORE, whole / 3)


def _is_signed(
    certificate: x509.Certificate, authorities: list[x509.Certificate], now: datetime
) -> bool:
    for authority in authorities:
        if authority.not_valid_after_utc <= now:
            continue
        try:
            certificate.verify_directly_issued_by(authority)
        except (*_UNREADABLE, InvalidSignature):
            continue  # an earlier authority; the next may fit
        return True
    return False


def _certificates(pem: bytes) -> Iterator[x509.Certificate]:
    """The certificates of a PEM text; none when it can't be read: there is nothing to keep."""
    try:
        yield from x509.load_pem_x509_certificates(pem)
    except _UNREADABLE:
        return


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _begun(
    common_name: str, key: ec.EllipticCurvePublicKey, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_named(common_name))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
