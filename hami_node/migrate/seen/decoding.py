"""From JSON of the API server to the objects that a migration looks at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from hami_node.migrate.seen.objects import (
    Json,
    LeaseSeen,
    Named,
    NodeChoice,
    NodeSeen,
    PodSeen,
    Term,
    WebhookSeen,
    Workload,
    containers_of,
    inside,
    items,
    labels_of,
    number,
    release_of,
    strings,
    text,
    texts,
    unique,
)
from hami_node.vendors.nvidia import names as nvidia_names
from hami_node.wire import names

_OURS: Final = ("hami.io/", "hami-node.io/")
_BY_HAND: Final = frozenset({"kubectl-edit", "kubectl-patch", "kubectl-replace"})
"""Writers of fields, as the API server notes them."""
_NEVER: Final = "false"
"""The expression of a match condition that keeps a webhook out of every request."""


def workload(kind: str, body: Json) -> Workload:
    """A DaemonSet or a Deployment."""
    pod = ("spec", "template", "spec")
    boxes = tuple(containers_of(body, *pod))
    volumes = items(body, *pod, "volumes")
    words = [word for box in boxes for part in ("command", "args") for word in strings(box, part)]
    owners = items(body, "metadata", "ownerReferences")
    is_set = kind == "DaemonSet"
    status = ("desiredNumberScheduled", "numberReady") if is_set else ("", "readyReplicas")
    return Workload(
        kind=kind,
        namespace=text(body, "metadata", "namespace"),
        name=text(body, "metadata", "name"),
        labels=labels_of(body),
        release=release_of(body),
        owner=text(owners[0], "kind") if owners else "",
        images=unique(text(box, "image") for box in boxes),
        words=tuple(words),
        account=text(body, *pod, "serviceAccountName"),
        runtime_class=text(body, *pod, "runtimeClassName"),
        host_paths=unique(text(volume, "hostPath", "path") for volume in volumes),
        config_maps=unique(text(volume, "configMap", "name") for volume in volumes),
        choice=_choice(body, pod),
        update=text(body, "spec", "updateStrategy", "type"),
        selector=texts(body, "spec", "selector", "matchLabels"),
        wanted=number(body, "status", status[0]) if is_set else _replicas(body),
        ready=number(body, "status", status[1]),
    )


def _replicas(body: Json) -> int:
    return number(body, "spec", "replicas") if inside(body, "spec", "replicas") is not None else 1


def _choice(body: Json, pod: tuple[str, ...]) -> NodeChoice:
    required = (
        *(*pod, "affinity", "nodeAffinity"),
        "requiredDuringSchedulingIgnoredDuringExecution",
    )
    return NodeChoice(
        selector=texts(body, *pod, "nodeSelector"),
        alternatives=tuple(
            tuple(
                Term(
                    key=text(each, "key"),
                    operator=text(each, "operator"),
                    values=strings(each, "values"),
                )
                for each in items(one, "matchExpressions")
            )
            for one in items(body, *required, "nodeSelectorTerms")
        ),
    )


def node(body: Json) -> NodeSeen:
    """A node."""
    notes = texts(body, "metadata", "annotations")
    states = {text(one, "type"): text(one, "status") for one in items(body, "status", "conditions")}
    return NodeSeen(
        name=text(body, "metadata", "name"),
        labels=labels_of(body),
        annotations={key: value for key, value in notes.items() if key.startswith(_OURS)},
        allocatable={
            key: value for key, value in texts(body, "status", "allocatable").items() if "/" in key
        },
        is_ready=states.get("Ready", "True") == "True",
        is_cordoned=inside(body, "spec", "unschedulable") is True,
        kubelet=text(body, "status", "nodeInfo", "kubeletVersion"),
    )


def pod(body: Json) -> PodSeen | None:
    """A pod; None for one that has ended."""
    if text(body, "status", "phase") in ("Succeeded", "Failed"):
        return None
    notes = texts(body, "metadata", "annotations")
    states = {text(one, "type"): text(one, "status") for one in items(body, "status", "conditions")}
    bound = notes.get(names.POD_BIND_TIME, "")
    return PodSeen(
        namespace=text(body, "metadata", "namespace"),
        name=text(body, "metadata", "name"),
        node=text(body, "spec", "nodeName"),
        labels=labels_of(body),
        owner=_controller(body),
        scheduler=text(body, "spec", "schedulerName"),
        phase=notes.get(names.POD_BIND_PHASE, ""),
        bound_s=int(bound) if bound.isdecimal() and len(bound) < 12 else None,
        resources=frozenset(_asked(body)),
        is_reserved=nvidia_names.POD_ALLOCATED in notes,
        is_ready=states.get("Ready") == "True",
        is_going=bool(text(body, "metadata", "deletionTimestamp")),
    )


def _controller(body: Json) -> str:
    for owner in items(body, "metadata", "ownerReferences"):
        if inside(owner, "controller") is True:
            return f"{text(owner, 'kind')}/{text(owner, 'name')}"
    return ""


def _asked(body: Json) -> Iterator[str]:
    for box in containers_of(body, "spec"):
        for part in ("limits", "requests"):
            found = inside(box, "resources", part)
            if isinstance(found, Mapping):
                yield from (key for key in found if "/" in key)


def webhooks(body: Json) -> tuple[WebhookSeen, ...]:
    """The webhooks of a MutatingWebhookConfiguration."""
    return tuple(
        WebhookSeen(
            configuration=text(body, "metadata", "name"),
            name=text(each, "name"),
            position=position,
            labels=labels_of(body),
            release=release_of(body),
            service=_service(each),
            has_authority=bool(text(each, "clientConfig", "caBundle")),
            fails_closed=text(each, "failurePolicy") != "Ignore",
            is_paused=any(
                text(one, "expression").strip() == _NEVER for one in items(each, "matchConditions")
            ),
            is_by_choice=any(
                bool(texts(each, part, "matchLabels"))
                for part in ("namespaceSelector", "objectSelector")
            ),
        )
        for position, each in enumerate(items(body, "webhooks"))
    )


def _service(webhook: Json) -> str:
    name = text(webhook, "clientConfig", "service", "name")
    return f"{text(webhook, 'clientConfig', 'service', 'namespace')}/{name}" if name else ""


def lease(body: Json) -> LeaseSeen:
    """A Lease."""
    return LeaseSeen(
        namespace=text(body, "metadata", "namespace"),
        name=text(body, "metadata", "name"),
        holder=text(body, "spec", "holderIdentity"),
    )


def named(kind: str, body: Json) -> Named:
    """An object of which only the name and the maker matter."""
    return Named(
        kind=kind,
        namespace=text(body, "metadata", "namespace"),
        name=text(body, "metadata", "name"),
        labels=labels_of(body),
        release=release_of(body),
    )


def is_edited(body: Json) -> bool:
    """Whether somebody has changed it in the cluster by hand, as with `kubectl edit`."""
    managers = (text(one, "manager") for one in items(body, "metadata", "managedFields"))
    return any(manager in _BY_HAND for manager in managers)


def ready_endpoints(body: Json) -> int:
    """How many ready addresses an EndpointSlice has."""
    return sum(inside(one, "conditions", "ready") is not False for one in items(body, "endpoints"))
