"""The part of the Kubernetes API that we use: nodes, pods, events, bindings, leases, quotas."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from hami_node import __version__
from hami_node.clock import Deadline
from hami_node.cluster.access import Access
from hami_node.cluster.calls import JSON_PATCH, MERGE_PATCH, PLAIN_JSON, ApiCall, Query
from hami_node.cluster.events import EventOrigin, event_body
from hami_node.cluster.paths import (
    CORE,
    POLICY,
    lease_path,
    node_path,
    pod_path,
    resource_of,
    segment,
)
from hami_node.cluster.transport.connection import Connection, OnRequest, Sender, Timeouts
from hami_node.cluster.transport.credentials import load_configuration
from hami_node.cluster.watching.frames import read_list, read_mapping, read_names
from hami_node.errors import Conflict, KubeError, WireError
from hami_node.logs import kv
from hami_node.model import Node, Pod
from hami_node.ports import Clock, EventNote, Fence, JsonPatch
from hami_node.wire.objects import decode_node, decode_pod

log = logging.getLogger(__name__)

PAGE_BYTES: Final = 4 << 20
"""Of a pod's page; a daemon's has 100 KiB."""
BUDGET_BYTES: Final = 32 << 20
"""Of the list of disruption budgets: users make them, and it comes in one piece."""

_TABLE: Final = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"

T = TypeVar("T")
Json = Mapping[str, object]


class KubeClient:
    """`ports.Kube` over HTTP. Thread-safe. Without `with_retries` every call is tried once."""

    def __init__(
        self,
        sender: Sender,
        *,
        component: str,
        clock: Clock,
        host_name: str = "",
    ) -> None:
        """Send with `sender`.

        Args:
            sender: sends requests, those of watches too.
            component: `daemon` or `extender`, for Events.
            clock: gives the time of Events.
            host_name: this node's name, for Events; "" leaves it out.
        """
        self.sender = sender
        self._component, self._host_name, self._clock = component, host_name, clock

    def with_retries(self, attempts: int = 3) -> KubeClient:
        """The same client, but transient failures are retried with growing, jittered waits.

        A request whose response was lost may have been served: then a repeated patch with a `test`
        or a create ends in Conflict, and the caller has to check.
        """
        return self._by(self.sender.with_attempts(attempts))

    def fenced(self, fence: Fence) -> KubeClient:
        """The same client; `fence` is checked right before every attempt to write."""
        return self._by(self.sender.fenced(fence))

    def within(self, deadline: Deadline) -> KubeClient:
        """The same client, but all its calls end by the deadline; each is tried once."""
        return self._by(self.sender.within(deadline))

    def _by(self, sender: Sender) -> KubeClient:
        return KubeClient(
            sender, component=self._component, host_name=self._host_name, clock=self._clock
        )

    def close(self) -> None:
        """Close the connections."""
        self.sender.close()

    # -- nodes ---------------------------------------------------------------------------------

    def read_node(self, name: str) -> Node:
        """GET a node."""
        return _node(
            self.sender.send(_call("GET", "get", node_path(name), "nodes", f"nodes/{name}"))
        )

    def list_nodes(self) -> tuple[Node, ...]:
        """LIST all nodes, page by page; nodes that can't be decoded are left out."""
        return tuple(_decoded(self.sender.list_items(f"{CORE}/nodes", "nodes"), decode_node))

    def merge_patch_node(self, name: str, annotations: Mapping[str, str | None]) -> Node:
        """Set (or with None remove) the named annotations of a node and nothing else."""
        return self._merge_patch_node(name, {"annotations": dict(annotations)})

    def label_node(self, name: str, labels: Mapping[str, str]) -> Node:
        """Set the named labels of a node and nothing else."""
        return self._merge_patch_node(name, {"labels": dict(labels)})

    def _merge_patch_node(self, name: str, metadata: Mapping[str, object]) -> Node:
        path, body = node_path(name), {"metadata": metadata}
        return _node(self.sender.patch(path, "nodes", f"nodes/{name}", body, MERGE_PATCH))

    def json_patch_node(self, name: str, patch: JsonPatch) -> Node:
        """Apply a JSON patch to a node. Raises Conflict when a `test` fails."""
        body = list(patch)
        return _node(self.sender.patch(node_path(name), "nodes", f"nodes/{name}", body, JSON_PATCH))

    # -- pods ----------------------------------------------------------------------------------

    def read_pod(self, namespace: str, name: str) -> Pod:
        """GET a pod."""
        path, subject = pod_path(namespace, name), f"pods/{namespace}/{name}"
        return _pod(self.sender.send(_call("GET", "get", path, "pods", subject)))

    def list_pods(self, node_name: str | None = None) -> tuple[Pod, ...]:
        """LIST pods, of one node or of all; pods that can't be decoded are left out."""
        query = () if node_name is None else (("fieldSelector", f"spec.nodeName={node_name}"),)
        return tuple(_decoded(self.sender.list_items(f"{CORE}/pods", "pods", query), decode_pod))

    def list_pods_in(self, namespace: str) -> tuple[Pod, ...]:
        """LIST the pods of a namespace; pods that can't be decoded are left out."""
        return tuple(_decoded(self.sender.list_items(pod_path(namespace), "pods"), decode_pod))

    def read_plain_pod(self, namespace: str, name: str) -> Json:
        """GET a pod, as plain values."""
        path, subject = pod_path(namespace, name), f"pods/{namespace}/{name}"
        return read_mapping(self.sender.send(_call("GET", "get", path, "pods", subject)))

    def pods_now(self, node_name: str) -> tuple[Pod, ...]:
        """LIST the pods of a node as they are now, not as a cache of the API server has them.

        Raises:
            KubeError: also when one of them can't be decoded.
        """
        query = (("fieldSelector", f"spec.nodeName={node_name}"),)
        answer = read_list(self.sender.list_page(f"{CORE}/pods", "pods", query))
        return tuple(map(_pod, answer.items))

    def patch_pod_exactly(
        self,
        pod: Pod,
        annotations: Mapping[str, str | None],
        labels: Mapping[str, str | None] | None = None,
    ) -> Pod:
        """Set (or with None remove) annotations and labels of exactly this pod in this version.

        Raises Conflict when the pod was changed since, or was replaced by another of that name.
        """
        metadata: dict[str, object] = {"uid": pod.uid, "annotations": dict(annotations)}
        if pod.resource_version:
            metadata["resourceVersion"] = pod.resource_version
        if labels:
            metadata["labels"] = dict(labels)
        path, subject = pod_path(pod.namespace, pod.name), f"pods/{pod.key}"
        try:
            return _pod(
                self.sender.patch(path, "pods", subject, {"metadata": metadata}, MERGE_PATCH)
            )
        except KubeError as error:
            if error.status == 422 and "uid" in str(error):
                raise Conflict(str(error), error.status) from error  # an immutable field
            raise

    def json_patch_pod(self, namespace: str, name: str, patch: JsonPatch) -> Pod:
        """Apply a JSON patch to a pod. Raises Conflict when a `test` fails."""
        path, subject = pod_path(namespace, name), f"pods/{namespace}/{name}"
        return _pod(self.sender.patch(path, "pods", subject, list(patch), JSON_PATCH))

    def bind_pod(
        self,
        pod: Pod,
        node_name: str,
        annotations: Mapping[str, str],
        within_s: float | None = None,
    ) -> None:
        """Bind exactly this pod in this version (if it has one) and annotate it, in one step.

        The API server copies a Binding's annotations onto the pod. It is told to give up after
        `within_s`, as we do, so that the Binding does not arrive later.

        Raises Conflict when it is already bound, another pod, or not in this version.
        """
        which = {"name": pod.name, "uid": pod.uid, "resourceVersion": pod.resource_version}
        metadata = {**which, "namespace": pod.namespace, "annotations": dict(annotations)}
        target = {"apiVersion": "v1", "kind": "Node", "name": node_name}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        path = f"{pod_path(pod.namespace, pod.name)}/binding"
        subject = f"pods/{pod.namespace}/{pod.name}/binding"
        sender, query = self.sender, dict[str, object]()
        if within_s is not None:
            sender = sender.within(self._clock.deadline(within_s))
            query["query"] = (("timeout", f"{max(int(within_s * 1000), 1)}ms"),)
        sender.send(_call("POST", "create", path, "pods/binding", subject, body=body, **query))

    # -- events --------------------------------------------------------------------------------

    def create_event(self, event: EventNote) -> None:
        """Create an Event; for an object without a namespace, in `default`."""
        namespace = event.namespace or "default"
        path = f"{CORE}/namespaces/{segment(namespace)}/events"
        origin = EventOrigin(component=self._component, host_name=self._host_name)
        body = event_body(event, namespace, origin, self._clock.now())
        subject = f"events about {event.kind.lower()} {event.name}"
        self.sender.send(_call("POST", "create", path, "events", subject, body=body))

    def list_events(self, namespace: str, name: str) -> tuple[Json, ...]:
        """LIST the Events about objects of this name in a namespace, as plain values."""
        path = f"{CORE}/namespaces/{segment(namespace)}/events"
        query = (("fieldSelector", f"involvedObject.name={name}"),)
        return tuple(map(read_mapping, self.sender.list_items(path, "events", query)))

    def read_pod_metrics(self, pod: Pod, port: str, deadline: Deadline) -> bytes:
        """GET /metrics of a pod through the API server's proxy, `PAGE_BYTES` of it at most."""
        path = f"{pod_path(pod.namespace, pod.name)}:{segment(port)}/proxy/metrics"
        parts = {"accept": "*/*", "most_bytes": PAGE_BYTES}
        call = _call("GET", "get", path, "pods/proxy", f"pods/{pod.key}/proxy", **parts)
        return self.sender.within(deadline).send(call)

    # -- leases and quotas ---------------------------------------------------------------------

    def read_lease(self, namespace: str, name: str) -> Json:
        """GET a Lease, as plain values."""
        subject = f"leases/{namespace}/{name}"
        call = _call("GET", "get", lease_path(namespace, name), "leases", subject)
        return read_mapping(self.sender.send(call))

    def create_lease(self, namespace: str, lease: Json) -> Json:
        """Create a Lease. Raises Conflict when it exists."""
        path, subject = lease_path(namespace), f"leases in {namespace}"
        return read_mapping(
            self.sender.send(_call("POST", "create", path, "leases", subject, body=lease))
        )

    def update_lease(self, namespace: str, name: str, lease: Json) -> Json:
        """Replace a Lease. Raises Conflict when it was changed since we read it."""
        path, subject = lease_path(namespace, name), f"leases/{namespace}/{name}"
        return read_mapping(
            self.sender.send(_call("PUT", "update", path, "leases", subject, body=lease))
        )

    def list_resource_quotas(self) -> tuple[Json, ...]:
        """LIST the quotas of all namespaces, as plain values."""
        pages = self.sender.list_items(f"{CORE}/resourcequotas", "resourcequotas")
        return tuple(read_mapping(item) for item in pages)

    def list_limit_ranges(self, namespace: str) -> tuple[Json, ...]:
        """LIST the LimitRanges of a namespace, as plain values."""
        path = f"{CORE}/namespaces/{segment(namespace)}/limitranges"
        return tuple(read_mapping(item) for item in self.sender.list_items(path, "limitranges"))

    def list_disruption_budgets(self) -> tuple[Json, ...]:
        """LIST the PodDisruptionBudgets of all namespaces; more than `BUDGET_BYTES` is an error."""
        path, kind = f"{POLICY}/poddisruptionbudgets", "poddisruptionbudgets"
        pages = self.sender.list_items(path, kind, most_bytes=BUDGET_BYTES)
        return tuple(read_mapping(item) for item in pages)

    def names_of(self, resource: str, namespace: str, most: int) -> tuple[str, ...]:
        """The first names of nodes, namespaces, or of a namespace's pods, and nothing else."""
        path = pod_path(namespace) if resource == "pods" else f"{CORE}/{segment(resource)}"
        query = (("limit", str(most)), ("includeObject", "None"))
        call = _call("GET", "list", path, resource, resource, query=query, accept=_TABLE)
        return read_names(self.sender.send(call))

    # -- everything else -----------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        query: Query = (),
        content_type: str | None = None,
    ) -> bytes:
        """Send a request that has no method of its own; returns the bytes of the response."""
        verb = {"POST": "create", "PUT": "update"}.get(method, method.lower())
        resource = resource_of(path)
        parts = {"query": query, "body": body, "content_type": content_type or PLAIN_JSON}
        return self.sender.send(_call(method, verb, path, resource, path, **parts))


