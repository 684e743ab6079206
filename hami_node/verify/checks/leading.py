"""Whether somebody leads, and whether requests reach the leader and the webhook."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
import yaml

from hami_node.cluster.objects import ConfigMap, EndpointSlice, Lease, Struct
from hami_node.cluster.paths import lease_path
from hami_node.cluster.reading import Gap
from hami_node.config.files import parse_yaml
from hami_node.config.settings import Settings
from hami_node.errors import ConfigError
from hami_node.verify.checks.subject import Subject, gap_of
from hami_node.verify.findings import Finding, ok, several, words, wrong
from hami_node.verify.installation import Part, Runs
from hami_node.wire.times import parse_time

SLICES: Final = "/apis/discovery.k8s.io/v1"
_SKEW_S: Final = 5.0
"""Clocks of two machines differ by this much without anything being wrong."""
_ENDPOINTS: Final = "endpoints"


class _Election(Struct, frozen=True):
    leader_elect: bool = True
    resource_name: str = "kube-scheduler"
    resource_namespace: str = "kube-system"


class _Profile(Struct, frozen=True):
    scheduler_name: str = "default-scheduler"


class _Managed(Struct, frozen=True):
    name: str = ""


class ExtenderEntry(Struct, frozen=True):
    """An extender that kube-scheduler calls."""

    url_prefix: str = ""
    preempt_verb: str = ""
    managed_resources: list[_Managed] | None = None


class SchedulerConfig(Struct, frozen=True):
    """kube-scheduler's configuration."""

    leader_election: _Election = _Election()
    profiles: list[_Profile] | None = None
    extenders: list[ExtenderEntry] | None = None


def check_leading(subject: Subject) -> Iterator[Finding]:
    """The extender's Lease and address, and kube-scheduler's Lease."""
    for part in subject.installed.running(Runs.EXTENDER):
        found = subject.installed.settings.get(part.name)
        if found is None or not found.settings.leader_elect:
            continue
        yield from _extender(subject, part, found.settings)
    for part in subject.installed.running(Runs.SCHEDULER):
        config = scheduler_config(subject, part)
        if isinstance(config, Gap):
            yield gap_of("leader", config)
        elif config is not None and config.leader_election.leader_elect:
            election = config.leader_election
            lease = _held(subject, part, election.resource_namespace, election.resource_name)
            yield lease[0]


def scheduler_config(subject: Subject, part: Part) -> SchedulerConfig | Gap | None:
    """What a kube-scheduler of ours is told; None where it has no file that can be found."""
    path = part.flag("config")
    _, name = part.volume_of(path) if path else ("", "")
    if not name:
        return None
    file = subject.reader.one(subject.core("configmaps", name), ConfigMap)
    if isinstance(file, Gap):
        return file
    text = (file.data or {}).get(path.rpartition("/")[2], "")
    try:
        return msgspec.convert(parse_yaml(text.encode(), f"configmap {name}"), SchedulerConfig)
    except (ConfigError, msgspec.ValidationError, yaml.YAMLError) as error:
        return Gap(why=f"configmap {name} can't be read: {words(str(error))}")


def _held(subject: Subject, part: Part, namespace: str, name: str) -> tuple[Finding, str]:
    """Whether a Lease is held, and by whom."""
    check = "leader"
    lease = subject.reader.one(lease_path(namespace, name), Lease)
    if isinstance(lease, Gap):
        if not lease.is_absent:
            return gap_of(check, lease), ""
        return _nobody(subject, part, f"the Lease {namespace}/{name} does not exist"), ""
    holder = lease.spec.holder_identity or ""
    if not holder:
        return _nobody(subject, part, f"nobody holds the Lease {namespace}/{name}"), ""
    renewed_s = parse_time(lease.spec.renew_time or "")
    age_s = None if renewed_s is None else subject.now_s - renewed_s
    if age_s is None or age_s > (lease.spec.lease_duration_seconds or 0) + _SKEW_S:
        since = "at an unknown time" if age_s is None else f"{age_s:.0f} s ago"
        why = f"{words(holder)} renewed the Lease {namespace}/{name} last {since}"
        return _nobody(subject, part, why), ""
    return ok(check, f"{words(holder)} holds the Lease {namespace}/{name}"), holder


def _nobody(subject: Subject, part: Part, why: str) -> Finding:
    return wrong(
        "leader",
        f"no replica of {part.name} leads: {why}",
        f"kubectl -n {subject.namespace} logs deployment/{part.name}; check that the clocks agree",
    )


def _extender(subject: Subject, part: Part, settings: Settings) -> Iterator[Finding]:
    finding, holder = _held(subject, part, settings.lease_namespace, settings.lease_name)
    yield finding
    if not holder:
        return
    pod = next((pod for pod in part.pods if pod.metadata.name == holder), None)
    if pod is None and part.pods:
        yield wrong(
            "leader",
            f"{words(holder)} leads and is no pod of {part.name}: "
            f"{several(pod.metadata.name for pod in part.pods)}",
            "find out who else uses this Lease, or wait until it is released",
        )
    if not settings.endpoint_slice:
        return
    path = subject.path(SLICES, "endpointslices", settings.endpoint_slice)
    found = subject.reader.one(path, EndpointSlice)
    if isinstance(found, Gap):
        if not found.is_absent:
            yield gap_of(_ENDPOINTS, found)
            return
        yield wrong(
            _ENDPOINTS,
            f"the EndpointSlice {settings.endpoint_slice} does not exist: kube-scheduler can't "
            "reach the leader",
            "apply the manifests of the extender again",
        )
        return
    addresses = [text for one in found.endpoints or () for text in one.addresses or ()]
    if pod is not None and addresses != [pod.status.pod_ip]:
        shown = several(addresses) or "nothing"
        yield wrong(
            _ENDPOINTS,
            f"the EndpointSlice {settings.endpoint_slice} names {shown}, and the leader {holder} "
            f"is {pod.status.pod_ip or 'without an address'}",
            f"kubectl -n {subject.namespace} logs {holder}",
        )
    elif pod is not None:
        yield ok(_ENDPOINTS, f"{settings.endpoint_slice} leads to {holder}")
