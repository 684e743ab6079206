"""A pod that asks for one slice: the way of every pod with a card, from the webhook to its end.

It is removed whatever happens; should this process be killed, it ends by itself after five minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from hami_node.clock import Deadline
from hami_node.cluster.objects import Pod, plain
from hami_node.cluster.paths import pod_path
from hami_node.cluster.reading import BoundedApi, Reader
from hami_node.cluster.watching.frames import UNREADABLE
from hami_node.errors import Forbidden, HamiError, KubeError, NotFound
from hami_node.vendors.protocol import VendorProtocol
from hami_node.verify.checks.pods import why_not_ready
from hami_node.verify.checks.subject import Subject
from hami_node.verify.findings import Finding, ok, unknown, words, wrong
from hami_node.verify.installation import Runs, warnings_about
from hami_node.wire.objects import decode_pod

_CHECK: Final = "probe"
_LIFE_S: Final = 300
_POLL_S: Final = 1.0
_REMOVE_S: Final = 20.0
_ASK_S: Final = 5.0
_MEMORY_MIB: Final = 256
_USER: Final = 65532


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOrder:
    """What is to be tried.

    Attributes:
        name: the pod's name, used by nobody else.
        namespace: where it is created; the webhook leaves out the one that we are installed in.
        image: what it runs; "" for our own.
        node: where it has to run; "" for anywhere.
    """

    name: str
    namespace: str
    image: str = ""
    node: str = ""


def probe(
    subject: Subject, order: ProbeOrder, api: BoundedApi, limit: Deadline
) -> Iterator[Finding]:
    """Create the pod, wait until it runs, say what it got, and remove it.

    Args:
        subject: what is installed.
        order: what is to be tried.
        api: the removal has time of its own.
        limit: until when the pod is waited for; its `stop` has the pod removed at once.
    """
    vendor = _vendor_of(subject)
    if vendor is None:
        yield unknown(_CHECK, "no node has registered a card of which a slice could be requested")
        return
    body = _pod_body(subject, order, vendor)
    key = f"{order.namespace}/{order.name}"
    try:
        try:
            api.within(limit).request("POST", pod_path(order.namespace), body=body)
        except KubeError as error:
            yield not_created(key, error)
            return
        yield _waited(order, vendor, api, limit)
    finally:
        left = _remove(order, api, limit)
    if left:
        yield wrong(
            _CHECK,
            f"the pod {key} could not be removed: {words(left)}",
            f"kubectl -n {order.namespace} delete pod {order.name}",
        )


def _vendor_of(subject: Subject) -> VendorProtocol | None:
    """The first vendor with a card from which slices are given."""
    for vendor in subject.vendors:
        for seen in subject.installed.nodes:
            with suppress(HamiError):
                if vendor.registered_on(seen.node):
                    return vendor
    return None


def _pod_body(subject: Subject, order: ProbeOrder, vendor: VendorProtocol) -> Mapping[str, object]:
    daemon = next(iter(subject.installed.running(Runs.DAEMON)), None)
    tolerations = daemon.workload.pod.tolerations if daemon is not None else None
    limits = {vendor.counted[0]: "1"}
    if vendor.memory:
        limits[vendor.memory] = str(-(-_MEMORY_MIB // vendor.memory_factor))
    container: dict[str, object] = {
        "name": "probe",
        "image": order.image or (daemon.container.image if daemon is not None else ""),
        "imagePullPolicy": "IfNotPresent",
        "resources": {"limits": limits},
        "securityContext": {
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    if not order.image:
        container["args"] = ["--version"]
    spec: dict[str, object] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": _LIFE_S,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "tolerations": plain(tolerations or ()),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    }
    if order.node:
        fields = [{"key": "metadata.name", "operator": "In", "values": [order.node]}]
        required = {"nodeSelectorTerms": [{"matchFields": fields}]}
        affinity = {"requiredDuringSchedulingIgnoredDuringExecution": required}
        spec["affinity"] = {"nodeAffinity": affinity}
    metadata = {
        "name": order.name,
        "namespace": order.namespace,
        "labels": {"app": "hami-node-probe"},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def not_created(key: str, error: KubeError) -> Finding:
    """What it means that the pod could not be created."""
    if isinstance(error, Forbidden) and "cannot create resource" in str(error):
        return unknown(_CHECK, f"no right to create {key}")
    if error.is_transient:
        return unknown(_CHECK, words(str(error)), is_outage=True)
    remedy = "read what refused it: the webhook, a policy, a quota or Pod Security"
    return wrong(_CHECK, f"the pod {key} is refused: {words(str(error))}", remedy)


def _waited(order: ProbeOrder, vendor: VendorProtocol, api: BoundedApi, limit: Deadline) -> Finding:
    """How the pod ended, or where it got stuck."""
    path, last, trouble = pod_path(order.namespace, order.name), b"", ""
    bounded = api.within(limit)
    while not limit.stop.is_set():
        try:
            last = bounded.request("GET", path)
            trouble = ""
        except NotFound:
            return wrong(_CHECK, "somebody removed the pod", "find out who removes pods there")
        except KubeError as error:
            trouble = str(error)
        with suppress(*UNREADABLE):
            pod = msgspec.json.decode(last, type=Pod)
            if pod.status.phase in ("Running", "Succeeded"):
                return _given(vendor, pod, last)
            if pod.status.phase == "Failed":
                break
        if limit.left_s() <= 0 or limit.stop.wait(_POLL_S):
            break
    if limit.stop.is_set():
        return unknown(_CHECK, "interrupted")
    if trouble and not last:
        return unknown(_CHECK, words(trouble), is_outage=True)
    return _stuck(order, api, limit, last)


def _given(vendor: VendorProtocol, pod: Pod, raw: bytes) -> Finding:
    """What the container got, by its reservation."""
    held = vendor.held_by(decode_pod(raw))
    grants = [grant for each in held.by_container.values() for grant in each]
    node = pod.spec.node_name
    if not grants:
        return wrong(
            _CHECK,
            f"the pod runs on {node} without a reservation ({held.problem or 'none is written'}), "
            f"placed by {pod.spec.scheduler_name}",
            "look at the webhook and at who serves the resource on this node",
        )
    got = grants[0]
    amount = f"{got.memory_mib} MiB of card {vendor.uuid_of(got)}"
    return ok(_CHECK, f"a pod got {words(amount)} on {node}")


def _stuck(order: ProbeOrder, api: BoundedApi, limit: Deadline, last: bytes) -> Finding:
    """Why it does not run: by its status, and what was reported about it."""
    why = ""
    with suppress(*UNREADABLE):
        why = why_not_ready(msgspec.json.decode(last, type=Pod))
    late = Deadline.after(_ASK_S, limit.monotonic)
    said = warnings_about(Reader(api, late), order.namespace, order.name)
    shown = "; ".join([why, *(text for text in said if text not in why)])
    return wrong(
        _CHECK,
        f"the pod {order.namespace}/{order.name} did not run: {words(shown)}",
        "try a pod of your own with the same request, and ask hami-node inspect pod about it",
    )


def _remove(order: ProbeOrder, api: BoundedApi, limit: Deadline) -> str:
    """Delete the pod, also one whose creation was not answered; why it could not be, else ""."""
    deadline = Deadline.after(_REMOVE_S, limit.monotonic)
    bounded, path = api.within(deadline), pod_path(order.namespace, order.name)
    while True:
        try:
            bounded.request("DELETE", path)
        except NotFound:
            return ""
        except KubeError as error:
            if not error.is_transient or not deadline.pause(_POLL_S):
                return str(error)
        else:
            return ""
