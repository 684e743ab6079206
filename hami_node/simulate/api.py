"""What the simulated API server does with a request, without HTTP: objects, patches, faults."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from hami_node.simulate.patches import PatchRefused, json_patch, merge_patch
from hami_node.simulate.store import KINDS, ApiRefusal, Json, ResourceKind, Selects, Store, selector

_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_PREFIXES: Final = tuple(
    f"{'apis' if '/' in version else 'api'}/{version}".split("/")
    for version in sorted({kind.api_version for kind in KINDS.values()})
)
_JSON_PATCH: Final = "application/json-patch+json"
_MERGE_PATCHES: Final = (
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request, and what became of it.

    Attributes:
        verb: the API's: get, list, watch, create, update, patch, delete.
        name: "" for a list.
        content_type: without parameters.
        status: of the response; 0 where none was sent.
    """

    verb: str
    kind: ResourceKind
    namespace: str
    name: str
    subresource: str
    query: Mapping[str, str]
    content_type: str = ""
    user_agent: str = ""
    status: int = 0

    @property
    def resource(self) -> str:
        """`pods`."""
        return self.kind.resource

    def selects(self) -> Selects:
        """The test for the objects of a list or watch. Raises ApiRefusal (400)."""
        query = self.query
        return selector(
            self.namespace, query.get("labelSelector", ""), query.get("fieldSelector", "")
        )


def read_request(method: str, target: str, content_type: str = "", user_agent: str = "") -> Request:
    """Read a request line. Raises ApiRefusal (404) for a path that the server does not serve."""
    url = urlsplit(target)
    query = dict(parse_qsl(url.query, keep_blank_values=True))
    parts = [unquote(part) for part in url.path.strip("/").split("/")]
    prefix = next((known for known in _PREFIXES if parts[: len(known)] == known), [])
    rest = parts[len(prefix) :]
    namespace = ""
    if len(rest) >= 3 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    kind = KINDS.get(rest[0]) if prefix and rest and len(rest) <= 3 else None
    if kind is None or kind.api_version != "/".join(prefix[1:]):
        raise ApiRefusal(404, "NotFound", f"the simulated API server does not serve {url.path}")
    name, subresource = [*rest[1:], "", ""][:2]
    verb = _VERBS.get(method, method.lower())
    if method == "GET":
        is_watch = query.get("watch") in ("true", "1")
        verb = "watch" if is_watch else "get" if name else "list"
    return Request(
        verb=verb,
        kind=kind,
        namespace=namespace,
        name=name,
        subresource=subresource,
        query=query,
        content_type=content_type.partition(";")[0],
        user_agent=user_agent,
    )


def serve(store: Store, request: Request, body: bytes) -> tuple[int, Json]:
    """Serve anything but a watch: HTTP status and body. Raises ApiRefusal."""
    key = (request.resource, request.namespace, request.name)
    if request.verb == "list":
        return 200, _list(store, request)
    if request.verb == "get":
        return 200, store.read(*key)
    if request.verb == "delete":
        return 200, store.delete(*key)
    try:
        given = json.loads(body)
    except ValueError as error:
        raise ApiRefusal(400, "BadRequest", f"the body is no JSON: {error}") from error
    if request.verb == "patch":
        return 200, store.change(*key, lambda old: _patched(old, request.content_type, given))
    new = _object(given)
    if request.verb == "create" and request.subresource == "binding":
        store.change(*key, lambda pod: _bound(pod, new))
        return 201, {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}
    if request.verb == "create":
        return 201, store.create(request.resource, request.namespace, new)
    if request.verb == "update":
        return 200, store.change(*key, lambda _old: new)
    raise ApiRefusal(405, "MethodNotAllowed", f"{request.verb} is not served")


