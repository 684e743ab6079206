"""Findings about what exists once in a cluster: schedulers, webhooks, names, releases. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from hami_node.cluster.objects import Object
from hami_node.migrate.found.findings import Finding, caution, problem
from hami_node.migrate.found.nodes import node_findings
from hami_node.migrate.seen.parts import OWN_LABEL, Maker, Part, image_tag
from hami_node.migrate.seen.picture import Picture
from hami_node.migrate.seen.reading import Hook, switch
from hami_node.text import some
from hami_node.vendors.nvidia import names as nvidia_names

_OLDEST_MINOR: Final = 28
_OWN_PREFIX: Final = "hami-node"
_BUSY: Final = ("pending-install", "pending-upgrade", "pending-rollback", "uninstalling")
_SHARED_RESOURCE: Final = "nvidia.com/gpu.shared"


def findings(picture: Picture) -> tuple[Finding, ...]:
    """Everything that is to be known, problems first."""
    found = (*cluster_findings(picture), *node_findings(picture))
    return tuple(sorted(found, key=lambda one: one.level != "problem"))


def cluster_findings(picture: Picture) -> Iterator[Finding]:
    """All that are not about nodes."""
    return chain(
        _schedulers(picture),
        _leases(picture),
        _webhooks(picture),
        _waiting(picture),
        _names(picture),
        _hami(picture),
        _edits(picture),
        _releases(picture),
        _operator(picture),
        _resources(picture),
        _classes(picture),
        _kubernetes(picture),
    )


# -- who schedules ---------------------------------------------------------------------------------


def _schedulers(picture: Picture) -> Iterable[Finding]:
    theirs, ours = picture.hami_scheduler, picture.scheduler
    if theirs is None or ours is None or theirs.name != ours.name:
        return
    both = f"{_shown(theirs.part)} and {_shown(ours.part)}"
    if theirs.is_on and ours.is_on:
        yield problem(
            both,
            f"two schedulers named {ours.name}: each gives out cards that the other has given",
            f"{_scale(theirs.part, 0)}, or ours: {_scale(ours.part, 0)}",
        )
    elif not theirs.is_on and not ours.is_on:
        yield problem(
            both,
            f"nobody schedules pods for {ours.name}: both Deployments have 0 replicas",
            f"{_scale(ours.part, 2)}; or back: {_scale(theirs.part, 1)}",
        )
    elif ours.is_on and not ours.part.workload.ready:
        yield problem(
            _shown(ours.part),
            "no pod of it is Ready, and HAMi's is off: pods with cards wait",
            f"kubectl -n {ours.part.workload.namespace} describe {ours.part.workload.shown}",
        )


def _leases(picture: Picture) -> Iterable[Finding]:
    theirs, ours = picture.hami_scheduler, picture.scheduler
    if theirs is not None and ours is not None and theirs.lease == ours.lease:
        held = next(
            (one.holder for one in picture.listed.leases if one.key == ours.lease),
            "nobody",
        )
        yield problem(
            f"lease {ours.lease}",
            "HAMi's kube-scheduler and ours elect their leader by the same Lease (held by "
            f"{held}): one of them never schedules",
            "install ours in a namespace of its own, or under its present names",
        )


def _waiting(picture: Picture) -> Iterable[Finding]:
    names = {one.name for one in (picture.hami_scheduler, picture.scheduler) if one and one.is_on}
    found = [
        pod.key
        for pod in picture.listed.pods
        if not pod.spec.node_name
        and pod.spec.scheduler_name.startswith("hami")
        and pod.spec.scheduler_name not in names
    ]
    if not found or names:
        return
    where = f"pods {some(found)}"
    if picture.hami is not None:
        yield problem(
            where,
            "they wait for a scheduler that has no replica",
            "finish or undo the step `Scheduler`: `hami-node migrate plan`",
        )
    elif picture.scheduler is not None:
        yield problem(
            where,
            "they wait for our scheduler, which has no replica",
            _scale(picture.scheduler.part, 2),
        )
    elif picture.daemon is not None:
        yield problem(
            where,
            "they wait for a scheduler that is not installed, though our daemon is",
            "install it: scheduler.enabled=true in our chart's values",
        )
    else:
        yield caution(  # somebody's pods came first: nothing is installed, so nothing is broken
            where,
            "they wait for a scheduler that does not run here: neither HAMi nor hami-node is "
            "installed",
            "install hami-node: `hami-node migrate plan`",
        )


# -- who reviews -----------------------------------------------------------------------------------


def _webhooks(picture: Picture) -> Iterable[Finding]:
    theirs, ours = picture.hami_webhook, picture.webhook
    for hook in (theirs, ours):
        if hook is not None and not hook.webhook.is_paused:
            yield from _backend(picture, hook)
    if (
        theirs is not None
        and ours is not None
        and not (theirs.webhook.is_paused or ours.webhook.is_paused)
    ):
        yield caution(
            f"webhooks {theirs.configuration.name}, {ours.configuration.name}",
            "both complete pods with cards, HAMi's first by its name",
            "pause HAMi's in the step `Scheduler`",
        )
    has_any = (theirs is not None and not theirs.webhook.is_paused) or (
        ours is not None and not ours.webhook.is_paused
    )
    is_known = not any(gap.what == "mutatingwebhookconfigurations" for gap in picture.listed.gaps)
    if is_known and not has_any and _someone_schedules(picture):
        yield problem(
            "webhook",
            "none completes pods with cards: the default scheduler places them without a "
            "reservation, and their nodes refuse them",
            "switch ours on (scheduler.admissionWebhook.enabled), or HAMi's again",
        )


def _someone_schedules(picture: Picture) -> bool:
    return any(one is not None and one.is_on for one in (picture.hami_scheduler, picture.scheduler))


def _backend(picture: Picture, hook: Hook) -> Iterable[Finding]:
    where = f"webhook {hook.configuration.name}"
    harm = (
        "new pods with cards are refused"
        if hook.webhook.failure_policy != "Ignore"
        else "new pods with cards pass it, and are placed without a reservation"
    )
    service = hook.webhook.service
    if service and picture.listed.backends.get(service) == 0:
        namespace, _, name = service.partition("/")
        yield problem(
            where,
            f"nothing ready answers behind its Service {service}: {harm}",
            f"kubectl -n {namespace} get endpointslices -l kubernetes.io/service-name={name}",
        )
    if not hook.webhook.client_config.ca_bundle:
        yield problem(
            where,
            f"it has no caBundle, so that the API server trusts no certificate: {harm}",
            "look at the Job that writes it, or at cert-manager",
        )


# -- names -----------------------------------------------------------------------------------------


def _names(picture: Picture) -> Iterable[Finding]:
    """Objects with our names that are not ours: Helm refuses to install over them."""
    workloads = [part.workload for part in (*picture.listed.plugins, *picture.listed.schedulers)]
    seen: list[tuple[str, Object]] = [
        (kind, one) for kind, found in picture.listed.named.items() for one in found
    ]
    seen += [("RuntimeClass", one) for one in picture.listed.classes]
    seen += [(one.kind, one) for one in workloads]
    for kind, one in seen:
        namespace, name, labels = one.namespace, one.name, one.labels
        maker = labels.get("app.kubernetes.io/name") or labels.get("app.kubernetes.io/part-of", "")
        if name.startswith(_OWN_PREFIX) and maker and maker != _OWN_PREFIX:
            yield problem(
                f"{kind.lower()} {namespace}/{name}" if namespace else f"{kind.lower()} {name}",
                f"it has a name of ours, and belongs to {maker}: Helm would not install over it",
                "rename or remove it, or set fullnameOverride",
            )
    old = [
        kind
        for kind, found in picture.listed.named.items()
        for one in found
        if one.key == "hami-system/hami-scheduler" and not one.release
    ]
    if old and picture.hami is None and picture.scheduler is None:
        yield caution(
            f"{old[0].lower()} hami-system/hami-scheduler",
            "left from manifests in which our scheduler had HAMi's name",
            "remove it once the new one runs: docs/migration.md",
        )


# -- HAMi ------------------------------------------------------------------------------------------


def _hami(picture: Picture) -> Iterable[Finding]:
    found = [part for part in picture.listed.plugins if part.maker is Maker.HAMI]
    if len(found) > 1:
        yield caution(
            f"daemonsets {some([part.workload.key for part in found])}",
            "HAMi is installed more than once; the plan is about the first, with the most pods",
            "run the steps for each of them, or remove what is left over",
        )
    if picture.hami is None:
        return
    scheduler = picture.hami_scheduler
    if scheduler is not None and _differ(picture.hami.running, scheduler.part):
        yield caution(
            f"{_shown(picture.hami)}, {_shown(scheduler.part)}",
            "HAMi's plugin and scheduler are of different releases, which do not work together",
            "finish HAMi's own upgrade first",
        )
    if picture.daemon is not None and picture.hami.workload.update != "OnDelete":
        frozen = not _takes_labelled(picture.hami)
        if frozen:
            yield problem(
                _shown(picture.hami),
                "it avoids our nodes, but still rolls: a change restarts all its pods, and HAMi "
                "2.4 then overwrites the library that running pods have mapped",
                f"kubectl -n {picture.hami.workload.namespace} patch "
                f"{picture.hami.workload.shown} --type=merge -p "
                '\'{"spec":{"updateStrategy":{"type":"OnDelete","rollingUpdate":null}}}\'',
            )


def _edits(picture: Picture) -> Iterable[Finding]:
    """What is only in the cluster is lost with HAMi's values, and with HAMi."""
    if picture.hami is None:
        return
    space = picture.hami.workload.namespace
    found = [key for key in picture.listed.edited if key.startswith(f"{space}/")]
    if found:
        yield caution(
            f"configmap {some(found)}",
            "edited by hand in the cluster: HAMi's values don't have that",
            "carry it over to config.deviceConfig or devicePlugin.nodeConfiguration.config",
        )


