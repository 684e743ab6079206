"""Whether the certificates are there, valid, and believed by those who are shown them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

from hami_node.cluster.objects import Secret, ServiceRef, Webhook, WebhookConfiguration
from hami_node.cluster.reading import Gap
from hami_node.verify.checks.handshake import shake_hands
from hami_node.verify.checks.leading import SchedulerConfig, scheduler_config
from hami_node.verify.checks.subject import Subject, gap_of
from hami_node.verify.checks.webhook import PATH, bundle_of, our_webhooks
from hami_node.verify.findings import Finding, ok, unknown, warning, words, wrong
from hami_node.verify.installation import Part, Runs

_CHECK: Final = "certificate"
_RENEW: Final = "run hami-node certify again: it renews what is not right (docs/install.md)"
_CERTIFICATE: Final = "tls.crt"
_KEY: Final = "tls.key"
_TRUSTED: Final = "ca.crt"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """A certificate, in which Secret it is, and what is beside it."""

    secret: str
    pem: Mapping[str, bytes]


def check_certificates(subject: Subject) -> Iterator[Finding]:
    """The extender's certificate, and the one that kube-scheduler shows it."""
    servers = [part for part in subject.installed.running(Runs.EXTENDER) if part.flag("cert-file")]
    if not servers:
        return
    found = subject.reader.every(PATH, WebhookConfiguration)
    hooks = tuple(
        (webhook, service) for _, webhook, service in our_webhooks(found.items, subject.namespace)
    )
    for part in servers:
        name, _ = part.volume_of(part.flag("cert-file"))
        server = _read(subject, name)
        if isinstance(server, Gap):
            yield from _without_secrets(subject, server, hooks, name)
        elif find_spec("cryptography") is None:
            hint = "pip install '.[extender]' in a checkout of hami-node, or use its image"
            yield unknown(_CHECK, f"the Python package cryptography is missing: {hint}")
        else:
            yield from _server(subject, server, hooks)
            yield from _clients(subject, part, server)


def _read(subject: Subject, name: str) -> _Shown | Gap:
    if not name:
        return Gap(why="the certificate is in no Secret")
    found = subject.reader.one(subject.core("secrets", name), Secret)
    if isinstance(found, Gap):
        return found
    return _Shown(secret=name, pem=dict(_decoded(found.data or {})))


def _decoded(data: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    for key, text in data.items():
        try:
            yield key, base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            continue


def _server(
    subject: Subject, server: _Shown, hooks: Sequence[tuple[Webhook, ServiceRef]]
) -> Iterator[Finding]:
    """What the API server and kube-scheduler are shown."""
    hosts = {f"{service.name}.{subject.namespace}.svc" for _, service in hooks}
    hosts |= set(_called_by_schedulers(subject))
    trusted = [("caBundle of the webhook", bundle_of(webhook)) for webhook, _ in hooks]
    trusted.append((f"{_TRUSTED} of {server.secret}", server.pem.get(_TRUSTED, b"")))
    problems = [
        f"{why} (by the {whose})"
        for whose, authorities in trusted
        if authorities and (why := _why_unusable(subject, server, authorities, tuple(hosts)))
    ]
    yield from _judged(subject, server, problems[:1])


def _called_by_schedulers(subject: Subject) -> Iterator[str]:
    for part in subject.installed.running(Runs.SCHEDULER):
        config = scheduler_config(subject, part)
        if isinstance(config, SchedulerConfig):
            for one in config.extenders or ():
                host = urlsplit(one.url_prefix).hostname
                if host and host.endswith(f".{subject.namespace}.svc"):
                    yield host


def _clients(subject: Subject, part: Part, server: _Shown) -> Iterator[Finding]:
    """What kube-scheduler shows the extender, and whom it believes itself."""
    name = part.flag("client-name")
    if not part.flag("client-ca-file") or not name:
        return
    for scheduler in subject.installed.running(Runs.SCHEDULER):
        names = [volume.secret for volume in scheduler.workload.pod.volumes or () if volume.secret]
        for volume in names:
            client = _read(subject, volume.secret_name)
            if isinstance(client, Gap):
                yield _unread(subject, client, volume.secret_name)
                continue
            authorities = server.pem.get(_TRUSTED, b"")
            why = _why_unusable(subject, client, authorities, (name,), is_client=True)
            yield from _judged(subject, client, [why] if why else [])


def _judged(subject: Subject, shown: _Shown, problems: Sequence[str]) -> Iterator[Finding]:
    from hami_node.extender.http.certify import end_of, why_soon

    for why in problems:
        yield wrong(_CHECK, f"{shown.secret}: {words(why)}", _RENEW)
    if problems:
        return
    pem = shown.pem[_CERTIFICATE]
    if soon := why_soon(pem, subject.now_s):
        yield warning(_CHECK, f"{shown.secret}: {soon}", _RENEW)
    else:
        yield ok(_CHECK, f"{shown.secret} is valid until {end_of(pem):%Y-%m-%d}")


def _why_unusable(
    subject: Subject,
    shown: _Shown,
    authorities: bytes,
    names: tuple[str, ...],
    *,
    is_client: bool = False,
) -> str:
    from hami_node.extender.http.certify import Pair, why_unusable
    from hami_node.extender.http.certify import Subject as Certified

    if not shown.pem.get(_CERTIFICATE) or not shown.pem.get(_KEY):
        return "it holds no certificate yet"
    pair = Pair(certificate=shown.pem[_CERTIFICATE], key=shown.pem[_KEY])
    certified = Certified(names=names, is_client=is_client)
    return why_unusable(pair, authorities, certified, subject.now_s)


def _unread(subject: Subject, gap: Gap, name: str) -> Finding:
    if not gap.is_absent:
        return gap_of(_CHECK, gap)
    return wrong(
        _CHECK,
        f"the Secret {name} does not exist: pods that mount it do not start",
        f"kubectl -n {subject.namespace} get jobs,pods -l app=hami-node-certificate",
    )


def _without_secrets(
    subject: Subject, gap: Gap, hooks: Sequence[tuple[Webhook, ServiceRef]], name: str
) -> Iterator[Finding]:
    """Who may read no Secret may still be shown the certificate, inside the cluster."""
    if gap.is_absent:
        yield _unread(subject, gap, name)
        return
    for webhook, service in hooks:
        host = f"{service.name}.{subject.namespace}.svc"
        authorities = bundle_of(webhook).decode("utf-8", "replace")
        done = shake_hands(host, service.port, authorities, subject.reader.left_s())
        if done.unreached:
            yield unknown(_CHECK, f"{gap.why}, and {words(done.unreached)}")
        elif done.problem:
            yield wrong(_CHECK, f"{host} is not believed: {words(done.problem)}", _RENEW)
        else:
            yield ok(_CHECK, f"{host} shows a certificate that the webhook's caBundle trusts")
    if not hooks:
        yield gap_of(_CHECK, gap)
