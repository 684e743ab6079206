"""What the extender's server serves: routes, limits of request bodies, threads that do the work.

The event loop only moves bytes. Each endpoint's work runs in a thread pool of its own, so that
binds that wait for a lock never delay filters, the webhook or probes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from hami_node import __version__
from hami_node.extender.http.answers import Answer, refusal, text_answer
from hami_node.extender.http.body_limit import BodyLimit
from hami_node.extender.http.calls import Counters, OnRequest, Route, Workers
from hami_node.extender.http.held_calls import Advice, HeldCalls
from hami_node.extender.http.server_limits import ServerLimits
from hami_node.metrics.server import Check

Work = Callable[[bytes], bytes]
_GET: Final = ("GET", "HEAD")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """What the server serves. The functions may block; they are called in threads.

    `filter`, `bind`, `preempt` and `webhook` take a body and return JSON; WireError is answered
    with 400, NotLeading as `advise` says: with 503 by default. `metrics` takes an Accept header and
    returns body and content type.
    """

    filter: Work
    bind: Work
    preempt: Work
    webhook: Work
    live: Mapping[str, Check]
    ready: Mapping[str, Check]
    metrics: Callable[[str], tuple[bytes, str]]
    advise: Callable[[], Advice] = lambda: Advice.REFUSE


class Routes:
    """What is served where, and the threads that do the work."""

    def __init__(
        self,
        endpoints: Endpoints,
        limits: ServerLimits,
        on_request: OnRequest,
        paths: Collection[str] | None = None,
    ) -> None:
        """Serve `paths` of the endpoints, or all."""
        self._bodies = BodyLimit(limits.bodies_bytes)
        self._held = HeldCalls(endpoints.advise)
        self.shared = Counters(
            limits=limits, bodies=self._bodies, held=self._held, on_request=on_request
        )
        self._workers: list[Workers] = []
        posts = {
            "/filter": (endpoints.filter, limits.filter_body_bytes, limits.filter_workers),
            "/bind": (endpoints.bind, limits.bind_body_bytes, limits.bind_workers),
            "/preempt": (endpoints.preempt, limits.filter_body_bytes, limits.preempt_workers),
            "/webhook": (endpoints.webhook, limits.webhook_body_bytes, limits.webhook_workers),
        }
        gets: dict[str, Callable[[bytes], Answer]] = {
            "/healthz": lambda _: _probe(endpoints.live),
            "/readyz": lambda _: _probe(endpoints.ready),
            "/version": lambda _: _version(),
            "/metrics": lambda accept: _metrics(endpoints, accept),
        }
        wanted = {*posts, *gets} if paths is None else set(paths)
        routes = [self._post(path, *post) for path, post in posts.items() if path in wanted]
        if wanted & gets.keys():
            pages, metrics = self._hire("pages", 4), self._hire("metrics", 1)
            routes += [
                Route(
                    path=path,
                    methods=_GET,
                    make=make,
                    max_bytes=None,
                    workers=metrics if path == "/metrics" else pages,
                )
                for path, make in gets.items()
                if path in wanted
            ]
        self._routes = {route.path: route for route in routes}

    def find(self, method: str, path: str) -> Route | Answer:
        """Who answers; else the refusal, which is counted."""
        route = self._routes.get(path)
        if route is None:
            self.shared.on_request("other", 404, 0.0)
            known = " ".join(self._routes)
            return refusal(404, f"there is no such path; known paths: {known}")
        if method not in route.methods:
            self.shared.on_request(path, 405, 0.0)
            allowed = ", ".join(route.methods)
            return refusal(405, f"{path} accepts {allowed} only", ("allow", allowed))
        return route

    def running(self) -> int:
        """How many calls are worked on."""
        return self._held.running

    def close(self) -> None:
        """Let idle threads end; work that still runs can't be stopped, only abandoned."""
        for workers in self._workers:
            workers.pool.shutdown(wait=False, cancel_futures=True)

    def _hire(self, name: str, most: int) -> Workers:
        workers = Workers(f"extender-{name}", most)
        self._workers.append(workers)
        return workers

    def _post(self, path: str, work: Work, max_bytes: int, workers: int) -> Route:
        return Route(
            path=path,
            methods=("POST",),
            make=lambda body: Answer(200, work(body)),
            max_bytes=max_bytes,
            workers=self._hire(path[1:], workers),
        )


def _version() -> Answer:
    return Answer(200, json.dumps({"version": __version__}).encode())


def _probe(checks: Mapping[str, Check]) -> Answer:
    reasons = [f"{name}: {reason}" for name, check in checks.items() if (reason := check())]
    return text_answer(503 if reasons else 200, "\n".join(reasons or ["ok"]) + "\n")


def _metrics(endpoints: Endpoints, accept: bytes) -> Answer:
    body, content_type = endpoints.metrics(accept.decode("latin-1"))
    return Answer(200, body, content_type)
