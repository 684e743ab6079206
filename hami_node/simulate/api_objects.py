"""What the simulated API server does with objects: a request as data in, a response out."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, Final

from hami_node.simulate.api_routes import Route
from hami_node.simulate.patches import PatchRefused, json_patch, merge_patch
from hami_node.simulate.store import ApiRefusal, Json, Store, selector

_JSON_PATCH: Final = "application/json-patch+json"
_MERGE_PATCHES: Final = (
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRequest:
    """A request for objects. `content_type` has no parameters."""

    method: str
    route: Route
    content_type: str
    body: bytes


def serve(store: Store, request: ObjectRequest) -> tuple[int, Json]:
    """Serve anything but a watch: HTTP status and body. Raises ApiRefusal."""
    route, resource = request.route, request.route.kind.resource
    if route.verb == "list":
        return 200, _list(store, route)
    if route.verb == "get":
        return 200, store.read(resource, route.namespace, route.name)
    if route.verb == "delete":
        return 200, store.delete(resource, route.namespace, route.name)
    given = _parse(request.body)
    if route.verb == "create" and route.subresource == "binding":
        return 201, _bind(store, route, given)
    if route.verb == "create":
        return 201, store.create(resource, route.namespace, _object(given))
    if route.verb == "update":
        new = _object(given)
        return 200, store.change(resource, route.namespace, route.name, lambda _old: new)
    if route.verb == "patch":
        return 200, _patch(store, request, given)
    raise ApiRefusal(405, "MethodNotAllowed", f"{request.method} is not served")


def _patch(store: Store, request: ObjectRequest, given: Any) -> Json:  # noqa: ANN401 - any JSON value
    route, content_type = request.route, request.content_type

    def edit(old: Json) -> Json:
        try:
            if content_type == _JSON_PATCH:
                return _object(json_patch(old, _operations(given)))
            if content_type in _MERGE_PATCHES:
                return _object(merge_patch(old, _object(given)))
        except PatchRefused as error:
            words = "the server rejected our request due to an error in our request"
            raise ApiRefusal(422, "Invalid", words) from error
        raise ApiRefusal(415, "UnsupportedMediaType", f"{content_type} is not supported")

    return store.change(route.kind.resource, route.namespace, route.name, edit)


def _bind(store: Store, route: Route, given: Any) -> Json:  # noqa: ANN401 - any JSON value
    binding = _object(given)
    target = binding.get("target") or {}
    given_meta = binding.get("metadata") or {}
    uid, version = given_meta.get("uid"), given_meta.get("resourceVersion")

    def edit(pod: Json) -> Json:
        if uid and pod["metadata"]["uid"] != uid:
            raise ApiRefusal(409, "Conflict", f"uid in precondition: {uid}")
        if version and pod["metadata"]["resourceVersion"] != version:
            raise ApiRefusal(409, "Conflict", f"resourceVersion in precondition: {version}")
        spec = pod.setdefault("spec", {})
        if spec.get("nodeName"):
            raise ApiRefusal(409, "Conflict", f'pod is already assigned to "{spec["nodeName"]}"')
        if pod["metadata"].get("deletionTimestamp"):
            raise ApiRefusal(409, "Conflict", "pod is being deleted, cannot be assigned to a host")
        spec["nodeName"] = target.get("name", "")
        pod["metadata"].setdefault("annotations", {}).update(given_meta.get("annotations") or {})
        return pod

    store.change("pods", route.namespace, route.name, edit)
    return {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}


def _list(store: Store, route: Route) -> Json:
    """A list; with a limit in pages, but not from the "cache" (resourceVersion 0)."""
    query = route.query
    selects = selector(
        route.namespace, query.get("labelSelector", ""), query.get("fieldSelector", "")
    )
    version, found = store.select(route.kind.resource, selects)
    wanted = int(query.get("resourceVersion") or 0)
    if wanted > version:
        words = f"Too large resource version: {wanted}, current: {version}"
        raise ApiRefusal(504, "Timeout", f"Timeout: {words}")
    meta: Json = {"resourceVersion": str(version)}
    limit = int(query.get("limit") or 0)
    if limit and query.get("resourceVersion") != "0":
        found = _after(found, query.get("continue", ""))
        if len(found) > limit:
            meta["continue"] = _token(found[limit - 1])
            meta["remainingItemCount"] = len(found) - limit
            found = found[:limit]
    return {
        "kind": f"{route.kind.kind}List",
        "apiVersion": route.kind.api_version,
        "metadata": meta,
        "items": found,
    }


def _parse(body: bytes) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(body)
    except ValueError as error:
        raise ApiRefusal(400, "BadRequest", f"the body is no JSON: {error}") from error


def _object(given: Any) -> Json:  # noqa: ANN401 - any JSON value
    if not isinstance(given, dict):
        raise ApiRefusal(400, "BadRequest", "the body is no JSON object")
    return given


def _operations(given: Any) -> list[Json]:  # noqa: ANN401 - any JSON value
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise ApiRefusal(400, "BadRequest", "a JSON patch is a list of operations")
    return given


def _token(last: Json) -> str:
    key = [last["metadata"].get("namespace", ""), last["metadata"]["name"]]
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode()


def _after(found: list[Json], token: str) -> list[Json]:
    if not token:
        return found
    try:
        key = tuple(json.loads(base64.urlsafe_b64decode(token)))
    except ValueError as error:
        raise ApiRefusal(400, "BadRequest", "continue token not understood") from error
    return [
        item
        for item in found
        if (item["metadata"].get("namespace", ""), item["metadata"]["name"]) > key
    ]
