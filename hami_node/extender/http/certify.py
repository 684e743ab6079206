"""Makes certificates and the authorities that sign them. No I/O; randomness for keys only.

The next authority is made, and trusted, long before it signs: kube-scheduler reads the authorities
only when it starts, and must not be cut off by a renewal.
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
MOST_EARLIER: Final = 2
"""Authorities that no longer sign but stay trusted, for the certificates they signed."""
_CLOCK_SKEW: Final = timedelta(hours=1)  # a node's clock may be behind ours
_UNREADABLE: Final = (ValueError, TypeError, UnsupportedAlgorithm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorities:
    """Who signs, and who will sign after it; None while that is far away."""

    current: Pair
    following: Pair | None = None

    def trusted(self, before: bytes, now_s: float) -> bytes:
        """What to trust, PEM: both, then authorities of `before` that are still valid."""
        now = _moment(now_s)
        ours = [*_certificates(self.current.certificate)]
        if self.following is not None:
            ours += _certificates(self.following.certificate)
        others = (old for old in _certificates(before) if old not in ours)
        earlier = [old for old in others if old.not_valid_after_utc > now]
        return b"".join(map(_pem, (*ours, *earlier[:MOST_EARLIER])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Whom a certificate names: a server by its DNS names, a client by its only name."""

    names: tuple[str, ...]
    is_client: bool = False


def service_names(service: str, namespace: str) -> tuple[str, ...]:
    """The DNS names of a Service, short to full."""
    inside = f"{service}.{namespace}"
    return (service, inside, f"{inside}.svc", f"{inside}.svc.cluster.local")


def new_authority(now_s: float, days: int) -> Pair:
    """An authority that is valid for `days`, from an hour before."""
    now, key = _moment(now_s), _new_key()
    certificate = (
        _begun("hami-node authority", key.public_key(), now, now + timedelta(days=days))
        .issuer_name(_named("hami-node authority"))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(is_authority=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Pair(certificate=_pem(certificate), key=_private_pem(key))


def authorities_for(found: Authorities | None, now_s: float, days: int) -> Authorities:
    """Who signs certificates of `days` from now on.

    An authority lives twice as long as what it signs. When it can't cover a whole certificate any
    more, the following one signs, which has been trusted since long before that.
    """
    now, life = _moment(now_s), timedelta(days=days)
    current = found.current if found is not None and _can_sign(found.current, now) else None
    following = found.following if found is not None else None
    if following is not None and not _can_sign(following, now):
        following = None
    if following is not None and (current is None or _left(current, now) < life):
        current, following = following, None
    if current is None:
        return Authorities(current=new_authority(now_s, 2 * days))
    if following is None and _left(current, now) < life * 3 / 2:
        following = new_authority(now_s, 3 * days)
    return Authorities(current=current, following=following)


def issue(authority: Pair, subject: Subject, now_s: float, days: int) -> Pair:
    """A certificate that this authority signs; it ends with the authority at the latest."""
    now, key = _moment(now_s), _new_key()
    signer, signing_key = _loaded(authority)
    use = ExtendedKeyUsageOID.CLIENT_AUTH if subject.is_client else ExtendedKeyUsageOID.SERVER_AUTH
    end = min(now + timedelta(days=days), signer.not_valid_after_utc)
    certificate = (
        _begun(subject.names[0], key.public_key(), now, end)
        .issuer_name(signer.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(is_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName(map(x509.DNSName, subject.names)), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()),
            critical=False,
        )
        .sign(signing_key, hashes.SHA256())
    )
    return Pair(certificate=_pem(certificate), key=_private_pem(key))


def why_renew(pair: Pair, trusted: bytes, subject: Subject, now_s: float) -> str:
    """Why a certificate must be renewed, in words; "" when it can stay in use."""
    if why := why_unusable(pair, trusted, subject, now_s):
        return why
    return why_soon(pair.certificate, now_s)


def why_soon(certificate: bytes, now_s: float) -> str:
    """When a readable certificate ends, in words; "" while that is far away."""
    found = x509.load_pem_x509_certificate(certificate)
    is_ending = _is_ending(found, _moment(now_s))
    return f"it ends on {found.not_valid_after_utc:%Y-%m-%d}" if is_ending else ""


def why_unusable(pair: Pair, trusted: bytes, subject: Subject, now_s: float) -> str:
    """Why nobody believes a certificate now, in words; "" where it is believed."""
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        key = serialization.load_pem_private_key(pair.key, password=None)
        authorities = x509.load_pem_x509_certificates(trusted)
        covered = set(
            certificate.extensions.get_extension_for_class(
                x509.SubjectAlternativeName
            ).value.get_values_for_type(x509.DNSName)
        )
    except (*_UNREADABLE, x509.ExtensionNotFound) as e:
        return f"it can't be read ({e})"
    now, missing = _moment(now_s), [name for name in subject.names if name not in covered]
    problems = (
        (key.public_key() != certificate.public_key(), "its key belongs to another certificate"),
        (not _is_signed(certificate, authorities, now), "no valid authority beside it signed it"),
        (bool(missing), f"it does not name {', '.join(missing)}"),
        (certificate.not_valid_before_utc > now, "it is not valid yet"),
        (
            certificate.not_valid_after_utc <= now,
            f"it has ended on {certificate.not_valid_after_utc:%Y-%m-%d}",
        ),
    )
    return next((text for is_so, text in problems if is_so), "")


def end_of(certificate: bytes) -> datetime:
    """When a readable certificate ends."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def _loaded(authority: Pair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = serialization.load_pem_private_key(authority.key, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("not the kind of key that we make")
    return x509.load_pem_x509_certificate(authority.certificate), key


def _can_sign(authority: Pair, now: datetime) -> bool:
    """Readable, of one key, valid, and not about to end."""
    try:
        certificate, key = _loaded(authority)
    except _UNREADABLE:
        return False
    is_pair = key.public_key() == certificate.public_key()
    return is_pair and certificate.not_valid_before_utc <= now and not _is_ending(certificate, now)


def _left(authority: Pair, now: datetime) -> timedelta:
    return end_of(authority.certificate) - now


def _moment(now_s: float) -> datetime:
    return datetime.fromtimestamp(now_s, UTC)


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