def _call(
    method: str,
    verb: str,
    path: str,
    resource: str,
    subject: str,
    **parts: Any,  # noqa: ANN401 - the optional fields of ApiCall
) -> ApiCall:
    return ApiCall(method=method, verb=verb, path=path, resource=resource, subject=subject, **parts)


def _node(body: bytes) -> Node:
    try:
        return decode_node(body)
    except WireError as error:
        raise KubeError(f"the API server sent no node: {error}") from error


def _pod(body: bytes) -> Pod:
    try:
        return decode_pod(body)
    except WireError as error:
        raise KubeError(f"the API server sent no pod: {error}") from error


def _decoded(raws: Iterator[bytes], decode: Callable[[bytes], T]) -> Iterator[T]:
    """Decode each object; those that can't be decoded are logged and left out."""
    for raw in raws:
        try:
            item = decode(raw)
        except WireError as error:
            log.warning("object_not_understood", extra=kv(error=str(error)))
        else:
            yield item


def connect(
    access: Access | Path | None,
    *,
    component: str,
    clock: Clock,
    host_name: str = "",
    timeouts: Timeouts | None = None,
    on_request: OnRequest | None = None,
    stop: threading.Event | None = None,
) -> KubeClient:
    """A client for the cluster of kubeconfigs, or without any for the cluster that we run in.

    Raises:
        ConfigError: no usable credentials.
    """
    connection = Connection(
        lambda: load_configuration(access),
        user_agent=f"hami-node/{__version__} ({component})",
        timeouts=timeouts,
        on_request=on_request,
        clock=clock,
    )
    sender = Sender(connection, stop=stop)
    return KubeClient(sender, component=component, clock=clock, host_name=host_name)
