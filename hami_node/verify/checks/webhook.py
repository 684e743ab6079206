"""Whether pods with cards reach the webhook, and whether its caller will believe it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from typing import Final

from hami_node.cluster.objects import (
    EndpointSlice,
    LabelSelector,
    Object,
    Policy,
    ServiceRef,
    Webhook,
    WebhookConfiguration,
)
from hami_node.cluster.reading import Gap
from hami_node.verify.checks.leading import SLICES
from hami_node.verify.checks.subject import Subject, gap_of
from hami_node.verify.findings import Finding, ok, several, warning, wrong
from hami_node.verify.installation import Runs

ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
PATH: Final = f"{ADMISSION}/mutatingwebhookconfigurations"
_CHECK: Final = "webhook"
_PART_OF: Final = "app.kubernetes.io/part-of"
_OURS: Final = "hami-node"
_PLAIN: Final = {"kubernetes.io/metadata.name": "default"}
"""The labels of a namespace that nobody has labelled."""
_AGAIN: Final = "apply the manifests of the extender again, or helm upgrade"


def check_webhooks(subject: Subject) -> Iterator[Finding]:
    """Our webhook, and others of its name."""
    if not subject.installed.running(Runs.EXTENDER):
        return
    found = subject.reader.every(PATH, WebhookConfiguration)
    if found.gap is not None:
        yield gap_of(_CHECK, found.gap)
        return
    ours = tuple(our_webhooks(found.items, subject.namespace))
    if not ours:
        yield wrong(
            _CHECK,
            f"no MutatingWebhookConfiguration calls namespace {subject.namespace}: pods with cards "
            "go to the default scheduler, and are refused on their node",
            _AGAIN,
        )
    for configuration, webhook, service in ours:
        yield from _ours(subject, configuration, webhook, service)
    yield from _others(subject, found.items, {webhook.name for _, webhook, _ in ours})


def our_webhooks(
    every: Iterable[WebhookConfiguration], namespace: str
) -> Iterator[tuple[WebhookConfiguration, Webhook, ServiceRef]]:
    """The webhooks of ours that call our namespace; HAMi may be installed in the same one."""
    for configuration in every:
        for webhook in configuration.webhooks or ():
            service = webhook.client_config.service
            if service is not None and service.namespace == namespace and is_ours(configuration):
                yield configuration, webhook, service


def is_ours(one: WebhookConfiguration | Policy) -> bool:
    """Whether an object of the cluster belongs to an installation of hami-node."""
    labels = one.labels
    return labels.get(_PART_OF) == _OURS or one.metadata.name.startswith(_OURS)


def bundle_of(webhook: Webhook) -> bytes:
    """The authorities that it is believed by; b"" for none that can be read."""
    try:
        return base64.b64decode(webhook.client_config.ca_bundle, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _ours(
    subject: Subject, configuration: WebhookConfiguration, webhook: Webhook, service: ServiceRef
) -> Iterator[Finding]:
    name = configuration.metadata.name
    problems = [*_service(subject, service), *_reach(subject, name, webhook)]
    if not bundle_of(webhook):
        problems.append(
            wrong(
                _CHECK,
                f"{name} has no caBundle: the API server can't call it",
                f"kubectl -n {subject.namespace} get jobs,pods -l app=hami-node-certificate",
            )
        )
    yield from problems
    if not problems:
        yield ok(_CHECK, f"{name} calls {service.name} for pods with cards")


def _service(subject: Subject, service: ServiceRef) -> Iterator[Finding]:
    """The Service that is called, and somebody behind it."""
    found = subject.reader.one(subject.core("services", service.name), Object)
    if isinstance(found, Gap):
        if found.is_absent:
            what = f"it calls the Service {service.name}, which does not exist"
            yield wrong(_CHECK, what, _AGAIN)
        else:
            yield gap_of(_CHECK, found)
        return
    selector = f"kubernetes.io/service-name={service.name}"
    slices = subject.reader.every(
        subject.path(SLICES, "endpointslices"), EndpointSlice, labels=selector
    )
    if slices.gap is not None:
        yield gap_of(_CHECK, slices.gap)
    elif not any(one.is_ready for each in slices.items for one in each.endpoints or ()):
        yield wrong(
            _CHECK,
            f"nobody is behind the Service {service.name}: pods with cards can't be created",
            f"kubectl -n {subject.namespace} get pods,endpointslices",
        )


def _reach(subject: Subject, name: str, webhook: Webhook) -> Iterator[Finding]:
    """For which pods it is called, and what happens when it is not there."""
    operations = {one for rule in webhook.rules or () for one in rule.operations or ()}
    resources = {one for rule in webhook.rules or () for one in rule.resources or ()}
    if not operations & {"CREATE", "*"} or not resources & {"pods", "*", "*/*"}:
        yield wrong(_CHECK, f"{name} is not called for new pods", _AGAIN)
    if webhook.failure_policy != "Fail":
        yield warning(
            _CHECK,
            f"{name} has failurePolicy {webhook.failure_policy}: while nobody answers, pods with "
            "cards go to the default scheduler, and are refused on their node",
            "set failurePolicy: Fail; other pods are not held up by it",
        )
    selectors: tuple[tuple[LabelSelector | None, dict[str, str], str], ...] = (
        (webhook.namespace_selector, _PLAIN, "namespaces without labels"),
        (webhook.object_selector, {}, "pods without labels"),
    )
    for selector, labels, whom in selectors:
        if not (selector or LabelSelector()).selects(labels):
            yield warning(
                _CHECK,
                f"{name} is not called for {whom}",
                "pods there need schedulerName and all defaults written out",
            )
    yield from _conditions(subject, name, webhook)


def _conditions(subject: Subject, name: str, webhook: Webhook) -> Iterator[Finding]:
    """Conditions that name other resources than the settings have."""
    text = " ".join(one.expression for one in webhook.match_conditions or ())
    if not text:
        return
    resources = {each for vendor in subject.vendors for each in vendor.resources}
    unnamed = [each for each in resources if f"'{each}'" not in text and f'"{each}"' not in text]
    if unnamed:
        yield wrong(
            _CHECK,
            f"the matchConditions of {name} do not name {several(unnamed)}: it is not called for "
            "pods that ask for it",
            "name there what device-config.yaml names",
        )


def _others(
    subject: Subject, every: Iterable[WebhookConfiguration], names: set[str]
) -> Iterator[Finding]:
    """A second scheduler's webhook, which changes the same pods."""
    for configuration in every:
        for webhook in configuration.webhooks or ():
            if webhook.name in names and not is_ours(configuration):
                yield wrong(
                    "collision",
                    f"the webhook {webhook.name} of {configuration.metadata.name} changes the "
                    "same pods as ours",
                    "hami-node migrate check says what belongs to whom, and what to do first",
                )
