"""The Kubernetes API as much of it as we use: nodes, pods, events, bindings, leases, quotas."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import tenacity

from hami_node import __version__
from hami_node.cluster.connection import (
    JSON_PATCH,
    MERGE_PATCH,
    Call,
    Connection,
    OnRequest,
    Stream,
    Timeouts,
)
from hami_node.cluster.credentials import load_configuration
from hami_node.cluster.frames import read_list, read_mapping
from hami_node.cluster.paths import (
    CORE,
    lease_path,
    node_path,
    pod_path,
    resource_of,
    segment,
)
from hami_node.errors import Conflict, KubeError, WireError
from hami_node.logs import kv
from hami_node.model import Node, Pod
from hami_node.ports import Clock, EventNote, JsonPatch
from hami_node.wire.objects import decode_node, decode_pod

log = logging.getLogger(__name__)

T = TypeVar("T")
Query = tuple[tuple[str, str], ...]
Json = Mapping[str, object]

PAGE_LIMIT: Final = 500
_MESSAGE_BYTES: Final = 1024  # the API server refuses longer messages of Events


class KubeClient:
    """`ports.Kube` over HTTP. Thread-safe. Without `with_retries` every call is tried once."""

    def __init__(
        self,
        connection: Connection,
        *,
        component: str,
        clock: Clock,
        host_name: str = "",
        stop: threading.Event | None = None,
        attempts: int = 1,
    ) -> None:
        """Wrap a connection.

        Args:
            connection: where requests go.
            component: `daemon` or `extender`: stands in Events.
            clock: stamps Events.
            host_name: this node's name, for Events; "" leaves it out.
            stop: ends waits between attempts.
            attempts: how often a transient failure is tried in all.
        """
        self._connection = connection
        self._component, self._host_name, self._clock = component, host_name, clock
        self._stop = stop or threading.Event()
        self._attempts = attempts

    @property
    def host(self) -> str:
        """Where the API server is."""
        return self._connection.host

    def with_retries(self, attempts: int = 3) -> KubeClient:
        """The same client, but transient failures are tried again with growing, jittered waits.

        A request whose answer was lost may have been served: then a repeated patch with a `test`
        or a create ends in Conflict, and the caller has to look.
        """
        return KubeClient(
            self._connection,
            component=self._component,
            host_name=self._host_name,
            clock=self._clock,
            stop=self._stop,
            attempts=attempts,
        )

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    # -- nodes ---------------------------------------------------------------------------------

    def read_node(self, name: str) -> Node:
        """GET one node."""
        return _node(self._send(_call("GET", "get", node_path(name), "nodes", f"nodes/{name}")))

    def list_nodes(self) -> tuple[Node, ...]:
        """LIST all nodes, page by page; an undecodable one is left out."""
        return tuple(_decoded(self._list(f"{CORE}/nodes", "nodes"), decode_node))

    def merge_patch_node(self, name: str, annotations: Mapping[str, str | None]) -> Node:
        """Set (or with None remove) the named annotations of a node and nothing else."""
        body = {"metadata": {"annotations": dict(annotations)}}
        return _node(self._patch(node_path(name), "nodes", f"nodes/{name}", body, MERGE_PATCH))

    def json_patch_node(self, name: str, patch: JsonPatch) -> Node:
        """Apply a JSON patch to a node. Raises Conflict when a `test` fails."""
        body = list(patch)
        return _node(self._patch(node_path(name), "nodes", f"nodes/{name}", body, JSON_PATCH))

    # -- pods ----------------------------------------------------------------------------------

    def read_pod(self, namespace: str, name: str) -> Pod:
        """GET one pod."""
        path, subject = pod_path(namespace, name), f"pods/{namespace}/{name}"
        return _pod(self._send(_call("GET", "get", path, "pods", subject)))

    def list_pods(self, node_name: str | None = None) -> tuple[Pod, ...]:
        """LIST pods, of one node or of all; an undecodable one is left out."""
        query = () if node_name is None else (("fieldSelector", f"spec.nodeName={node_name}"),)
        return tuple(_decoded(self._list(f"{CORE}/pods", "pods", query), decode_pod))

    def merge_patch_pod(
        self, namespace: str, name: str, annotations: Mapping[str, str | None]
    ) -> Pod:
        """Set (or with None remove) the named annotations of a pod and nothing else."""
        body = {"metadata": {"annotations": dict(annotations)}}
        path, subject = pod_path(namespace, name), f"pods/{namespace}/{name}"
        return _pod(self._patch(path, "pods", subject, body, MERGE_PATCH))

    def patch_pod_exactly(
        self,
        pod: Pod,
        annotations: Mapping[str, str | None],
        labels: Mapping[str, str | None] | None = None,
    ) -> Pod:
        """Set (or with None remove) annotations and labels of this very pod in this very version.

        Raises Conflict when the pod was written since, or is another one of that name by now.
        """
        metadata: dict[str, object] = {"uid": pod.uid, "annotations": dict(annotations)}
        if pod.resource_version:
            metadata["resourceVersion"] = pod.resource_version
        if labels:
            metadata["labels"] = dict(labels)
        path, subject = pod_path(pod.namespace, pod.name), f"pods/{pod.key}"
        try:
            return _pod(self._patch(path, "pods", subject, {"metadata": metadata}, MERGE_PATCH))
        except KubeError as error:
            if error.status == 422 and "uid" in str(error):
                raise Conflict(str(error), error.status) from error  # a field that never changes
            raise

    def json_patch_pod(self, namespace: str, name: str, patch: JsonPatch) -> Pod:
        """Apply a JSON patch to a pod. Raises Conflict when a `test` fails."""
        path, subject = pod_path(namespace, name), f"pods/{namespace}/{name}"
        return _pod(self._patch(path, "pods", subject, list(patch), JSON_PATCH))

    def bind_pod(self, pod: Pod, node_name: str, annotations: Mapping[str, str]) -> None:
        """Bind this very pod in this version (if it has one) and annotate it, in one step.

        The API server copies a Binding's annotations onto the pod.

        Raises Conflict when it is bound, another pod, or not in this version.
        """
        which = {"name": pod.name, "uid": pod.uid, "resourceVersion": pod.resource_version}
        metadata = {**which, "namespace": pod.namespace, "annotations": dict(annotations)}
        target = {"apiVersion": "v1", "kind": "Node", "name": node_name}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        path = f"{pod_path(pod.namespace, pod.name)}/binding"
        subject = f"pods/{pod.namespace}/{pod.name}/binding"
        self._send(_call("POST", "create", path, "pods/binding", subject, body=body))

    # -- events --------------------------------------------------------------------------------

    def create_event(self, event: EventNote) -> None:
        """Write an Event; about an object without a namespace it stands in `default`."""
        namespace = event.namespace or "default"
        path = f"{CORE}/namespaces/{segment(namespace)}/events"
        body = self._event_body(event, namespace)
        subject = f"events about {event.kind.lower()} {event.name}"
        self._send(_call("POST", "create", path, "events", subject, body=body))

    def _event_body(self, event: EventNote, namespace: str) -> Json:
        unix_s = self._clock.now()
        stamp = datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        source = {"component": "hami-node"}
        if self._host_name:
            source["host"] = self._host_name
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "namespace": namespace,
                "name": f"{event.name[:200].rstrip('-.')}.{int(unix_s * 1e9):x}",
            },
            "involvedObject": {
                "apiVersion": "v1",
                "kind": event.kind,
                "namespace": event.namespace,
                "name": event.name,
                "uid": event.uid,
            },
            "reason": event.reason,
            "message": _cut(event.message, _MESSAGE_BYTES),
            "type": "Warning" if event.is_warning else "Normal",
            "source": source,
            "reportingComponent": f"hami-node-{self._component}",
            "reportingInstance": self._host_name or "hami-node",
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }

    # -- leases and quotas ---------------------------------------------------------------------

    def read_lease(self, namespace: str, name: str) -> Json:
        """GET one Lease, as plain values."""
        subject = f"leases/{namespace}/{name}"
        call = _call("GET", "get", lease_path(namespace, name), "leases", subject)
        return read_mapping(self._send(call))

    def create_lease(self, namespace: str, lease: Json) -> Json:
        """Create a Lease. Raises Conflict when it is there."""
        path, subject = lease_path(namespace), f"leases in {namespace}"
        return read_mapping(
            self._send(_call("POST", "create", path, "leases", subject, body=lease))
        )

    def update_lease(self, namespace: str, name: str, lease: Json) -> Json:
        """Replace a Lease. Raises Conflict when somebody wrote it since we read it."""
        path, subject = lease_path(namespace, name), f"leases/{namespace}/{name}"
        return read_mapping(self._send(_call("PUT", "update", path, "leases", subject, body=lease)))

    def list_resource_quotas(self) -> tuple[Json, ...]:
        """LIST the quotas of all namespaces, as plain values."""
        pages = self._list(f"{CORE}/resourcequotas", "resourcequotas")
        return tuple(read_mapping(item) for item in pages)

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
        """One request that has no method of its own; the answer's bytes."""
        verb = {"POST": "create", "PUT": "update"}.get(method, method.lower())
        resource = resource_of(path)
        call = _call(method, verb, path, resource, path, query=query, body=body)
        if content_type is not None:
            call = _call(
                method, verb, path, resource, path,
                query=query, body=body, content_type=content_type,
            )  # fmt: skip
        return self._send(call)

    def list_page(self, path: str, resource: str, query: Query) -> bytes:
        """One page of a LIST, undecoded."""
        return self._send(_call("GET", "list", path, resource, resource, query=query))

    @contextmanager
    def watch(self, path: str, resource: str, query: Query, silence_s: float) -> Iterator[Stream]:
        """Open a WATCH; `silence_s` without a byte counts as a dead connection."""
        full: Query = (*query, ("watch", "true"))
        call = _call("GET", "watch", path, resource, resource, query=full)
        with self._connection.stream(call, silence_s) as stream:
            yield stream

    # -- inside --------------------------------------------------------------------------------

    def _patch(
        self, path: str, resource: str, subject: str, body: object, content_type: str
    ) -> bytes:
        call = _call(
            "PATCH", "patch", path, resource, subject, body=body, content_type=content_type
        )
        return self._send(call)

    def _list(self, path: str, resource: str, query: Query = ()) -> Iterator[bytes]:
        """All objects of a list; `resourceVersion=0` takes them from the API server's cache."""
        first: Query = (*query, ("limit", str(PAGE_LIMIT)), ("resourceVersion", "0"))
        page = read_list(self.list_page(path, resource, first))
        yield from page.items
        while page.next_token:
            more: Query = (*query, ("limit", str(PAGE_LIMIT)), ("continue", page.next_token))
            page = read_list(self.list_page(path, resource, more))
            yield from page.items

    def _send(self, call: Call) -> bytes:
        if self._attempts == 1:
            return self._connection.send(call)
        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(self._attempts)
            | tenacity.stop_when_event_set(self._stop),
            wait=_wait_s,
            retry=tenacity.retry_if_exception(_is_transient),
            sleep=tenacity.sleep_using_event(self._stop),
            reraise=True,
        )
        return retrying(self._connection.send, call)