def status_object(refusal: ApiRefusal) -> Json:
    """The body of a response that is an error."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": str(refusal),
        "reason": refusal.reason,
        "code": refusal.status,
    }


def _patched(old: Json, content_type: str, given: Any) -> Json:  # noqa: ANN401 - any JSON value
    try:
        if content_type == _JSON_PATCH:
            if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
                raise ApiRefusal(400, "BadRequest", "a JSON patch is a list of operations")
            return _object(json_patch(old, given))
        if content_type in _MERGE_PATCHES:
            return _object(merge_patch(old, _object(given)))
    except PatchRefused as error:
        words = "the server rejected our request due to an error in our request"
        raise ApiRefusal(422, "Invalid", words) from error
    raise ApiRefusal(415, "UnsupportedMediaType", f"{content_type} is not supported")


def _bound(pod: Json, binding: Json) -> Json:
    """The pod on the binding's node, with the binding's annotations."""
    given, meta, spec = binding.get("metadata") or {}, pod["metadata"], pod.setdefault("spec", {})
    for precondition in ("uid", "resourceVersion"):
        wanted = given.get(precondition)
        if wanted and wanted != meta[precondition]:
            raise ApiRefusal(409, "Conflict", f"{precondition} in precondition: {wanted}")
    if spec.get("nodeName"):
        raise ApiRefusal(409, "Conflict", f'pod is already assigned to "{spec["nodeName"]}"')
    if meta.get("deletionTimestamp"):
        raise ApiRefusal(409, "Conflict", "pod is being deleted, cannot be assigned to a host")
    spec["nodeName"] = (binding.get("target") or {}).get("name", "")
    meta.setdefault("annotations", {}).update(given.get("annotations") or {})
    return pod


def _list(store: Store, request: Request) -> Json:
    """A list; with a limit in pages, but not from the "cache" (resourceVersion 0)."""
    query = request.query
    version, found = store.select(request.resource, request.selects())
    wanted = int(query.get("resourceVersion") or 0)
    if wanted > version:
        words = f"Too large resource version: {wanted}, current: {version}"
        raise ApiRefusal(504, "Timeout", f"Timeout: {words}")
    meta: Json = {"resourceVersion": str(version)}
    limit = int(query.get("limit") or 0)
    if limit and query.get("resourceVersion") != "0":
        if token := query.get("continue", ""):
            last_shown = _key_in(token)
            found = [item for item in found if _key(item) > last_shown]
        if len(found) > limit:
            last = json.dumps(_key(found[limit - 1])).encode()
            meta["continue"] = base64.urlsafe_b64encode(last).decode()
            meta["remainingItemCount"] = len(found) - limit
            found = found[:limit]
    return {
        "kind": f"{request.kind.kind}List",
        "apiVersion": request.kind.api_version,
        "metadata": meta,
        "items": found,
    }


def _key(item: Json) -> list[str]:
    return [item["metadata"].get("namespace", ""), item["metadata"]["name"]]


def _key_in(token: str) -> list[str]:
    try:
        return list(json.loads(base64.urlsafe_b64decode(token)))
    except ValueError as error:
        raise ApiRefusal(400, "BadRequest", "continue token not understood") from error


def _object(given: Any) -> Json:  # noqa: ANN401 - any JSON value
    if not isinstance(given, dict):
        raise ApiRefusal(400, "BadRequest", "the body is no JSON object")
    return given


# -- faults ----------------------------------------------------------------------------------------
class Outcome(StrEnum):
    """A fault other than an HTTP status."""

    RESET = "reset"
    """The connection is reset; nothing was done."""
    RESET_AFTER = "reset-after"
    """The request is served, then the connection is reset: the response is lost."""
    HANG = "hang"
    """No response until the fault is cleared or the server stops."""
    FREEZE = "freeze"
    """A watch that opens and then sends nothing, until cleared; like `hang` for other requests."""


@dataclass(slots=True)
class _Rule:
    verb: str
    resource: str
    outcome: int | Outcome
    times_left: int


@dataclass(slots=True)
class Faults:
    """Planned faults. Thread-safe."""

    latency_s: float = 0.0
    _rules: list[_Rule] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _released: threading.Event = field(default_factory=threading.Event)

    def add(self, verb: str, resource: str, outcome: int | str, times: int) -> None:
        """Make the next `times` requests of this verb and resource (`*`: any) end like this."""
        end = Outcome(outcome) if isinstance(outcome, str) else outcome
        with self._lock:
            if self._released.is_set():
                self._released = threading.Event()
            self._rules.append(_Rule(verb, resource, end, times))

    def take(self, verb: str, resource: str) -> int | Outcome | None:
        """The fault for this request, which uses it up; None: serve it."""
        with self._lock:
            for rule in self._rules:
                is_meant = rule.verb in ("*", verb) and rule.resource in ("*", resource)
                if is_meant and rule.times_left > 0:
                    rule.times_left -= 1
                    return rule.outcome
        return None

    def clear(self) -> None:
        """Remove all faults and release hanging requests."""
        with self._lock:
            self._rules.clear()
            self._released.set()
        self.latency_s = 0.0

    def hang(self, is_stopped: Callable[[], bool]) -> None:
        """Wait until cleared or stopped."""
        released = self._released
        while not released.wait(0.05) and not is_stopped():
            pass
