"""HTTP of the simulated API server: one request in, one answer or one stream of events out."""

from __future__ import annotations

import base64
import json
import time
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, Final

from hami_node.errors import HamiError
from hami_node.simulate.api_routes import Route, route_of
from hami_node.simulate.faults import Outcome, Request
from hami_node.simulate.patches import PatchRefused, json_patch, merge_patch
from hami_node.simulate.store import Json, Refused, selector

if TYPE_CHECKING:
    from hami_node.simulate.apiserver import HttpServer

SERVER_NAME: Final = "hami-node-simulated-apiserver"
_JSON_PATCH: Final = "application/json-patch+json"
_MERGE_PATCHES: Final = (
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)
_REASONS: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}
_UNSTABLE: Final = {429, 503}


class ResetNow(HamiError):
    """The connection shall be reset instead of answered."""


class Handler(BaseHTTPRequestHandler):
    """Serves one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: HttpServer

    def do_GET(self) -> None:
        """GET, LIST and WATCH."""
        self._answer()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - as above

    def version_string(self) -> str:
        """Every answer says that it is simulated."""
        return SERVER_NAME

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet: requests are in the server's own list."""

    def setup(self) -> None:
        """Make the connection known, so that an outage can cut it."""
        super().setup()
        self.server.live.add(self.connection)

    def finish(self) -> None:
        """Forget the connection."""
        self.server.live.discard(self.connection)
        super().finish()

    # -- one request ---------------------------------------------------------------------------

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self._is_small_talk():
            return
        try:
            route = route_of(self.command, self.path)
        except Refused as refusal:
            self._send(refusal.status, _status_object(refusal))
            return
        try:
            self._check_token()
            fault = self._suffer(route)
            if route.verb == "watch":
                self._note(route, 200)
                self._watch(route, is_frozen=fault is Outcome.FREEZE)
                return
            status, answer = self._serve(route, body)
            if fault is Outcome.RESET_AFTER:
                self._note(route, 0)
                self._reset()
                return
        except Refused as refusal:
            status, answer = refusal.status, _status_object(refusal)
        except ResetNow:
            self._note(route, 0)
            self._reset()
            return
        # noted first: who has the answer finds the request in the list
        self._note(route, status)
        self._send(status, answer)

    def _reset(self) -> None:
        self.server.reset(self.connection)
        self.close_connection = True

    def _is_small_talk(self) -> bool:
        """/version and health, which are no objects."""
        path = self.path.partition("?")[0]
        if path in ("/healthz", "/readyz", "/livez"):
            self._send(200, {"status": "ok", "server": SERVER_NAME})
            return True
        if path == "/version":
            self._send(200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0-simulated"})
            return True
        return False

    def _check_token(self) -> None:
        wanted = self.server.api.token
        if wanted is not None and self.headers.get("Authorization", "").split(" ")[-1] != wanted:
            raise Refused(401, "Unauthorized", "Unauthorized")

    def _suffer(self, route: Route) -> Outcome | None:
        """Apply latency and a waiting fault; what is left of it for after the serving."""
        api = self.server.api
        if api.faults.latency_s:
            api.stopped.wait(api.faults.latency_s)
        fault = api.faults.take(route.verb, route.kind.resource)
        if isinstance(fault, int):
            reason = _REASONS.get(fault, "InternalError")
            raise Refused(fault, reason, f"simulated fault: {reason}")
        if fault is Outcome.HANG or (fault is Outcome.FREEZE and route.verb != "watch"):
            self._hang()
            raise ResetNow("hung, then cut")
        if fault is Outcome.RESET:
            raise ResetNow("reset on command")
        return fault

    def _hang(self) -> None:
        api = self.server.api
        api.faults.hang(lambda: api.stopped.is_set() or self.server.is_down)

    def _note(self, route: Route, status: int) -> None:
        self.server.api.note(
            Request(
                verb=route.verb,
                resource=route.kind.resource,
                namespace=route.namespace,
                name=route.name,
                subresource=route.subresource,
                user_agent=self.headers.get("User-Agent", ""),
                status=status,
            )
        )

    def _send(self, status: int, answer: Json) -> None:
        body = json.dumps(answer, separators=(",", ":")).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status in _UNSTABLE:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(body)

    # -- objects -------------------------------------------------------------------------------

    def _serve(self, route: Route, body: bytes) -> tuple[int, Json]:
        store, resource = self.server.api.store, route.kind.resource
        if route.verb == "list":
            return 200, self._list(route)
        if route.verb == "get":
            return 200, store.read(resource, route.namespace, route.name)
        if route.verb == "delete":
            return 200, store.delete(resource, route.namespace, route.name)
        given = _parse(body)
        if route.verb == "create" and route.subresource == "binding":
            return 201, self._bind(route, given)
        if route.verb == "create":
            return 201, store.create(resource, route.namespace, _object(given))
        if route.verb == "update":
            new = _object(given)
            return 200, store.change(resource, route.namespace, route.name, lambda _old: new)
        if route.verb == "patch":
            return 200, self._patch(route, given)
        raise Refused(405, "MethodNotAllowed", f"{self.command} is not served")

    def _patch(self, route: Route, given: Any) -> Json:  # noqa: ANN401 - any JSON value
        content_type = self.headers.get("Content-Type", "").partition(";")[0]

        def edit(old: Json) -> Json:
            try:
                if content_type == _JSON_PATCH:
                    return _object(json_patch(old, _operations(given)))
                if content_type in _MERGE_PATCHES:
                    return _object(merge_patch(old, _object(given)))
            except PatchRefused as error:
                words = "the server rejected our request due to an error in our request"
                raise Refused(422, "Invalid", words) from error
            raise Refused(415, "UnsupportedMediaType", f"{content_type} is not supported")

        return self.server.api.store.change(route.kind.resource, route.namespace, route.name, edit)

    def _bind(self, route: Route, given: Any) -> Json:  # noqa: ANN401 - any JSON value
        binding = _object(given)
        target = binding.get("target") or {}
        given_meta = binding.get("metadata") or {}
        uid, version = given_meta.get("uid"), given_meta.get("resourceVersion")

        def edit(pod: Json) -> Json:
            if uid and pod["metadata"]["uid"] != uid:
                raise Refused(409, "Conflict", f"uid in precondition: {uid}")
            if version and pod["metadata"]["resourceVersion"] != version:
                raise Refused(409, "Conflict", f"resourceVersion in precondition: {version}")
            spec = pod.setdefault("spec", {})
            if spec.get("nodeName"):
                raise Refused(409, "Conflict", f'pod is already assigned to "{spec["nodeName"]}"')
            if pod["metadata"].get("deletionTimestamp"):
                raise Refused(409, "Conflict", "pod is being deleted, cannot be assigned to a host")
            spec["nodeName"] = target.get("name", "")
            pod["metadata"].setdefault("annotations", {}).update(
                given_meta.get("annotations") or {}
            )
            return pod

        self.server.api.store.change("pods", route.namespace, route.name, edit)
        return {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}

    def _list(self, route: Route) -> Json:
        """A list; with a limit in pages, but not from the "cache" (resourceVersion 0)."""
        query = route.query
        selects = selector(
            route.namespace, query.get("labelSelector", ""), query.get("fieldSelector", "")
        )
        version, found = self.server.api.store.select(route.kind.resource, selects)
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

    # -- watch ---------------------------------------------------------------------------------

    def _watch(self, route: Route, *, is_frozen: bool) -> None:
        # taken before the answer begins: who has its headers can be dropped
        generation = self.server.api.watch_generation
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if is_frozen:
            self._hang()
            self._reset()
            return
        try:
            is_in_order = self._stream(route, generation)
        except Refused as refusal:
            is_in_order = True
            self._event("ERROR", _status_object(refusal))
        if is_in_order:
            self.wfile.write(b"0\r\n\r\n")
        else:
            self._reset()

    def _stream(self, route: Route, generation: int) -> bool:
        """Send events until the client's timeoutSeconds are over; False when the server stops."""
        api, resource, query = self.server.api, route.kind.resource, route.query
        selects = selector(
            route.namespace, query.get("labelSelector", ""), query.get("fieldSelector", "")
        )
        deadline = time.monotonic() + float(query.get("timeoutSeconds") or 1800)
        bookmark_at = time.monotonic() + api.bookmark_interval_s
        seen = int(query.get("resourceVersion") or 0)
        if seen == 0:
            seen, present = api.store.select(resource, selects)
            for one in present:
                self._event("ADDED", one)
        told = seen
        while not (api.stopped.is_set() or self.server.is_down):
            now_seen, changes = api.store.changes_after(seen, resource)
            for change in changes:
                event = change.seen_by(selects)
                if event is not None:
                    self._event(*event)
                    told = change.version
            seen = now_seen
            now = time.monotonic()
            if now >= deadline or generation != api.watch_generation:
                return True
            if now >= bookmark_at:
                bookmark_at = now + api.bookmark_interval_s
                # as in a real server: nothing new, no bookmark
                if seen > told and query.get("allowWatchBookmarks") == "true":
                    self._event("BOOKMARK", _bookmark(route, seen))
                    told = seen
            api.store.wait_for_change(seen, min(deadline, bookmark_at) - now)
        return False

    def _event(self, kind: str, one: Json) -> None:
        line = json.dumps({"type": kind, "object": one}, separators=(",", ":")).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))


def _bookmark(route: Route, version: int) -> Json:
    return {
        "kind": route.kind.kind,
        "apiVersion": route.kind.api_version,
        "metadata": {"resourceVersion": str(version), "creationTimestamp": None},
    }


def _status_object(refusal: Refused) -> Json:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": str(refusal),
        "reason": refusal.reason,
        "code": refusal.status,
    }


def _parse(body: bytes) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(body)
    except ValueError as error:
        raise Refused(400, "BadRequest", f"the body is no JSON: {error}") from error


def _object(given: Any) -> Json:  # noqa: ANN401 - any JSON value
    if not isinstance(given, dict):
        raise Refused(400, "BadRequest", "the body is no JSON object")
    return given


def _operations(given: Any) -> list[Json]:  # noqa: ANN401 - any JSON value
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise Refused(400, "BadRequest", "a JSON patch is a list of operations")
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
        raise Refused(400, "BadRequest", "continue token not understood") from error
    return [
        one
        for one in found
        if (one["metadata"].get("namespace", ""), one["metadata"]["name"]) > key
    ]
