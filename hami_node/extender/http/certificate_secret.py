"""Keeps the extender's certificate in a Secret, and its CA in the webhook configuration."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, cast

from hami_node.cluster.calls import JSON_PATCH
from hami_node.cluster.paths import CORE, segment
from hami_node.cluster.watching.frames import read_mapping
from hami_node.errors import NotFound
from hami_node.extender.http.certify import Bundle, end_of, make, why_renew

_WEBHOOKS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_CERTIFICATE, _KEY, _AUTHORITIES = "tls.crt", "tls.key", "ca.crt"
Json = Mapping[str, object]


class Api(Protocol):
    """The only call of the Kubernetes client that is needed here."""

    def request(
        self, method: str, path: str, *, body: object = None, content_type: str | None = None
    ) -> bytes:
        """One request; the response's bytes. Raises KubeError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is certified and where it is stored; with `webhook` "" no webhook is changed."""

    names: tuple[str, ...]
    namespace: str
    secret: str
    webhook: str
    days: int


def certify(api: Api, target: Target, now_s: float, *, is_dry_run: bool = False) -> Iterator[str]:
    """Make or renew the certificate if needed, and update the webhook. Yields a line per step.

    The Secret is written first. Until kubelet has updated the files, the extender serves the old
    certificate; the CA bundle in the webhook trusts both.

    Raises:
        KubeError: the API server refuses or can't be reached; Conflict when the Secret was changed
            meanwhile: run the command again.
    """
    would = "would be " if is_dry_run else ""
    subject = f"secret {target.namespace}/{target.secret}"
    secret = _secret(api, target)
    found = _bundle(secret)
    reason = why_renew(found, target.names, now_s) if found else "there is none"
    if found is not None and not reason:
        bundle = found
        yield f"{subject}: kept, valid until {end_of(bundle):%Y-%m-%d}"
    else:
        trusted = found.authorities if found else b""
        bundle = make(target.names, now_s, target.days, trusted)
        if not is_dry_run:
            _write(api, target, secret, bundle)
        end = f"valid until {end_of(bundle):%Y-%m-%d}"
        yield f"{subject}: {would}{'renewed' if found else 'made'}, {end}: {reason}"
    if target.webhook:
        wanted = base64.b64encode(bundle.authorities).decode()
        yield from _update_webhook(api, target.webhook, wanted, is_dry_run=is_dry_run)


def _secret(api: Api, target: Target) -> Json | None:
    try:
        return read_mapping(api.request("GET", _path(target)))
    except NotFound:
        return None


def _path(target: Target) -> str:
    return f"{CORE}/namespaces/{segment(target.namespace)}/secrets/{segment(target.secret)}"


def _bundle(secret: Json | None) -> Bundle | None:
    """What the Secret holds; None when it holds no certificate or a value is not base64."""
    data = _mapping((secret or {}).get("data"))
    try:
        pem = {key: base64.b64decode(str(value), validate=True) for key, value in data.items()}
        return Bundle(certificate=pem[_CERTIFICATE], key=pem[_KEY], authorities=pem[_AUTHORITIES])
    except (KeyError, binascii.Error):
        return None


def _write(api: Api, target: Target, secret: Json | None, bundle: Bundle) -> None:
    """Create the Secret, or replace the version that was read, so that no other write is lost."""
    parts = {_CERTIFICATE: bundle.certificate, _KEY: bundle.key, _AUTHORITIES: bundle.authorities}
    ours = {key: base64.b64encode(pem).decode() for key, pem in parts.items()}
    if secret is not None:
        body = {**secret, "data": {**_mapping(secret.get("data")), **ours}}
        api.request("PUT", _path(target), body=body)
        return
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"namespace": target.namespace, "name": target.secret},
        "data": ours,
    }
    api.request("POST", _path(target).rpartition("/")[0], body=body)


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