def _takes_labelled(part: Part) -> bool:
    """Whether the DaemonSet would also run where our label is."""
    pod = part.workload.pod
    return pod.wants("", {**(pod.node_selector or {}), OWN_LABEL: "true"})


def _differ(version: str, part: Part) -> bool:
    """By the images that are HAMi's; "" where a tag is missing."""
    tags = (image_tag(image) for image in part.workload.images if "hami" in image)
    others = {tag.removeprefix("v") for tag in tags if tag}
    return bool(version) and bool(others) and version not in others


def _releases(picture: Picture) -> Iterable[Finding]:
    for one in picture.listed.revisions:
        if one.status in _BUSY:
            yield problem(
                f"helm release {one.namespace}/{one.name}",
                f"revision {one.revision} is {one.status}: an operation of Helm's did not end",
                f"helm -n {one.namespace} history {one.name}",
            )


# -- NVIDIA's software -----------------------------------------------------------------------------


def _operator(picture: Picture) -> Iterable[Finding]:
    policy = picture.listed.policy
    if picture.hami is not None and picture.runs_operator_plugin and picture.nvidia_plugins:
        yield caution(
            "GPU Operator",
            "its device plugin is on, beside HAMi's: only node labels keep them apart",
            "switch it off once no node needs it: devicePlugin.enabled=false",
        )
    if picture.listed.mig_managers and switch(policy, "migManager", "enabled") is not False:
        yield caution(
            f"daemonset {picture.listed.mig_managers[0].key}",
            "MIG manager changes cards by the label nvidia.com/mig.config",
            "leave that label alone on nodes that we serve: docs/mig.md",
        )
    renamed = picture.ours.resource if picture.daemon else picture.theirs.resource
    if picture.has_operator and not renamed.startswith(nvidia_names.RESOURCE_GPU):
        yield caution(
            "GPU Operator's validator",
            f"it waits for a resource named nvidia.com/gpu*; the cards are offered as {renamed}",
            "devicePlugin.enabled=false in the ClusterPolicy takes that check away",
        )
    if switch(policy, "cdi", "nriPluginEnabled"):
        yield caution(
            "GPU Operator in NRI mode",
            "there is no RuntimeClass nvidia: a DaemonSet that names it stays Pending",
            "install with devicePlugin.driver=nri",
        )


