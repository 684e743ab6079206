"""Keeps the certificates in Secrets, and the authorities in the webhook configuration."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, cast

from hami_node.cluster.calls import JSON_PATCH
from hami_node.cluster.paths import CORE, segment
from hami_node.cluster.watching.frames import read_mapping
from hami_node.errors import NotFound
from hami_node.extender.http.certify import (
    Authorities,
    Pair,
    Subject,
    authorities_for,
    end_of,
    issue,
    why_renew,
)

_WEBHOOKS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_CERTIFICATE, _KEY, _TRUSTED = "tls.crt", "tls.key", "ca.crt"
_CURRENT, _FOLLOWING = ("tls.crt", "tls.key"), ("next.crt", "next.key")
Json = Mapping[str, object]


class Api(Protocol):
    """The only call of the Kubernetes client that is needed here."""

    def request(
        self, method: str, path: str, *, body: object = None, content_type: str | None = None
    ) -> bytes:
        """One request; the response's bytes. Raises KubeError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSecret:
    """Who is certified, and the Secret for the certificate, its key and the authorities."""

    secret: str
    subject: Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is certified and where it is stored; with `webhook` "" no webhook is changed."""

    namespace: str
    authority_secret: str
    holders: tuple[CertificateSecret, ...]
    webhook: str
    days: int


def certify(api: Api, target: Target, now_s: float, *, is_dry_run: bool = False) -> Iterator[str]:
    """Make or renew the certificates if needed, and update the webhook. Yields a line per step.

    Raises:
        KubeError: the API server refuses or can't be reached; Conflict when a Secret was changed
            meanwhile: run the command again.
    """
    run = _Run(api, target, now_s, is_dry_run=is_dry_run)
    authorities = yield from run.keep_authorities()
    trusted = b""
    for holder in target.holders:
        trusted = yield from run.keep(holder, authorities)
    if target.webhook:
        wanted = base64.b64encode(trusted).decode()
        yield from _update_webhook(api, target.webhook, wanted, is_dry_run=is_dry_run)


class _Run:
    """One run of the command."""

    def __init__(self, api: Api, target: Target, now_s: float, *, is_dry_run: bool) -> None:
        self._api, self._target, self._now_s = api, target, now_s
        self._is_dry_run, self._would = is_dry_run, "would be " if is_dry_run else ""

    def keep_authorities(self) -> Generator[str, None, Authorities]:
        """Who signs; written before anything is signed."""
        name = self._target.authority_secret
        secret = _secret(self._api, self._path(name))
        data = _pem_of(secret)
        current, following = _pair(data, *_CURRENT), _pair(data, *_FOLLOWING)
        found = Authorities(current=current, following=following) if current else None
        authorities = authorities_for(found, self._now_s, self._target.days)
        if authorities == found:
            done = "kept"
        else:
            done = f"{self._would}{'renewed' if found else 'made'}"
            after = authorities.following
            self._write(
                name,
                secret,
                {
                    _CURRENT[0]: authorities.current.certificate,
                    _CURRENT[1]: authorities.current.key,
                    _FOLLOWING[0]: after.certificate if after else b"",
                    _FOLLOWING[1]: after.key if after else b"",
                },
            )
        end = end_of(authorities.current.certificate)
        yield f"{self._subject(name)}: authority {done}, valid until {end:%Y-%m-%d}"
        return authorities

    def keep(
        self, holder: CertificateSecret, authorities: Authorities
    ) -> Generator[str, None, bytes]:
        """Certify one holder; what it trusts from now on."""
        secret = _secret(self._api, self._path(holder.secret))
        data = _pem_of(secret)
        found = _pair(data, _CERTIFICATE, _KEY)
        before = data.get(_TRUSTED, b"")
        trusted = authorities.trusted(before, self._now_s)
        subject, days = holder.subject, self._target.days
        reason = why_renew(found, trusted, subject, self._now_s) if found else "there is none"
        pair = found
        if pair is None or reason:
            pair = issue(authorities.current, subject, self._now_s, days)
        if reason or trusted != before:
            parts = {_CERTIFICATE: pair.certificate, _KEY: pair.key, _TRUSTED: trusted}
            self._write(holder.secret, secret, parts)
        end = f"valid until {end_of(pair.certificate):%Y-%m-%d}"
        if reason:
            done = f"{self._would}{'renewed' if found else 'made'}, {end}: {reason}"
        else:
            done = f"kept, {end}"
        yield f"{self._subject(holder.secret)}: {subject.names[0]} {done}"
        return trusted

    def _subject(self, name: str) -> str:
        return f"secret {self._target.namespace}/{name}"

    def _path(self, name: str) -> str:
        return f"{CORE}/namespaces/{segment(self._target.namespace)}/secrets/{segment(name)}"

    def _write(self, name: str, secret: Json | None, parts: Mapping[str, bytes]) -> None:
        """Create the Secret, or replace the version that was read: no other write is lost."""
        if self._is_dry_run:
            return
        ours = {key: base64.b64encode(pem).decode() for key, pem in parts.items()}
        path = self._path(name)
        if secret is not None:
            body = {**secret, "data": {**_mapping(secret.get("data")), **ours}}
            self._api.request("PUT", path, body=body)
            return
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"namespace": self._target.namespace, "name": name},
            "data": ours,
        }
        self._api.request("POST", path.rpartition("/")[0], body=body)


def _secret(api: Api, path: str) -> Json | None:
    try:
        return read_mapping(api.request("GET", path))
    except NotFound:
        return None


def _pem_of(secret: Json | None) -> dict[str, bytes]:
    """What the Secret holds; nothing where a value is not base64."""
    data = _mapping((secret or {}).get("data"))
    try:
        return {key: base64.b64decode(str(value), validate=True) for key, value in data.items()}
    except binascii.Error:
        return {}


def _pair(data: Mapping[str, bytes], certificate: str, key: str) -> Pair | None:
    if not data.get(certificate) or not data.get(key):
        return None
    return Pair(certificate=data[certificate], key=data[key])


def _update_webhook(api: Api, name: str, wanted: str, *, is_dry_run: bool) -> Iterator[str]:
    """Write the CA bundle into each webhook of the configuration whose bundle differs."""
    path = f"{_WEBHOOKS}/{segment(name)}"
    webhooks = cast("list[object]", read_mapping(api.request("GET", path)).get("webhooks") or [])
    patch: list[Json] = []
    for number, webhook in enumerate(map(_mapping, webhooks)):
        if _mapping(webhook.get("clientConfig")).get("caBundle") == wanted:
            continue
        entry = f"/webhooks/{number}"
        patch += (
            {"op": "test", "path": f"{entry}/name", "value": webhook.get("name")},
            {"op": "add", "path": f"{entry}/clientConfig/caBundle", "value": wanted},
        )
    if patch and not is_dry_run:
        api.request("PATCH", path, body=patch, content_type=JSON_PATCH)
    would = "would be " if is_dry_run else ""
    yield f"webhook {name}: caBundle {f'{would}written' if patch else 'kept'}"


def _mapping(value: object) -> Json:
    return cast("Json", value) if isinstance(value, Mapping) else {}