_JITTERED = tenacity.wait_random_exponential(multiplier=0.2, max=5.0)


def _wait_s(state: tenacity.RetryCallState) -> float:
    """Seconds until the next attempt: what the server asked for, else growing and jittered."""
    error = state.outcome.exception() if state.outcome else None
    asked = error.retry_after_s if isinstance(error, KubeError) else None
    return _JITTERED(state) if asked is None else min(asked, 5.0) + _JITTERED(state) / 4


def _cut(text: str, limit_bytes: int) -> str:
    raw = text.encode()
    return (
        text if len(raw) <= limit_bytes else raw[: limit_bytes - 3].decode(errors="ignore") + "..."
    )


def _is_transient(error: BaseException) -> bool:
    return isinstance(error, KubeError) and error.is_transient


def _call(
    method: str,
    verb: str,
    path: str,
    resource: str,
    subject: str,
    **parts: Any,  # noqa: ANN401 - the optional fields of Call
) -> Call:
    return Call(method=method, verb=verb, path=path, resource=resource, subject=subject, **parts)


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
    """Decode each; one that can't be decoded is logged and left out."""
    for raw in raws:
        try:
            one = decode(raw)
        except WireError as error:
            log.warning("object_not_understood", extra=kv(error=str(error)))
        else:
            yield one


def connect(
    kubeconfig: Path | None,
    *,
    component: str,
    clock: Clock,
    host_name: str = "",
    timeouts: Timeouts | None = None,
    on_request: OnRequest | None = None,
    stop: threading.Event | None = None,
) -> KubeClient:
    """A client for the cluster of a kubeconfig, or with None for the one that we run in.

    Raises:
        ConfigError: no usable credentials.
    """
    connection = Connection(
        lambda: load_configuration(kubeconfig),
        user_agent=f"hami-node/{__version__} ({component})",
        timeouts=timeouts,
        on_request=on_request,
        monotonic=clock.monotonic,
    )
    return KubeClient(connection, component=component, clock=clock, host_name=host_name, stop=stop)