def _resources(picture: Picture) -> Iterable[Finding]:
    shared = [one.name for one in picture.nodes if _SHARED_RESOURCE in one.node.allocatable]
    if shared:
        yield caution(
            f"nodes {some(shared)}",
            f"{_SHARED_RESOURCE}: NVIDIA's plugin shares these cards under another name, which we "
            "do not offer",
            "change the pods to nvidia.com/gpu, or set resourceName",
        )
    if picture.daemon is not None and picture.hami is not None:
        theirs, ours = picture.theirs.resource, picture.ours.resource
        if theirs != ours:
            yield problem(
                "resource",
                f"HAMi offers {theirs}, and ours is set to {ours}: pods that run or wait ask for "
                "HAMi's",
                f"set resourceName={theirs}",
            )


def _classes(picture: Picture) -> Iterable[Finding]:
    theirs = picture.hami.release if picture.hami is not None else ""
    for one in picture.listed.classes:
        if theirs and one.release == theirs:
            yield caution(
                f"runtimeclass {one.name}",
                f"it belongs to HAMi's release {theirs}: `helm uninstall` removes it, and no new "
                "pod that names it can start",
                "make it again right after (the plan's last step)",
            )
    wanted = picture.daemon.workload.pod.runtime_class_name if picture.daemon is not None else ""
    known = {one.name for one in picture.listed.classes}
    is_known = not any(gap.what == "runtimeclasses" for gap in picture.listed.gaps)
    if wanted and wanted not in known and is_known:
        yield problem(
            f"runtimeclass {wanted}",
            "our DaemonSet names it, and the cluster does not have it: no pod of ours is made",
            "set devicePlugin.runtimeClassName, or devicePlugin.createRuntimeClass=true",
        )


def _kubernetes(picture: Picture) -> Iterable[Finding]:
    old = [one.name for one in picture.nodes if _is_old(one.node.kubelet_version)]
    if old:
        yield problem(
            f"nodes {some(old)}",
            f"kubelet is older than 1.{_OLDEST_MINOR}, which we need",
            "upgrade Kubernetes first, or leave these nodes with HAMi",
        )


def _is_old(version: str) -> bool:
    major, _, rest = version.removeprefix("v").partition(".")
    minor = rest.partition(".")[0]
    return major == "1" and minor.isdecimal() and int(minor[:4]) < _OLDEST_MINOR


def _shown(part: Part) -> str:
    return f"{part.workload.shown} in {part.workload.namespace}"


def _scale(part: Part, replicas: int) -> str:
    work = part.workload
    return f"kubectl -n {work.namespace} scale {work.shown} --replicas={replicas}"
